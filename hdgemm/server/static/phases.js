// The phases of a job with the time that each took.

import { OVER, bar, el, seconds } from "./show.js";

const NAMES = {
  queued: "Waiting", starting: "Starting", opening: "Opening files", calibrating: "Measuring rates",
  planning: "Planning", multiplying: "Multiplying", factoring: "Factoring", computing: "Computing", verifying: "Verifying", profiling: "Profiling",
  hashing: "Hashing the result", drawing: "Drawing pictures", publishing: "Publishing",
};
const EXPECTED = {
  gemm: ["queued", "starting", "opening", "multiplying", "hashing", "publishing"],
  verify: ["queued", "starting", "opening", "verifying"],
  profile: ["queued", "starting", "profiling", "drawing"],
};
const ROUTINE = ["queued", "starting", "opening", "computing", "hashing", "publishing"];
const STORING = new Set(["hashing", "publishing"]);
const COMPUTING = new Set(["multiplying", "factoring", "computing", "calibrating", "planning"]);

// The phases of the last attempt, from the job's document.
function entered(info) {
  const all = info.phases ?? [];
  const last = all.slice(Math.max(0, all.findLastIndex((one) => one.phase === "queued")));
  // Rates are measured before the first tile is multiplied.
  return last.filter((one, number) => one.phase !== last[number - 1]?.phase
    && !(one.phase === "multiplying" && last[number + 1]?.phase === "calibrating"));
}

export function phaseList(info) {
  const detail = info.detail ?? {};
  const library = info.report?.phases ?? {};
  const all = entered(info);
  const rows = all.filter((one) => !OVER.has(one.phase)).map((one, number) => {
    const next = all[number + 1];
    const state = next === undefined ? "now" : OVER.has(next.phase) && next.phase !== "successful" ? next.phase : "over";
    return { ...one, took: (next?.at ?? Date.now() / 1000) - one.at, over: next !== undefined, state };
  });
  const seen = new Set(rows.map((row) => row.phase));
  const pending = (EXPECTED[info.processID] ?? ROUTINE)
    .filter((phase) => info.inputs.output !== undefined || !STORING.has(phase));
  if (info.inputs.options?.verify === true && info.processID === "gemm") pending.splice(4, 0, "verifying");
  const coming = OVER.has(info.status) ? [] : pending.slice(pending.findLastIndex((phase) => seen.has(phase)) + 1);
  const part = (phase) => (phase === (detail.phase ?? info.phase) ? detail.phase_percent ?? (COMPUTING.has(phase) ? detail.percent : null) : null);
  const inside = (phase) => (phase !== "multiplying" || !info.report ? "" : Object.entries(library)
    .filter(([name, took]) => name !== "multiplying" && took > 0)
    .map(([name, took]) => `${(NAMES[name] ?? name).toLowerCase()} ${seconds(took)}`).join(", "));
  return el("ol", { class: "phases" },
    ...rows.map((row) => el("li", { class: row.state },
      el("span", {}, NAMES[row.phase] ?? row.phase),
      !row.over && part(row.phase) !== null && part(row.phase) !== undefined
        && bar(part(row.phase), `${NAMES[row.phase] ?? row.phase}: ${Math.floor(part(row.phase))} percent`),
      el("span", { class: "soft took" }, seconds(Math.max(0, row.took))),
      inside(row.phase) && el("span", { class: "soft inside" }, `with ${inside(row.phase)}`))),
    ...coming.map((phase) => el("li", { class: "coming" }, el("span", {}, NAMES[phase] ?? phase))));
}
