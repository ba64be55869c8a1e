// The form: a plan first, then the job.

import { post } from "./api.js";
import { el, planTable } from "./show.js";

const KINDS = [["path", "File on the server"], ["matrix", "Uploaded matrix"], ["job", "Result of job"]];

function reference(name, required) {
  return el("fieldset", {}, el("legend", {}, name.toUpperCase() + (required ? "" : " (if beta ≠ 0)")),
    el("select", { name: `${name}-kind`, "aria-label": `What ${name} is` },
      ...KINDS.map(([value, label]) => el("option", { value }, label))),
    el("input", { name, required, "aria-label": `${name}: path or id`, placeholder: "a.npy", autocomplete: "off" }));
}

function labelled(label, name, attributes = {}) {
  return el("label", {}, label, el("input", { name, autocomplete: "off", ...attributes }));
}

function check(label, name) {
  return el("label", { class: "check" }, el("input", { type: "checkbox", name }), label);
}

function inputs(form) {
  const data = new FormData(form);
  const text = (name) => data.get(name).trim();
  const result = {
    a: { [data.get("a-kind")]: text("a") }, b: { [data.get("b-kind")]: text("b") },
    alpha: Number(text("alpha")), beta: Number(text("beta")),
    trans_a: data.has("trans_a"), trans_b: data.has("trans_b"),
    name: text("name"), priority: Number(text("priority")), options: { verify: data.has("verify") },
  };
  if (text("c")) result.c = { [data.get("c-kind")]: text("c") };
  if (text("output")) result.output = { path: text("output"), overwrite: data.has("overwrite") };
  if (text("memory")) result.options.host_memory = text("memory");
  if (text("device")) result.options.devices = [text("device")];
  return result;
}

export async function submit(signal, _id, { main, tell }) {
  const answer = el("div", { "aria-live": "polite" });
  const send = el("button", { class: "primary", id: "send", disabled: true, type: "button" }, "Submit");
  const form = el("form", { class: "grid", id: "submit" },
    reference("a", true), reference("b", true), reference("c", false),
    labelled("alpha", "alpha", { value: "1", inputmode: "decimal", required: true }),
    labelled("beta", "beta", { value: "0", inputmode: "decimal", required: true }),
    labelled("Name", "name", { maxlength: 200 }),
    labelled("Priority (-100 to 100)", "priority", { type: "number", value: 0, min: -100, max: 100 }),
    labelled("Result's file (empty: kept by the server)", "output", { placeholder: "c.npy" }),
    labelled("Memory", "memory", { placeholder: "1.5GB" }),
    labelled("Device", "device", { placeholder: "auto" }),
    el("div", { class: "row wide" }, check("Transpose A", "trans_a"), check("Transpose B", "trans_b"),
      check("Replace an existing file", "overwrite"), check("Verify the product", "verify")),
    el("div", { class: "row wide" }, el("button", { id: "plan" }, "Show the plan"), send));

  form.addEventListener("input", () => { send.disabled = true; });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    tell("");
    try {
      const body = { inputs: inputs(form), dry_run: true };
      const planned = await post("/v1/processes/gemm/execution", body);
      answer.replaceChildren(el("h3", {}, "The plan"), planTable(planned.plan, planned.needs));
      send.disabled = false;
    } catch (error) {
      answer.replaceChildren(el("p", { class: "failed" }, error.message));
    }
  });
  send.addEventListener("click", async () => {
    send.disabled = true;
    try {
      const job = await post("/v1/processes/gemm/execution", { inputs: inputs(form) });
      location.hash = `#/job/${job.jobID}`;
    } catch (error) {
      answer.replaceChildren(el("p", { class: "failed" }, error.message));
    }
  });
  main.replaceChildren(el("h2", {}, "C := alpha·op(A)·op(B) + beta·C"), form, answer);
  if (!signal.aborted) form.elements.a.focus();
}
