// One job: progress, phases, operands, charts, tile map, downloads, log.

import { blobUrl, follow, get, post, remove, request, save } from "./api.js";
import { ganttChart, legend, tileMap } from "./charts.js";
import { confirm } from "./dialogs.js";
import { phaseList } from "./phases.js";
import { ProgressChart } from "./progress.js";
import { OVER, about, bar, bytes, card, donePercent, el, facts, fixed, isPressed, noteUploads, once, path, planFacts, processName, rate, referenceName, replace, seconds, shape, since, status, table, time, title, valueText } from "./show.js";

const GANTT_TRIES = 30;
const MATRICES = ["a", "b", "c", "r", "x"];

function referenceText(reference) {
  if (reference.job) return el("a", { href: `#/job/${reference.job}` }, `result of job ${reference.job.slice(0, 8)}`);
  return reference.path ? path(reference.path) : `uploaded matrix ${referenceName(reference) ?? reference.matrix.slice(0, 8)}`;
}

// The numbers that a job computed beside its arrays, such as a norm.
function values(info) {
  const { residual, passed, values: computed = { residual, passed } } = info.report ?? {};
  const shown = Object.entries(computed).filter(([, value]) => ![null, undefined].includes(value));
  return shown.length ? card("Values", facts(shown.map(([name, value]) => [name.replaceAll("_", " "), valueText(value)]))) : null;
}

function operands(info) {
  const { inputs } = info;
  const isReference = (value) => value && typeof value === "object" && (value.path || value.matrix || value.job) && value.format === undefined;
  const plain = Object.entries(inputs).filter(([name, value]) => !["options", "output"].includes(name)
    && !isReference(value) && ![null, false, ""].includes(value) && (typeof value !== "object" || Array.isArray(value)));
  return card("Operands and options", facts([
    ["Process", processName(info.processID)],
    ["Shape", shape(info)],
    ...Object.entries(inputs).filter(([, value]) => isReference(value))
      .map(([name, value]) => [MATRICES.includes(name) ? name.toUpperCase() : name, referenceText(value)]),
    ...plain.map(([name, value]) => [name.replaceAll("_", " "), valueText(value)]),
    ["Result", info.output ? info.output.path && path(info.output.path) || "kept by the server" : null],
    ["Devices", info.needs.devices.join(", ")],
    ["Memory held", bytes(info.needs.host_bytes)],
    ["Priority", `${info.priority}`],
  ]));
}

function times(info) {
  const expected = info.plan?.expected_seconds ?? null;
  const actual = info.report?.seconds ?? (info.status === "running" ? since(info.started) : null);
  // Below a second, starting up takes longer than the plan's transfers and operations.
  const ratio = expected >= 1 && info.report?.seconds ? info.report.seconds / expected : null;
  return card("Times", facts([
    ["Submitted", time(info.created)],
    ["Started", info.started && time(info.started)],
    ["Finished", info.finished && time(info.finished)],
    ["Waited", info.started && seconds(since(info.created, info.started))],
    ["Expected to take", expected === null ? null : seconds(expected)],
    [info.report ? "Took" : "Running for", actual === null ? null : `${seconds(actual)}${ratio ? ` (${fixed(ratio, 2)} times the expected time)` : ""}`],
    ["Left", info.status === "running" ? seconds(info.detail?.eta) : null],
    ["Throughput", info.report?.gflops ? `${rate(info.report.gflops)} GFLOP/s` : null],
    ["Energy", energyOf(info.report?.energy)],
    ["Attempts", info.attempt > 1 ? `${info.attempt}` : null],
    ["Deleted after", info.expires && time(info.expires)],
  ]));
}

function energyOf(energy) {
  if (!energy) return null;
  const missing = Object.entries(energy.missing).map(([source, reason]) => `${source}: ${reason}`).join("; ");
  if (energy.total_joules === null) return `not measured (${missing})`;
  const perWatt = energy.gflops_per_watt === null ? "" : `, ${fixed(energy.gflops_per_watt, 2)} GFLOP/s per watt`;
  return `${fixed(energy.total_joules)} J${perWatt}${missing ? ` (without ${missing})` : ""}`;
}

function verification(info) {
  const found = info.verification;
  if (found) {
    return card("Verification", el("p", { class: found.passed ? "successful" : "failed" },
      `${found.passed ? "Passed" : "Failed"}: ${found.summary ?? ""}`));
  }
  if (info.inputs.options?.verify === undefined) return null;
  const asked = info.inputs.options.verify === true;
  return card("Verification", el("p", { class: "soft" }, !asked ? "It was not asked for."
    : OVER.has(info.status) ? "There is no outcome." : "The product will be checked before it is published."));
}

function stages(report) {
  const rows = Object.entries(report?.stages ?? {});
  if (!rows.length) return null;
  return [el("h3", {}, "Stages"), table("Stages", [
    ["Stage", ([name]) => name],
    ["Operations", ([, stage]) => `${stage.operations}`, true],
    ["Moved", ([, stage]) => bytes(stage.bytes), true],
    ["Busy", ([, stage]) => seconds(stage.seconds), true],
    ["GB/s", ([, stage]) => rate(stage.gbytes_per_second), true],
    ["GFLOP/s", ([, stage]) => rate(stage.gflops), true],
    ["Share of the run", ([, stage]) => `${Math.round((100 * stage.seconds) / report.seconds)} %`, true],
  ], rows)];
}

// While several devices compute C: a grid of cells, each with the letter of the device that stored it.
function gridOfDevices({ devices, rows }) {
  const drawn = rows.flatMap((cells, row) => [...cells].map((cell, col) =>
    [row, col, 1, 1, cell === "." ? "" : `fill done colour-${(cell.charCodeAt(0) - 97) % 7}`]));
  const done = drawn.filter(([, , , , name]) => name).length;
  return [tileMap({ m: rows.length, n: rows[0]?.length ?? 0, tiles: drawn,
    label: `${Math.round((100 * done) / (drawn.length || 1))} percent of C is stored, in the colour of the device` }),
  legend([...devices, "not stored yet"], [...devices.map((_, number) => `fill colour-${number % 7}`), ""])];
}

function tiles(info, map) {
  const shares = Object.entries(info.report?.split?.shares ?? {});
  const { m, n } = map;
  if (shares.length) {
    const drawn = shares.flatMap(([, one], number) => (one.tiles ?? []).map((tile) => [...tile.slice(0, 4), `fill done colour-${number % 7}`]));
    return [tileMap({ m, n, tiles: drawn, label: `${drawn.length} tiles of C in the colour of their device` }), legend(shares.map(([name]) => name))];
  }
  if (info.detail?.tiles) return gridOfDevices(info.detail.tiles);
  if (!map.units.length || (OVER.has(info.status) && info.status !== "successful" && !info.detail)) return null;
  const detail = info.detail ?? {};
  const share = info.status === "successful" ? 1 : (detail.steps ?? 0) / (detail.total_steps || 1);
  const done = Math.floor(share * map.units.length);
  const now = info.status === "running";
  const drawn = map.units.map((unit, number) => [...unit, number < done ? "fill done colour-0" : number === done && now ? "now" : ""]);
  const device = info.plan?.device ? ` on ${info.plan.device}` : "";
  return [tileMap({ m, n, tiles: drawn, label: `${done} of ${map.units.length} tiles of C are finished` }),
    now && legend(["finished", "in work", "not begun"], ["fill colour-0", "now", ""]),
    el("p", { class: "soft" }, `${done} of ${map.units.length} tiles of C (${m} × ${n}) finished${device}`)].filter((one) => one);
}

// Names of the arrays beside a result: "piv" for LU.piv.npy.
function arraysOf(info) {
  return (info.output?.beside ?? []).map(({ path }) => /[.-](\w+)\.npy$/.exec(path)?.[1]).filter((name) => name);
}

function downloads(id, info, tell) {
  const link = (text, path, name, attributes = {}) => el("button", { ...attributes,
    onclick: () => save(path, name).catch(tell) }, text);
  const at = `/v1/jobs/${id}`;
  if (info.status !== "successful") return [];
  return [
    info.output && link(`Result (${bytes(info.output.size)})`, `${at}/results/c`, `${title(info)}.npy`, { class: "primary", id: "download" }),
    ...arraysOf(info).map((name) => link(name === "piv" ? "Pivots" : name, `${at}/results/${name}`,
      `${title(info)}-${name}.npy`, { id: `get-${name}` })),
    link("Report (JSON)", `${at}/results/report`, `${title(info)}-report.json`, { id: "get-report" }),
    info.processID === "profile" && link("Report (page)", `${at}/report.html`, `${title(info)}.html`, { class: "primary", id: "report" }),
    link("Trace", `${at}/trace`, `${title(info)}-trace.json`, { id: "get-trace" }),
    link("Gantt chart", `${at}/gantt.png`, `${title(info)}-gantt.png`, { id: "get-gantt" }),
  ];
}

function actions(id, info, tell, redraw) {
  const act = (work) => async () => { try { await work(); } catch (error) { tell(error); } };
  const cancel = act(async () => {
    if (!await confirm("Stop this job?", "Stop it", "Let it run")) return;
    await post(`/v1/jobs/${id}/cancel`);
    await redraw();
  });
  const discard = act(async () => {
    const kept = info.output && !info.output.path ? " with its result" : "";
    if (!await confirm(`Delete this job${kept}?`, "Delete it", "Keep it")) return;
    await remove(`/v1/jobs/${id}`);
    location.hash = "#/";
  });
  return el("div", { class: "row actions" },
    ...downloads(id, info, tell),
    !OVER.has(info.status) && el("button", { id: "cancel", onclick: cancel, disabled: info.cancelRequested },
      info.cancelRequested ? "Stopping …" : "Cancel"),
    el("a", { class: "button", id: "again", href: `#/submit/again/${id}` }, "Run again"),
    OVER.has(info.status) && el("button", { id: "delete", onclick: discard }, "Delete"));
}

function headline(info, reason) {
  const detail = info.detail ?? {};
  if (info.status === "accepted") return reason ? `Waiting: ${reason.reason}${reason.startsIn === null ? "" : `; starts ${about(reason.startsIn)}`}` : info.message;
  if (info.status !== "running") return info.status === "successful" ? `Done in ${seconds(info.report?.seconds ?? since(info.started, info.finished))}`
    : info.status === "failed" && info.started ? `Failed after ${seconds(since(info.started, info.finished))}` : info.message;
  const left = detail.eta === null || detail.eta === undefined ? null : `${seconds(detail.eta)} left, done at about ${new Date(Date.now() + 1000 * detail.eta).toLocaleTimeString()}`;
  return [`${Math.floor(detail.percent ?? 0)} %`, left, detail.gflops ? `${rate(detail.gflops)} GFLOP/s` : null,
    detail.limit ? `limited by ${detail.limit}` : null].filter((one) => one).join(" · ");
}

function failure(info) {
  if (!info.error) return null;
  const origin = info.error.origin === "user" ? "The inputs or options are the cause" : "The system is the cause";
  return el("section", { class: "card error" }, el("h3", {}, "Error"), el("p", {}, info.error.detail), el("p", { class: "soft" }, `${origin} (${info.error.type}).`));
}

// Warnings of a run, such as of an ill-conditioned matrix.
function warnings(info) {
  const found = info.report?.warnings ?? [];
  return found.length ? el("section", { class: "card warning" }, el("h3", {}, found.length > 1 ? "Warnings" : "Warning"), ...found.map((text) => el("p", {}, text))) : null;
}

function unknown(main, id) {
  main.replaceChildren(el("h2", {}, "No such job"),
    el("p", {}, `There is no job ${id.slice(0, 40)} here. It was deleted, or it belongs to another token.`),
    el("p", {}, el("a", { href: "#/" }, "See all jobs")));
}

export async function job(signal, id, _more, { main, tell }) {
  let info;
  try {
    info = await get(`/v1/jobs/${encodeURIComponent(id)}`);
  } catch (error) {
    if (![404, 422].includes(error.status)) throw error;
    unknown(main, id);
    return;
  }
  const [map, { matrices }] = await Promise.all([get(`/v1/jobs/${id}/map`), get("/v1/matrices?limit=200")]);
  noteUploads(matrices);
  const chart = new ProgressChart();
  const top = el("div", {});
  const cards = el("div", { class: "cards" });
  const computed = el("div", {});
  const charts = Object.fromEntries(["Throughput", "Stage load", "Gantt chart of the last operations", "Tiles of C"].map((name) => {
    const host = el("div", {});
    return [name, { host, node: el("figure", { hidden: true }, el("figcaption", {}, name), host) }];
  }));
  const after = el("div", {});
  const log = el("pre", { tabindex: 0, "aria-label": "Log" });
  main.replaceChildren(top, cards, computed, el("div", { class: "charts" }, ...Object.values(charts).map((one) => one.node)), after,
    el("details", { open: info.status === "failed" }, el("summary", {}, "Log"), log));
  let reason = null;
  let recent = { lanes: {} };

  const show = (name, wanted, work) => {
    charts[name].node.hidden = !wanted;
    if (wanted) work(charts[name].host);
  };
  const draw = () => {
    if (signal.aborted) return;
    const done = donePercent(info);
    document.title = `${info.status === "running" ? `${Math.floor(done)} %` : info.status} – ${title(info)} – hdgemm`;
    replace(top,
      el("div", { class: "head" }, el("h2", {}, title(info), " ", status(info))),
      bar(done),
      el("p", { class: "summary" }, headline(info, reason)),
      actions(id, info, tell, redraw), failure(info), warnings(info));
    replace(cards, card("Phases", phaseList(info)), times(info), operands(info), verification(info));
    replace(computed, values(info));
    show("Throughput", chart.hasSpeed, (host) => chart.throughput(host));
    show("Stage load", !chart.empty && chart.hasStages, (host) => chart.stages(host));
    const live = info.status === "running" && Object.keys(recent.lanes).length > 0;
    show("Gantt chart of the last operations", live, (host) => ganttChart(host, recent));
    const drawn = tiles(info, map);
    show("Tiles of C", drawn !== null, (host) => host.replaceChildren(...drawn ?? []));
  };
  const finish = async () => {
    // A worker with less memory than the plan of the admission makes another one; the report has it.
    const ran = { ...info.plan, ...info.report?.plan };
    const plan = info.plan && el("details", { open: true }, el("summary", {}, "Plan"), planFacts(ran, info.needs));
    const parts = [plan, ...(stages(info.report) ?? [])];
    if (OVER.has(info.status)) {
      try {
        const { points } = await get(`/v1/jobs/${id}/history`);
        points.forEach((point) => chart.add(point));
      } catch { /* it was too short for a history */ }
    }
    if (info.status === "successful") {
      const picture = el("div", {});
      parts.push(picture);
      showGantt(picture, GANTT_TRIES);
    }
    if (signal.aborted) return;
    after.replaceChildren(...parts.filter((part) => part));
    draw();
  };
  // The picture is drawn after the job has ended.
  const showGantt = async (host, tries) => {
    if (signal.aborted) return;
    try {
      const src = await blobUrl(`/v1/jobs/${id}/gantt.png`);
      host.replaceChildren(el("h3", {}, "Gantt chart"), el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Gantt chart" }, el("img", { class: "gantt", alt: "Gantt chart of the stages", src })));
    } catch {
      if (tries > 0) setTimeout(() => showGantt(host, tries - 1), 2000);
    }
  };
  const redraw = async () => {
    info = await get(`/v1/jobs/${id}`);
    if (info.status === "accepted") {
      const { waiting } = await get("/v1/queue?limit=200");
      reason = waiting.find((one) => one.jobID === id) ?? null;
    }
    draw();
    const text = await (await request(`/v1/jobs/${id}/log`)).text();
    if (!signal.aborted) log.textContent = text;
  };
  await redraw();
  await finish();
  const drawSoon = once(() => { if (!isPressed()) draw(); }, 100);
  const lookSoon = once(() => get(`/v1/jobs/${id}/operations`).then((found) => { recent = found; drawSoon(); }).catch(tell), 500);
  const redrawSoon = once(() => redraw().catch(tell), 100);
  const patience = setInterval(() => {
    if (info.status === "accepted" && !document.hidden && !isPressed()) redraw().catch(tell);
  }, 3000);
  signal.addEventListener("abort", () => clearInterval(patience));
  await follow(`/v1/jobs/${id}/events`, signal, (event) => {
    if (event.kind === "progress") {
      info.detail = event.data;
      chart.add(event.data);
      drawSoon();
      lookSoon();
    } else if (!OVER.has(info.status)) redrawSoon();
  }, tell);
  clearInterval(patience);
  if (!signal.aborted) { await redraw(); await finish(); }
}
