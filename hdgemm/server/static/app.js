// The page: one view for each hash, drawn from the API. No framework, nothing loaded from elsewhere.

import { request } from "./api.js";
import { job } from "./job.js";
import { jobs } from "./jobs.js";
import { machine } from "./machine.js";
import { matrices } from "./matrices.js";
import { el } from "./show.js";
import { submit } from "./submit.js";

// The API's address of a job, /v1/jobs/ID, is often tried here.
const ofJobs = (signal, id, ...more) => (id ? job : jobs)(signal, id, ...more);
const VIEWS = { "": jobs, jobs: ofJobs, job, submit, matrices, machine };
const TITLES = { "": "Jobs", job: "Job", submit: "New job", matrices: "Matrices", machine: "Machine" };
// Milliseconds until a view whose server was gone is opened again.
const RETRY = 2000;
const main = document.getElementById("main");
const notice = document.getElementById("notice");
let leaving = new AbortController();

export function tell(error) {
  notice.textContent = error ? error.message ?? String(error) : "";
}

function unknown() {
  main.replaceChildren(el("h2", {}, "No such page"), el("p", {}, `There is no page ${location.hash.slice(0, 40)} here.`),
    el("p", {}, el("a", { href: "#/" }, "See all jobs")));
}

async function route() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [, name = "", id = "", more = ""] = location.hash.split("/");
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === `#/${name}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[name] ?? "Jobs"} – hdgemm`;
  main.replaceChildren(el("p", {}, "Loading …"));
  tell("");
  try {
    await (Object.hasOwn(VIEWS, name) ? VIEWS[name] : unknown)(signal, id, more, { main, tell, request });
  } catch (error) {
    if (signal.aborted) return;
    tell(error);
    if (error.gone) setTimeout(() => { if (!signal.aborted) route(); }, RETRY);
  }
}

addEventListener("hashchange", () => { route(); main.focus(); });
route();
