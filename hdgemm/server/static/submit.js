// A new job: the form of a process, made of its description, with the plan beside it.

import { get, post } from "./api.js";
import { fieldsOf } from "./fields.js";
import { card, el, noteUploads, planFacts, processName } from "./show.js";

const PAUSE = 400;

async function loadContext(signal) {
  const [system, matrices, jobs] = await Promise.all([get("/v1/system"), get("/v1/matrices?limit=200"),
    get("/v1/jobs?status=successful&status=accepted&status=running&limit=200")]);
  noteUploads(matrices.matrices);
  return { signal, devices: [...new Set(system.workers.flatMap((worker) => worker.devices))],
    matrices: matrices.matrices.filter((one) => one.complete), jobs: jobs.jobs.filter((one) => one.output) };
}

// What the form starts with: `#/submit/again/JOB`, `#/submit/matrix/ID`.
async function template(what, id) {
  if (what === "again") {
    const info = await get(`/v1/jobs/${id}`);
    const { output, ...inputs } = info.inputs;
    return { process: info.processID, inputs: { ...inputs, output, name: info.name, priority: info.priority } };
  }
  return { process: "gemm", inputs: what === "matrix" ? { a: { matrix: id } } : {} };
}

function deepest(fields) {
  return fields.flatMap((one) => (one.parts ? [one, ...deepest(one.parts)] : [one]));
}

class Form {
  constructor(process, description, context, inputs) {
    this.at = `/v1/processes/${process}/execution`;
    this.fields = fieldsOf(description.inputs, context);
    for (const field of this.fields) if (inputs[field.name] !== undefined && inputs[field.name] !== null) field.write(inputs[field.name]);
    this.all = deepest(this.fields);
  }

  get missing() {
    return this.fields.some((one) => one.required && one.read() === undefined);
  }

  inputs() {
    return Object.fromEntries(this.fields.map((one) => [one.name, one.read()]).filter(([, value]) => value !== undefined));
  }

  // Shows each sentence at its field; returns those that belong to none.
  showErrors(errors) {
    for (const one of this.all) one.fail(null);
    return errors.filter(({ field, what }) => {
      const fits = this.all.filter((one) => field === one.name || field.startsWith(`${one.name}.`))
        .sort((a, b) => b.name.length - a.name.length)[0];
      if (!fits || fits.parts) return true;
      fits.fail(what);
      for (const group of this.all) if (group.parts?.includes(fits)) group.open();
      return false;
    });
  }
}

export async function submit(signal, what, id, { main, tell }) {
  const [{ processes }, context, start] = await Promise.all([get("/v1/processes"), loadContext(signal), template(what, id)]);
  const choose = el("select", { id: "process" }, ...processes.map((one) =>
    el("option", { value: one.id, selected: one.id === start.process }, `${processName(one.id)}: ${one.title}`)));
  const body = el("div", { class: "grid", id: "inputs" });
  const answer = el("div", { "aria-live": "polite", id: "answer" });
  const send = el("button", { class: "primary", id: "send" }, "Submit");
  const node = el("form", { id: "submit", novalidate: true },
    el("div", { class: "field" }, el("label", { for: "process" }, "Process"), choose), body, el("div", { class: "row" }, send));
  let form = null;
  let asking = new AbortController();
  let typing = null;

  const refuse = (error) => {
    const rest = form.showErrors(error.problem?.errors ?? []);
    const text = error.problem?.errors ? rest.map((one) => one.what).join("; ") : error.message;
    answer.replaceChildren(text ? card("Not possible", el("p", { class: "failed" }, text))
      : el("p", { class: "soft" }, "Correct the marked fields to see the plan."));
  };
  const plan = async () => {
    asking.abort();
    asking = new AbortController();
    const own = asking;
    if (form.missing) {
      form.showErrors([]);
      answer.replaceChildren(el("p", { class: "soft" }, "The plan appears here once the operands are chosen."));
      return;
    }
    try {
      const planned = await post(form.at, { inputs: form.inputs(), dry_run: true }, own.signal);
      if (own.signal.aborted) return;
      form.showErrors([]);
      answer.replaceChildren(card("Plan", planFacts(planned.plan, planned.needs)));
    } catch (error) { if (!own.signal.aborted && !signal.aborted) refuse(error); }
  };
  const planSoon = () => { clearTimeout(typing); typing = setTimeout(plan, PAUSE); };
  const open = async (process, inputs) => {
    const description = await get(`/v1/processes/${process}`);
    if (signal.aborted) return;
    form = new Form(process, description, context, inputs);
    body.replaceChildren(...form.fields.map((one) => one.node));
    await plan();
  };
  node.addEventListener("input", (event) => { if (event.target !== choose) planSoon(); });
  choose.addEventListener("change", () => open(choose.value, form.inputs()).catch(tell));
  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(typing);
    asking.abort();
    send.disabled = true;
    try {
      const job = await post(form.at, { inputs: form.inputs() });
      location.hash = `#/job/${job.jobID}`;
    } catch (error) {
      refuse(error);
      (node.querySelector("[aria-invalid]") ?? send).focus();
    }
    send.disabled = false;
  });
  signal.addEventListener("abort", () => { clearTimeout(typing); asking.abort(); });
  main.replaceChildren(el("h2", {}, "New job"), el("div", { class: "split" }, node, answer));
  await open(start.process, start.inputs);
}
