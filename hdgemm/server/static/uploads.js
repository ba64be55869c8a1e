// Uploads of .npy files in parts, with progress.

import { post, request } from "./api.js";
import { bar, el } from "./show.js";

const PART = 8 << 20;
const HEADER = 1 << 16;
const TYPES = { "<f8": "float64", "<f4": "float32", "<c16": "complex128", "<c8": "complex64" };

// Reads shape, type and order of a .npy file from its header.
async function readHeader(file) {
  const head = new Uint8Array(await file.slice(0, HEADER).arrayBuffer());
  const text = new TextDecoder("latin1").decode(head);
  if (head[0] !== 0x93 || text.slice(1, 6) !== "NUMPY") throw new Error(`${file.name} is not a .npy file`);
  const shape = /'shape':\s*\((\d+),\s*(\d+),?\s*\)/.exec(text);
  const type = /'descr':\s*'([^']+)'/.exec(text);
  if (!shape) throw new Error(`${file.name} must hold a matrix of two dimensions`);
  const dtype = TYPES[type?.[1]];
  if (!dtype) throw new Error(`${file.name} holds ${type?.[1]}; allowed are ${Object.values(TYPES).join(", ")}`);
  return { shape: [Number(shape[1]), Number(shape[2])], dtype, order: /'fortran_order':\s*True/.test(text) ? "F" : "C" };
}

// Uploads a file; calls onProgress(percent); resolves to the matrix's document.
async function upload(file, onProgress, signal) {
  const header = await readHeader(file);
  const name = file.name.replace(/[^ -~]/g, "_").slice(0, 200);
  const matrix = await post("/v1/matrices", { ...header, name, format: "npy", size: file.size });
  const at = `/v1/matrices/${matrix.id}`;
  for (let start = 0; start < file.size; start += PART) {
    const stop = Math.min(start + PART, file.size);
    await request(`${at}/content`, { method: "PUT", body: file.slice(start, stop), signal,
      headers: { "Content-Range": `bytes ${start}-${stop - 1}/${file.size}`,
        "Content-Type": "application/octet-stream" } });
    onProgress((100 * stop) / file.size);
  }
  return post(`${at}/complete`);
}

// Uploads a file and shows its progress in `host`; resolves to the matrix's document, or to null where it failed.
export async function uploadInto(host, file, signal) {
  const shown = bar(0, `Upload of ${file.name}`);
  host.replaceChildren(shown);
  try {
    const matrix = await upload(file, (done) => { shown.value = done; }, signal);
    host.replaceChildren(`${matrix.name} is uploaded: ${matrix.shape.join(" × ")} ${matrix.dtype}.`);
    return matrix;
  } catch (error) {
    host.replaceChildren(el("p", { class: "failed" }, error.message));
    return null;
  }
}
