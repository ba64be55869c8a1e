// Questions in a dialog: a confirmation, and a choice of a file in the server's folders.

import { get } from "./api.js";
import { bytes, el } from "./show.js";

// Opens a dialog of its own for each question, and calls `onClose` with it when it was closed.
function open(heading, onClose, ...children) {
  const dialog = el("dialog", { id: "question", "aria-labelledby": "question-title" },
    el("h2", { id: "question-title" }, heading), ...children);
  dialog.addEventListener("close", () => { dialog.remove(); onClose(dialog); });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// Resolves to true where the person chose `yes`.
export function confirm(question, yes, no) {
  const form = el("form", { method: "dialog", class: "row" },
    el("button", { value: "no", id: "keep" }, no), el("button", { value: "yes", class: "danger", id: "confirm" }, yes));
  return new Promise((resolve) => {
    open(question, (dialog) => resolve(dialog.returnValue === "yes"), form);
  });
}

// Resolves to the path of a .npy file, or to null.
export function chooseFile() {
  return new Promise((resolve) => {
    let chosen = null;
    const body = el("div", { class: "files", id: "files" });
    const show = async (path) => {
      const query = path === null ? "" : `?path=${encodeURIComponent(path)}`;
      let folder;
      try { folder = await get(`/v1/folders${query}`); } catch (error) {
        body.replaceChildren(el("p", { class: "failed" }, error.message));
        return;
      }
      const pick = (file) => () => { chosen = file.path; dialog.close(); };
      body.replaceChildren(
        el("p", { class: "soft" }, folder.path ?? "Folders that jobs may read"),
        el("ul", {},
          path !== null && el("li", {}, el("button", { type: "button", onclick: () => show(folder.parent) }, "↑ Up")),
          ...folder.folders.map((name) => el("li", {},
            el("button", { type: "button", onclick: () => show(name) }, `${name.split("/").at(-1)}/`))),
          ...folder.files.map((file) => el("li", {},
            el("button", { type: "button", disabled: file.shape === null, onclick: pick(file) }, file.name),
            el("span", { class: "soft" }, file.shape === null ? " no matrix"
              : ` ${file.shape.join(" × ")} ${file.dtype}, ${bytes(file.size)}`)))),
        !folder.folders.length && !folder.files.length && el("p", {}, path === null
          ? "The server has no folder for jobs: start it with --root." : "There is no .npy file here."),
        !folder.complete && el("p", {}, "The folder has more entries; type the path instead."),
      );
      body.querySelector("button")?.focus();
    };
    const dialog = open("Choose a matrix", () => resolve(chosen), body,
      el("form", { method: "dialog" }, el("button", {}, "Close")));
    show(null);
  });
}
