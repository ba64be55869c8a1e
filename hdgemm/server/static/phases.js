// The phases of a job with the time that each took, from its status events.

import { bar, el, seconds } from "./show.js";

const NAMES = {
  queued: "Waiting", starting: "Starting", opening: "Opening files", calibrating: "Measuring rates",
  planning: "Planning", multiplying: "Multiplying", factoring: "Factoring", verifying: "Verifying", profiling: "Profiling",
  hashing: "Hashing the result", drawing: "Drawing pictures", publishing: "Publishing",
};
const EXPECTED = {
  gemm: ["queued", "starting", "opening", "multiplying", "hashing", "drawing", "publishing"],
  verify: ["queued", "starting", "opening", "verifying", "drawing"],
  profile: ["queued", "starting", "profiling", "drawing"],
};
const FACTORISATION = ["queued", "starting", "opening", "factoring", "hashing", "drawing", "publishing"];
const COMPUTING = new Set(["multiplying", "factoring", "calibrating", "planning"]);
const OVER = new Set(["successful", "failed", "dismissed"]);

export class Phases {
  #entered = [];
  #ended = null;

  // Notes the phase of a status event.
  enter(phase, at) {
    if (!phase || at === undefined) return;
    if (OVER.has(phase)) { this.#ended = at; return; }
    if (phase === "queued") this.#entered = [];
    // Rates are measured before the first tile is multiplied.
    if (phase === "calibrating" && this.#entered.at(-1)?.phase === "multiplying") this.#entered.pop();
    if (this.#entered.at(-1)?.phase !== phase) this.#entered.push({ phase, at });
  }

  list(info) {
    const detail = info.detail ?? {};
    const library = info.report?.phases ?? {};
    const rows = this.#entered.map((one, number) => {
      const next = this.#entered[number + 1]?.at ?? this.#ended;
      return { ...one, took: next === null ? Date.now() / 1000 - one.at : next - one.at, over: next !== null };
    });
    const pending = (EXPECTED[info.processID] ?? FACTORISATION).slice();
    if (info.inputs.options?.verify === true && info.processID === "gemm") pending.splice(4, 0, "verifying");
    const seen = new Set(rows.map((row) => row.phase));
    const coming = OVER.has(info.status) ? [] : pending.slice(pending.findLastIndex((phase) => seen.has(phase)) + 1);
    const part = (phase) => (phase === (detail.phase ?? info.phase) ? detail.phase_percent ?? (COMPUTING.has(phase) ? detail.percent : null) : null);
    const inside = (phase) => (phase !== "multiplying" || !info.report ? "" : Object.entries(library)
      .filter(([name, took]) => name !== "multiplying" && took > 0)
      .map(([name, took]) => `${(NAMES[name] ?? name).toLowerCase()} ${seconds(took)}`).join(", "));
    return el("ol", { class: "phases" },
      ...rows.map((row) => el("li", { class: row.over ? "over" : "now" },
        el("span", {}, NAMES[row.phase] ?? row.phase),
        !row.over && part(row.phase) !== null && part(row.phase) !== undefined
          && bar(part(row.phase), `${NAMES[row.phase] ?? row.phase}: ${Math.floor(part(row.phase))} percent`),
        el("span", { class: "soft took" }, seconds(Math.max(0, row.took))),
        inside(row.phase) && el("span", { class: "soft inside" }, `with ${inside(row.phase)}`))),
      ...coming.map((phase) => el("li", { class: "coming" }, el("span", {}, NAMES[phase] ?? phase))));
  }
}
