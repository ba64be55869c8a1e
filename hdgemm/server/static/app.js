// The page: a view per hash, redrawn from the API. No framework, nothing loaded from elsewhere.

import { get, request } from "./api.js";
import { job } from "./job.js";
import { bar, bytes, el, fixed, isPressed, seconds, status, table, time } from "./show.js";
import { submit } from "./submit.js";

const main = document.getElementById("main");
const notice = document.getElementById("notice");
let leaving = new AbortController();

export function tell(error) {
  notice.textContent = error ? error.message ?? String(error) : "";
}

// Draws now and every `period` milliseconds while the view is open and visible.
function repeat(draw, period, signal) {
  const turn = async () => {
    if (signal.aborted) return;
    if (!document.hidden && !isPressed()) {
      try { await draw(); tell(""); } catch (error) { if (!signal.aborted) tell(error); }
    }
    setTimeout(turn, period);
  };
  return turn();
}

// A redraw must not take the focus from a link that is drawn again.
function replace(node) {
  const focused = document.activeElement?.getAttribute("href");
  main.replaceChildren(...node);
  if (focused) main.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
}

async function list(signal) {
  await repeat(async () => {
    const [page, system] = await Promise.all([get("/v1/jobs?limit=100"), get("/v1/system")]);
    if (signal.aborted) return;
    const waiting = page.jobs.filter((one) => one.status === "accepted").length;
    const running = page.jobs.filter((one) => one.status === "running").length;
    const rows = table("Jobs", [
      ["Job", (one) => el("a", { href: `#/job/${one.jobID}` }, one.name || one.jobID.slice(0, 8))],
      ["Process", (one) => one.processID],
      ["Status", (one) => status(one)],
      ["Progress", (one) => bar(one)],
      ["Limited by", (one) => one.detail?.limit ?? (one.status === "running" ? one.phase : "–")],
      ["GFLOP/s", (one) => fixed(one.report?.gflops ?? one.detail?.gflops), true],
      ["Left", (one) => (one.status === "running" ? seconds(one.detail?.eta) : "–"), true],
      ["Submitted", (one) => time(one.created)],
    ], page.jobs);
    replace([
      el("h2", {}, "Jobs"),
      el("p", { class: "soft" }, `${running} running, ${waiting} waiting; `
        + `${system.workers.length} worker(s), ${bytes(system.disk.free)} of disk free`),
      page.jobs.length ? rows : el("p", {}, "No job yet. ",
        el("a", { href: "#/submit" }, "Submit one"), "."),
    ]);
  }, 1000, signal);
}

async function matrices(signal) {
  await repeat(async () => {
    const page = await get("/v1/matrices?limit=200");
    if (signal.aborted) return;
    replace([
      el("h2", {}, "Uploaded matrices"),
      page.matrices.length ? table("Matrices", [
        ["Name", (one) => one.name || one.id.slice(0, 8)],
        ["Id", (one) => one.id],
        ["Shape", (one) => one.shape.join(" × ")],
        ["Type", (one) => one.dtype],
        ["Size", (one) => bytes(one.size), true],
        ["Complete", (one) => (one.complete ? "yes"
          : bytes(one.received.reduce((sum, [a, b]) => sum + b - a, 0)))],
      ], page.matrices) : el("p", {}, "None. Jobs can name files that the server reaches."),
    ]);
  }, 3000, signal);
}

async function machine(signal) {
  await repeat(async () => {
    const [system, landing] = await Promise.all([get("/v1/system"), get("/v1")]);
    if (signal.aborted) return;
    const { disk, account } = system;
    replace([
      el("h2", {}, "Workers and devices"),
      system.workers.length ? table("Workers", [
        ["Machine", (one) => one.host],
        ["Devices", (one) => one.devices.join(", ")],
        ["Memory for jobs", (one) => bytes(one.memory), true],
        ["Seen", (one) => `${fixed(one.seconds_since_seen)} s ago`, true],
      ], system.workers) : el("p", {}, "No worker is running: jobs wait."),
      el("h2", {}, "Disk"),
      el("progress", { max: disk.total, value: disk.used, "aria-label": "Disk in use" }),
      el("p", { class: "soft" }, `${bytes(disk.used)} used, ${bytes(disk.free)} free`),
      el("h2", {}, "Folders that jobs may name files in"),
      landing.roots.length ? el("ul", {}, ...landing.roots.map((root) => el("li", {}, root)))
        : el("p", {}, "None: start the server with --root."),
      el("h2", {}, "You"),
      el("p", {}, `${account.name}: ${account.unfinished_jobs} unfinished job(s), at most `
        + `${account.max_jobs ?? "any number of"} jobs, `
        + `${account.max_bytes === null ? "any number of bytes" : bytes(account.max_bytes)}`),
    ]);
  }, 3000, signal);
}

const VIEWS = { "": list, job, submit, matrices, machine };

async function route() {
  leaving.abort();
  leaving = new AbortController();
  const [, name = "", id = ""] = location.hash.split("/");
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === `#/${name}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(el("p", {}, "Loading …"));
  tell("");
  try {
    await (VIEWS[name] ?? list)(leaving.signal, id, { main, tell, repeat, request });
  } catch (error) {
    tell(error);
  }
}

addEventListener("hashchange", () => { route(); main.focus(); });
route();
