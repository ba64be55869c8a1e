// Uploaded matrices: upload, use, download, delete.

import { get, remove, save } from "./api.js";
import { confirm } from "./dialogs.js";
import { bytes, clipped, el, repeat, replace, since, seconds, table } from "./show.js";
import { uploadInto } from "./uploads.js";

export async function matrices(signal, _id, _more, { main, tell }) {
  const list = el("div", {});
  const file = el("input", { type: "file", id: "file", accept: ".npy" });
  const progress = el("div", { "aria-live": "polite" });
  const draw = async () => {
    const page = await get("/v1/matrices?limit=200");
    if (signal.aborted) return;
    const total = page.matrices.reduce((sum, one) => sum + one.size, 0);
    const discard = (one) => async () => {
      if (!await confirm(`Delete ${one.name || one.id.slice(0, 8)} (${bytes(one.size)})?`, "Delete it", "Keep it")) return;
      try { await remove(`/v1/matrices/${one.id}`); await draw(); } catch (error) { tell(error); }
    };
    replace(list, el("p", { class: "soft" }, `${page.matrices.length} uploaded, ${bytes(total)} on disk`), page.matrices.length
      ? table("Uploaded matrices", [
        ["Name", (one) => clipped(one.name || one.id.slice(0, 8))],
        ["Shape", (one) => one.shape.join(" × ")],
        ["Type", (one) => one.dtype],
        ["On disk", (one) => bytes(one.size), true],
        ["Age", (one) => seconds(since(one.created)), true],
        ["State", (one) => (one.complete ? "complete" : `${bytes(one.received.reduce((sum, [a, b]) => sum + b - a, 0))} received`)],
        ["Actions", (one) => el("span", { class: "row" },
          one.complete && el("a", { class: "button", href: `#/submit/matrix/${one.id}` }, "Use"),
          one.complete && el("button", { id: `get-${one.id}`, onclick: () => save(`/v1/matrices/${one.id}/content`, `${one.name || one.id}.npy`.replace(/(\.npy)+$/, ".npy")).catch(tell) }, "Download"),
          el("button", { id: `delete-${one.id}`, onclick: discard(one) }, "Delete"))],
      ], page.matrices)
      : el("p", {}, "Jobs can also name files in the server's folders, which need no upload."));
  };
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    if (!chosen) return;
    if (await uploadInto(progress, chosen, signal)) await draw().catch(tell);
    file.value = "";
  });
  main.replaceChildren(el("h2", {}, "Matrices"),
    el("section", { class: "card" }, el("label", { for: "file" }, "Upload a .npy file"), file, progress), list);
  await repeat(draw, 3000, signal, tell);
}
