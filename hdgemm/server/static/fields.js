// Form fields from the JSON schemas of a process's inputs. A field has a node, a value, and a place
// for the sentence of its error.

import { el } from "./show.js";
import { operandField } from "./operand.js";

const LABELS = {
  a: "A", b: "B", c: "C", alpha: "alpha", beta: "beta", trans_a: "Transpose A", trans_b: "Transpose B", name: "Name",
  priority: "Priority", output: "Result", "output.path": "File (empty: the server keeps the result)",
  "output.overwrite": "Replace an existing file", options: "Advanced options", "options.devices": "Devices",
  "options.host_memory": "Host memory", "options.device_memory": "Device memory", "options.threads": "Threads",
  "options.strategy": "Strategy", "options.tile": "Tile: extents along m, n and k", "options.verify": "Verify the product",
};
const EXAMPLES = { "options.host_memory": "1.5GB", "options.device_memory": "4GB", "options.tile": "512, 512, 1024", "output.path": "c.npy" };
const NOTES = {
  "options.host_memory": "Empty: what the worker has.", "options.device_memory": "Empty: what the device has.",
  "options.tile": "Empty: the planner chooses.", "options.threads": "Empty: all processors.", priority: "Higher ones start first: -100 to 100.",
};
const FIRST = ["a", "b", "c"];
const LAST = ["name", "priority"];

export function label(name) {
  const last = name.split(".").at(-1).replaceAll("_", " ");
  return LABELS[name] ?? last[0].toUpperCase() + last.slice(1);
}

function alternatives(schema) {
  return (schema.anyOf ?? schema.oneOf ?? [schema]).filter((one) => one.type !== "null");
}

const isReference = (schema) => alternatives(schema).some((one) => one.properties?.matrix && one.required?.includes("matrix"));

// Wraps an input with its label and its error; `read` returns its value, undefined for the default.
function field(name, control, read, write, describe = null) {
  const id = `field-${name.replaceAll(".", "-")}`;
  const error = el("p", { class: "failed field-error", id: `${id}-error` });
  control.id = id;
  control.setAttribute("name", name);
  control.setAttribute("aria-describedby", error.id);
  const check = control.type === "checkbox";
  const text = el("label", { for: id }, label(name));
  const node = el("div", { class: check ? "field check" : "field" }, ...(check ? [control, text] : [text, control]),
    describe && el("p", { class: "hint" }, describe), error);
  return { name, node, read, write, fail: (sentence) => {
    error.textContent = sentence ?? "";
    if (sentence) control.setAttribute("aria-invalid", "true"); else control.removeAttribute("aria-invalid");
  } };
}

function textField(name, schema, required, parse, describe) {
  const start = schema.default === null || schema.default === undefined ? "" : `${schema.default}`;
  const control = el("input", { autocomplete: "off", value: start, required, placeholder: EXAMPLES[name] ?? null, maxlength: schema.maxLength });
  const read = () => (control.value.trim() === "" ? undefined : parse(control.value.trim()));
  const write = (value) => { control.value = Array.isArray(value) ? value.join(", ") : `${value ?? ""}`; };
  return field(name, control, read, write, NOTES[name] ?? describe);
}

function checkField(name, schema) {
  const control = el("input", { type: "checkbox", checked: schema.default === true });
  return field(name, control, () => control.checked, (value) => { control.checked = value === true; });
}

// choices: [[value, text], …]
function choiceField(name, choices, start, describe) {
  const control = el("select", {}, ...choices.map(([value, text]) =>
    el("option", { value: JSON.stringify(value), selected: value === start }, text)));
  return field(name, control, () => JSON.parse(control.value), (value) => { control.value = JSON.stringify(value); }, describe);
}

function devicesField(name, schema, devices) {
  const start = [schema.default].flat();
  const auto = alternatives(schema).some((one) => one.const === "auto") ? [["auto", "auto: the best one"]] : [];
  const choices = [...auto, ...devices.map((device) => [device, device])];
  const control = el("select", { multiple: true, size: Math.min(5, choices.length) },
    ...choices.map(([value, text]) => el("option", { value, selected: start.includes(value) }, text)));
  const read = () => {
    const chosen = [...control.selectedOptions].map((one) => one.value).filter((one) => one !== "auto");
    return chosen.length ? chosen : schema.default;
  };
  const select = (wanted) => { for (const option of control.options) option.selected = wanted.includes(option.value); };
  return field(name, control, read, (value) => {
    select([value].flat());
    if (!control.selectedOptions.length) select(start); // of a process that has "auto", to one that has not
  });
}

const number = (text) => { const value = Number(text); return Number.isNaN(value) ? text : value; };
const list = (text) => text.split(/[,×x\s]+/).filter((part) => part).map(number);
const size = (text) => (/^\d+$/.test(text) ? Number(text) : text.replaceAll(" ", ""));

function groupField(name, schema, context) {
  const folded = name === "options";
  const parts = Object.entries(schema.properties).map(([part, inner]) => fieldOf(`${name}.${part}`, inner, false, context)).filter((one) => one);
  const body = el("div", { class: "grid" }, ...parts.map((part) => part.node));
  const node = folded ? el("details", { class: "wide group" }, el("summary", {}, label(name)), body)
    : el("fieldset", { class: "wide group" }, el("legend", {}, label(name)), body);
  const last = (part) => part.name.split(".").at(-1);
  return { name, node, parts, fail: () => {}, open: () => { node.open = true; },
    read: () => Object.fromEntries(parts.map((part) => [last(part), part.read()]).filter(([, value]) => value !== undefined)),
    write: (value) => parts.forEach((part) => { if (value?.[last(part)] !== undefined && value[last(part)] !== null) part.write(value[last(part)]); }) };
}

function fieldOf(name, schema, required, context) {
  if (isReference(schema)) return operandField(name, label(name), required, context);
  const options = alternatives(schema);
  const types = new Set(options.map((one) => one.type));
  const [only] = options;
  if (name.split(".").at(-1) === "devices") return devicesField(name, schema, context.devices);
  if (name === "device") return choiceField(name, [...new Set(["host", ...context.devices])].map((one) => [one, one]), schema.default);
  if (options.length > 1 && types.has("boolean")) {
    const words = options.filter((one) => one.const !== undefined).map((one) => [one.const, `each ${one.const.replace(/s$/, "")} as it is computed`]);
    return choiceField(name, [[false, "no"], [true, "when it is finished"], ...words], schema.default);
  }
  const values = only.enum ?? (only.const !== undefined && schema.default === null ? [only.const] : null);
  if (values) {
    const none = schema.default === null ? [[null, "none"]] : [];
    return choiceField(name, [...none, ...values.map((one) => [one, one])], schema.default, schema.description);
  }
  if (only.const !== undefined) return null;
  if (only.type === "boolean") return checkField(name, schema);
  if (only.type === "object") return only.properties ? groupField(name, only, context) : null;
  if (only.type === "array") return textField(name, schema, required, list, schema.description);
  if (types.has("string")) return textField(name, { ...only, ...schema }, required, types.has("integer") ? size : (text) => text, schema.description);
  return textField(name, schema, required, number, schema.description);
}

// The fields of a process, operands first.
export function fieldsOf(inputs, context) {
  const rank = (name) => (FIRST.includes(name) ? 0 : name === "options" ? 3 : LAST.includes(name) ? 2 : 1);
  return Object.entries(inputs)
    .sort(([a], [b]) => rank(a) - rank(b))
    .map(([name, one]) => fieldOf(name, one.schema, one.minOccurs > 0, context))
    .filter((one) => one);
}
