// All jobs: running ones first, then the queue in its order, then finished ones.

import { get } from "./api.js";
import { about, bar, bytes, clipped, donePercent, el, noteUploads, percent, processName, rate, repeat, replace, seconds, shape, since, status, table, title } from "./show.js";

const PAGE = 25;
// A phone shows some five jobs at once, and a queue would hide what has ended.
const PHONE = matchMedia("(max-width: 48rem)");
const STATUSES = ["accepted", "running", "successful", "failed", "dismissed"];

const name = ["Job", (one) => (one.jobID ? clipped(title(one), `#/job/${one.jobID}`) : "another token's")];
const process = ["Process", (one) => processName(one.processID)];
const extents = ["Shape", (one) => shape(one)];
const priority = ["Priority", (one) => `${one.priority}`, true];
const age = ["Age", (one) => seconds(since(one.created)), true];
const owner = (account) => ["Owner", (one) => clipped(one.owner ?? account)];

// A job whose process is silent for longer has lost it, or its worker; its lease ends soon.
const SILENT_SECONDS = 6;

function progressCell(one) {
  if (one.silent > SILENT_SECONDS) return `no sign of it for ${seconds(one.silent)}; it starts again when its lease ends`;
  return el("span", { class: "progress" }, bar(one.percent ?? donePercent(one)),
    `${Math.floor(one.percent ?? donePercent(one))} %`);
}

function runningTable(rows, account) {
  return table("Running jobs", [name, process, extents, owner(account), priority,
    ["Progress", progressCell],
    ["GFLOP/s", (one) => rate(one.detail?.gflops), true],
    ["Running for", (one) => seconds(since(one.started)), true],
    ["Left", (one) => seconds(one.eta), true]], rows);
}

function waitingTable(rows, account) {
  return table("Waiting jobs", [name, process, extents, owner(account), priority,
    ["Waits because", (one) => one.reason],
    ["Starts", (one) => (one.startsIn === null ? "–" : about(one.startsIn)), true], age], rows);
}

const ended = ["Ended", (one) => `${seconds(since(one.finished))} ago`, true];

function finishedTable(rows, account, caption, last) {
  return table(caption, [name, process, extents, owner(account), priority,
    ["Status", (one) => status(one)],
    ["Took", (one) => seconds(one.report?.seconds ?? since(one.started, one.finished)), true],
    ["GFLOP/s", (one) => rate(one.report?.gflops), true], last], rows);
}

function pager(newer, older, state, redraw, what) {
  const go = (change) => () => { change(); redraw(); };
  return el("div", { class: "row pager" },
    el("button", { id: `newer-${what}`, disabled: !newer, onclick: go(newer ?? (() => {})) }, "← Back"),
    el("span", { class: "soft" }, state),
    el("button", { id: `older-${what}`, disabled: !older, onclick: go(older ?? (() => {})) }, "More →"));
}

function nextCursor(page) {
  const link = page.links.find((one) => one.rel === "next");
  return link ? new URL(link.href, document.baseURI).searchParams.get("cursor") : null;
}

function machineLine(system, queue, load) {
  const devices = system.workers.flatMap((worker) => worker.devices).length;
  const busy = new Set(queue.running.flatMap((one) => one.devices.map((device) => `${one.worker} ${device}`))).size;
  const held = queue.running.reduce((sum, one) => sum + one.host_bytes, 0);
  const memory = system.workers.reduce((sum, worker) => sum + worker.memory, 0);
  const cpu = Object.values(load.workers).map((one) => one.cpu.at(-1)).filter((one) => one !== undefined);
  if (!system.workers.length) return "No worker is running: jobs wait until one is started.";
  return [`${Math.min(busy, devices)} of ${devices} ${devices === 1 ? "device" : "devices"} busy`,
    cpu.length ? `processors ${percent(Math.max(...cpu) / 100)}` : null,
    `jobs hold ${bytes(held)} of ${bytes(memory)}`,
    `${bytes(system.disk.free)} of disk free`].filter((one) => one).join(" · ");
}

export async function jobs(signal, _id, _more, { main, tell }) {
  const state = { search: "", status: "", process: "", cursors: [], offset: 0 };
  const summary = el("p", { class: "summary" });
  const lists = el("div", {});
  const search = el("input", { type: "search", id: "search", placeholder: "Name or id", "aria-label": "Search by name or id", maxlength: 200 });
  const choose = (id, label, values, text = (value) => value) => el("select", { id, "aria-label": label },
    el("option", { value: "" }, label), ...values.map((value) => el("option", { value }, text(value))));
  const byStatus = choose("status", "Every status", STATUSES);
  const processes = (await get("/v1/processes")).processes.map((one) => one.id);
  const byProcess = choose("process", "Every process", processes, processName);
  main.replaceChildren(
    el("div", { class: "head" }, el("h2", {}, "Jobs"), el("a", { class: "button primary", href: "#/submit" }, "New job")),
    summary, el("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, search, byStatus, byProcess), lists);

  let system = await get("/v1/system");
  let load = { workers: {} };
  let turn = 0;
  let generation = 0;
  const draw = async () => {
    const mine = generation += 1;
    if (turn % 5 === 0) {
      let uploaded;
      [system, load, uploaded] = await Promise.all([get("/v1/system"), get("/v1/system/load"), get("/v1/matrices?limit=200")]);
      noteUploads(uploaded.matrices);
    }
    turn += 1;
    const filtered = state.search || state.status || state.process;
    const query = new URLSearchParams({ limit: PAGE });
    if (!filtered) query.set("sortby", "-finished");
    if (state.cursors.length) query.set("cursor", state.cursors.at(-1));
    if (state.search) query.set("search", state.search);
    if (state.process) query.set("processID", state.process);
    for (const one of state.status ? [state.status] : filtered ? [] : STATUSES.slice(2)) query.append("status", one);
    const [queue, page, active] = await Promise.all([get(`/v1/queue?offset=${state.offset}&limit=${PAGE}`), get(`/v1/jobs?${query}`),
      filtered ? { jobs: [] } : get("/v1/jobs?status=running&limit=100")]);
    if (signal.aborted || mine !== generation) return;
    const { counts } = queue;
    const over = (counts.successful ?? 0) + (counts.failed ?? 0) + (counts.dismissed ?? 0);
    summary.textContent = `${counts.running ?? 0} running, ${counts.accepted ?? 0} waiting, ${over} finished — ${machineLine(system, queue, load)}`;
    const known = new Map(active.jobs.map((one) => [one.jobID, one]));
    const running = queue.running.map((one) => ({ ...known.get(one.jobID), ...one, owner: one.owner || system.account.name }));
    const account = system.account.name;
    const cursor = nextCursor(page);
    const paging = pager(
      state.cursors.length ? () => { state.cursors.pop(); } : null,
      cursor ? () => { state.cursors.push(cursor); } : null,
      `page ${state.cursors.length + 1}`, draw, "finished");
    const paged = (cursor || state.cursors.length) && paging;
    if (filtered) {
      replace(lists, el("h3", {}, "Jobs that match, newest first"),
        page.jobs.length ? finishedTable(page.jobs, account, "Jobs that match", age) : el("p", {}, "No job matches."), paged);
      return;
    }
    const total = queue.waiting_total;
    const first = state.offset + 1;
    const waitingPaged = total > PAGE && pager(
      state.offset ? () => { state.offset = Math.max(0, state.offset - PAGE); } : null,
      state.offset + PAGE < total ? () => { state.offset += PAGE; } : null,
      `${first} to ${Math.min(state.offset + PAGE, total)} of ${total}`, draw, "waiting");
    const waiting = queue.waiting.length
      && [el("h3", {}, "Waiting, in the order in which they start"), waitingTable(queue.waiting, account), waitingPaged];
    const finished = page.jobs.length && [el("h3", {}, "Finished, newest first"), finishedTable(page.jobs, account, "Finished jobs", ended), paged];
    replace(lists,
      running.length && [el("h3", {}, "Running"), runningTable(running, account)],
      ...(PHONE.matches ? [finished, waiting] : [waiting, finished]),
      !running.length && !queue.waiting.length && !page.jobs.length
        && el("p", { class: "card" }, "There is no job yet. ", el("a", { href: "#/submit" }, "Submit one"), "."));
  };
  let typing = null;
  const changed = () => {
    Object.assign(state, { search: search.value.trim(), status: byStatus.value, process: byProcess.value, cursors: [], offset: 0 });
    draw().catch(tell);
  };
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(changed, 250); });
  for (const select of [byStatus, byProcess]) select.addEventListener("change", changed);
  await repeat(draw, 2000, signal, tell);
}
