// One job: live bar, tile map, stage table, Gantt chart and log.

import { blobUrl, follow, get, post, remove, request } from "./api.js";
import {
  bar, bytes, el, fixed, isPressed, pairs, planTable, seconds, status, table, tileMap, time,
} from "./show.js";

const OVER = new Set(["successful", "failed", "dismissed"]);

function stages(report) {
  const rows = Object.entries(report?.stages ?? {});
  if (!rows.length) return null;
  return table("Stages", [
    ["Stage", ([name]) => name],
    ["Operations", ([, stage]) => `${stage.operations}`, true],
    ["Moved", ([, stage]) => bytes(stage.bytes), true],
    ["Busy", ([, stage]) => seconds(stage.seconds), true],
    ["GB/s", ([, stage]) => fixed(stage.gbytes_per_second), true],
    ["GFLOP/s", ([, stage]) => fixed(stage.gflops), true],
    ["Share of the run", ([, stage]) => `${Math.round((100 * stage.seconds) / report.seconds)} %`, true],
  ], rows);
}

function facts(info) {
  const detail = info.detail ?? {};
  const entries = [
    ["Process", info.processID], ["Phase", info.phase], ["Message", info.message],
    ["Submitted", time(info.created)], ["Started", time(info.started)],
    ["Finished", time(info.finished)], ["Attempt", `${info.attempt}`],
  ];
  if (info.status === "running") {
    entries.push(["Limited by", detail.limit ?? "–"], ["Speed", `${fixed(detail.gflops)} GFLOP/s`],
      ["Time left", seconds(detail.eta)]);
  }
  if (info.report?.seconds) {
    entries.push(["Took", seconds(info.report.seconds)],
      ["Speed", `${fixed(info.report.gflops)} GFLOP/s`],
      ["Limited by", info.report.limit ?? "–"]);
  }
  if (info.error) entries.push([`Error (${info.error.origin})`, info.error.detail]);
  if (info.expires) entries.push(["Deleted after", time(info.expires)]);
  if (info.output?.path) entries.push(["Result", info.output.path]);
  return pairs("Facts", entries);
}

async function download(path, name) {
  el("a", { href: await blobUrl(path), download: name }).click();
}

function buttons(id, info, tell, redraw) {
  const act = (work) => async () => { try { await work(); await redraw(); } catch (e) { tell(e); } };
  const row = el("div", { class: "row" });
  if (!OVER.has(info.status)) {
    row.append(el("button", { id: "cancel", onclick: act(() => post(`/v1/jobs/${id}/cancel`)),
      disabled: info.cancelRequested }, info.cancelRequested ? "Stopping …" : "Cancel"));
  } else {
    if (info.status === "successful" && info.output) {
      row.append(el("button", { id: "download", class: "primary", onclick: act(() => download(`/v1/jobs/${id}/results/c`, "c.npy")) },
        `Download the result (${bytes(info.output.size)})`));
    }
    if (info.status === "successful" && info.processID === "profile") {
      row.append(el("button", { id: "report", class: "primary",
        onclick: act(() => download(`/v1/jobs/${id}/report.html`, "report.html")) },
      "Download the report"));
    }
    row.append(el("button", { onclick: async () => {
      try { await remove(`/v1/jobs/${id}`); location.hash = "#/"; } catch (e) { tell(e); }
    } }, "Delete"));
  }
  return row;
}

export async function job(signal, id, { main, tell }) {
  const live = el("div", {});
  const after = el("div", {});
  const log = el("pre", { tabindex: 0, "aria-label": "Log" });
  main.replaceChildren(live, after, el("h3", {}, "Log"), log);
  const map = await get(`/v1/jobs/${id}/map`);
  let info = await get(`/v1/jobs/${id}`);

  const draw = () => {
    const detail = info.detail ?? {};
    const share = info.status === "successful" ? 1 : (detail.steps ?? 0) / (detail.total_steps || 1);
    const focused = document.activeElement?.id;
    live.replaceChildren(
      el("h2", {}, info.name || `Job ${id.slice(0, 8)}`, " ", status(info)),
      bar(info),
      el("p", { class: "soft", role: "status" }, `${fixed(detail.percent ?? (share * 100), 0)} %`
        + (detail.gflops ? `, ${fixed(detail.gflops)} GFLOP/s` : "")
        + (detail.limit ? `, limited by ${detail.limit}` : "")),
      buttons(id, info, tell, redraw),
      facts(info),
    );
    if (map.units.length) {
      live.append(el("h3", {}, "Tiles of C"),
        tileMap(map, Math.floor(share * map.units.length), info.status === "running"));
    }
    if (focused) document.getElementById(focused)?.focus();
  };
  const finish = async () => {
    after.replaceChildren();
    const made = stages(info.report);
    if (made) after.append(el("h3", {}, "Stages"), made);
    if (info.plan) after.append(el("h3", {}, "Plan"), planTable(info.plan, info.needs));
    try {
      const picture = el("img", { class: "gantt", alt: "Gantt chart of the stages",
        src: await blobUrl(`/v1/jobs/${id}/gantt.png`) });
      after.append(el("h3", {}, "Gantt"), picture);
    } catch { /* there is none */ }
  };
  const redraw = async () => {
    info = await get(`/v1/jobs/${id}`);
    if (signal.aborted) return;
    draw();
    log.textContent = await (await request(`/v1/jobs/${id}/log`)).text();
  };
  await redraw();
  await finish();
  await follow(`/v1/jobs/${id}/events`, signal, (event) => {
    if (event.kind !== "progress") { Object.assign(info, event.data); redraw().catch(tell); return; }
    info.detail = event.data;
    if (!isPressed()) draw();
  });
  if (!signal.aborted) { await redraw(); await finish(); }
}
