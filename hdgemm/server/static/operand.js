// The field of an operand: a file of the server, an uploaded matrix, a new upload, or a job's result.

import { chooseFile } from "./dialogs.js";
import { el, title } from "./show.js";
import { uploadInto } from "./uploads.js";

const KINDS = [["path", "File on the server"], ["matrix", "Uploaded matrix"], ["upload", "Upload a file"], ["job", "Result of a job"]];

function options(rows, text) {
  return [el("option", { value: "" }, rows.length ? "choose …" : "there is none"), ...rows.map(([value, name]) => el("option", { value }, name)), text]
    .filter((one) => one);
}

export function operandField(name, text, required, context) {
  const id = `field-${name}`;
  const label = (what) => `${text}: ${what}`;
  const kind = el("select", { id: `${id}-kind`, "aria-label": label("where it is") }, ...KINDS.map(([value, words]) => el("option", { value }, words)));
  const path = el("input", { id, name, autocomplete: "off", placeholder: `${name}.npy`, "aria-label": label("path on the server") });
  const browse = el("button", { type: "button", id: `${id}-browse` }, "Browse …");
  const matrix = el("select", { id: `${id}-matrix`, "aria-label": label("uploaded matrix") }, ...options(context.matrices.map((one) =>
    [one.id, `${one.name || one.id.slice(0, 8)} (${one.shape.join(" × ")} ${one.dtype})`])));
  const job = el("select", { id: `${id}-job`, "aria-label": label("job") }, ...options(context.jobs.map((one) =>
    [one.jobID, `${title(one)} (${one.output.shape.join(" × ")})`])));
  const file = el("input", { type: "file", accept: ".npy", id: `${id}-file`, "aria-label": label("file to upload") });
  const progress = el("div", { "aria-live": "polite" });
  const error = el("p", { class: "failed field-error", id: `${id}-error` });
  const controls = { path: [path, browse], matrix: [matrix], upload: [file, progress], job: [job] };
  const rows = Object.entries(controls).map(([value, nodes]) => [value, el("div", { class: value === "upload" ? "" : "row source" }, ...nodes)]);
  const node = el("fieldset", { class: "operand" }, el("legend", {}, required ? text : `${text} (optional)`), kind, ...rows.map(([, row]) => row), error);
  let uploaded = null;

  // Of a path that is longer than its field, the end tells files apart.
  const showEnd = () => { path.title = path.value; path.scrollLeft = path.scrollWidth; };
  path.addEventListener("change", showEnd);
  path.addEventListener("blur", showEnd);
  const show = () => rows.forEach(([value, row]) => { row.hidden = value !== kind.value; });
  const changed = () => node.dispatchEvent(new Event("input", { bubbles: true }));
  const fail = (sentence) => {
    error.textContent = sentence ?? "";
    for (const control of [path, matrix, file, job]) {
      control.setAttribute("aria-describedby", error.id);
      if (sentence) control.setAttribute("aria-invalid", "true"); else control.removeAttribute("aria-invalid");
    }
  };
  kind.addEventListener("change", show);
  browse.addEventListener("click", async () => {
    const chosen = await chooseFile();
    browse.focus();
    if (chosen !== null) { path.value = chosen; showEnd(); changed(); }
  });
  file.addEventListener("change", async () => {
    uploaded = null;
    fail(null);
    const [chosen] = file.files;
    if (!chosen) return;
    const made = await uploadInto(progress, chosen, context.signal);
    if (made) {
      uploaded = made.id;
      changed();
    }
  });
  show();

  const values = { path: () => path.value.trim(), matrix: () => matrix.value, upload: () => uploaded, job: () => job.value };
  return { name, node, fail, required,
    read: () => {
      const value = values[kind.value]();
      return value ? { [kind.value === "upload" ? "matrix" : kind.value]: value } : undefined;
    },
    write: (reference) => {
      const [[source, value]] = Object.entries(reference);
      const target = { path, matrix, job }[source];
      if (target !== path && ![...target.options].some((one) => one.value === value)) target.append(el("option", { value }, value.slice(0, 8)));
      kind.value = source;
      target.value = value;
      show();
      setTimeout(showEnd);  // once it is in the page
    } };
}
