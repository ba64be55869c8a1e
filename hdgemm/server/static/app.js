// The page: one view for each hash, drawn from the API. No framework, nothing loaded from elsewhere.

import { request } from "./api.js";
import { job } from "./job.js";
import { jobs } from "./jobs.js";
import { machine } from "./machine.js";
import { matrices } from "./matrices.js";
import { el } from "./show.js";
import { submit } from "./submit.js";

const VIEWS = { "": jobs, job, submit, matrices, machine };
const TITLES = { "": "Jobs", job: "Job", submit: "New job", matrices: "Matrices", machine: "Machine" };
const main = document.getElementById("main");
const notice = document.getElementById("notice");
let leaving = new AbortController();

export function tell(error) {
  notice.textContent = error ? error.message ?? String(error) : "";
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
    await (VIEWS[name] ?? jobs)(signal, id, more, { main, tell, request });
  } catch (error) {
    if (!signal.aborted) tell(error);
  }
}

addEventListener("hashchange", () => { route(); main.focus(); });
route();
