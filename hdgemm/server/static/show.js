// Elements, numbers and tables that all views share.

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// While a mouse button is down nothing is redrawn: a click on a replaced element is lost.
let pressed = false;
addEventListener("pointerdown", () => { pressed = true; }, true);
for (const end of ["pointerup", "pointercancel", "blur"]) {
  addEventListener(end, () => setTimeout(() => { pressed = false; }), true);
}

export function isPressed() {
  return pressed;
}

// Replaces the children of a node that changed, so that a selection in the others stays; the focus
// stays on the element with the same id or link.
export function replace(node, ...children) {
  const focused = node.contains(document.activeElement) ? document.activeElement : null;
  const id = focused?.id;
  const href = focused?.getAttribute("href");
  const wanted = children.flat().filter((child) => child);
  const shown = [...node.childNodes];
  if (shown.length === wanted.length) {
    wanted.forEach((child, place) => { if (!shown[place].isEqualNode(child)) shown[place].replaceWith(child); });
  } else node.replaceChildren(...wanted);
  if (focused?.isConnected) return;
  if (id) document.getElementById(id)?.focus();
  else if (href) node.querySelector(`[href="${CSS.escape(href)}"]`)?.focus();
}

// Draws now and every `period` milliseconds while the view is open and visible.
export function repeat(draw, period, signal, tell) {
  const turn = async () => {
    if (signal.aborted) return;
    if (!document.hidden && !isPressed()) {
      try { await draw(); tell(""); } catch (error) { if (!signal.aborted) tell(error); }
    }
    setTimeout(turn, period);
  };
  return turn();
}

// Returns a function that calls `work` once, `delay` milliseconds after the first of several calls.
export function once(work, delay) {
  let pending = null;
  return () => { pending ??= setTimeout(() => { pending = null; work(); }, delay); };
}

// Statuses of jobs that have ended.
export const OVER = new Set(["successful", "failed", "dismissed"]);

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let power = 0;
  while (count >= 1000 && power < units.length - 1) { count /= 1000; power += 1; }
  return `${count >= 100 || power === 0 ? Math.round(count) : count.toFixed(1)} ${units[power]}`;
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value > 0 && value < 0.0995) return `${Number((1000 * value).toPrecision(2))} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 100) return `${Math.round(value)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(minutes / 1440)} days`;
}

// The estimated start of a job; workers look for jobs every half second.
export function about(value) {
  return value < 1 ? "within a second" : `in about ${seconds(value)}`;
}

export function fixed(value, digits = 1) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

// A rate with two digits where it is small: what moved is never shown as 0.0.
export function rate(value) {
  if (!value) return "–";
  return value < 0.95 ? String(Number(value.toPrecision(2))) : fixed(value);
}

export function percent(share) {
  return `${Math.round(100 * share)} %`;
}

export function time(text) {
  return text ? new Date(text).toLocaleString([], { dateStyle: "short", timeStyle: "medium" }) : "–";
}

// Seconds from an ISO time until now or until another one.
export function since(text, until = null) {
  return text ? ((until ? Date.parse(until) : Date.now()) - Date.parse(text)) / 1000 : null;
}

export function shape(info) {
  const plan = info.plan ?? {};
  const extents = plan.m === undefined ? info.output?.shape ?? [] : [plan.m, plan.n, plan.k];
  return extents.filter((extent) => extent !== undefined).join(" × ") || "–";
}

const PROCESSES = {
  gemm: "Multiply", cholesky: "Cholesky", lu: "LU", qr: "QR", solve: "Solve", lstsq: "Least squares",
  syrk: "Symmetric product", topk: "Largest entries", verify: "Verify", profile: "Profile", linpack: "LINPACK",
  svdvals: "Singular values", svd: "SVD", svds: "Largest singular values", eigsh: "Eigenvectors", pca: "PCA", cov: "Covariance",
  corrcoef: "Correlation", norm: "Norm", inv: "Inverse", det: "Determinant", slogdet: "Log-determinant", trsm: "Triangular solve", pinv: "Pseudo-inverse", ridge: "Ridge regression",
};

export function processName(id) {
  return PROCESSES[id] ?? id;
}

const fileName = (path) => path.split("/").at(-1);

// A path, which a narrow column breaks between its folders.
export function path(text) {
  return el("span", {}, ...text.split(/(?<=\/)/).flatMap((part) => [part, el("wbr")]));
}

// A name of up to 200 characters; a wide screen shows its beginning.
export function clipped(text, href = null) {
  return el(href ? "a" : "span", { class: "clipped", href, title: text }, text);
}

// Names of uploaded matrices by their ids, by which jobs refer to them.
const uploads = new Map();

export function noteUploads(matrices) {
  for (const one of matrices) if (one.name) uploads.set(one.id, one.name);
}

export function referenceName(reference) {
  return reference?.path ? fileName(reference.path) : uploads.get(reference?.matrix) ?? null;
}

// A job's name; without one, its process with the names of its files, and where it has none, its id.
export function title(info) {
  if (info.name) return info.name;
  if (info.output?.path) return fileName(info.output.path);
  const files = ["a", "b", "c"].map((name) => referenceName(info.inputs?.[name])).filter((name) => name);
  return `${processName(info.processID)} ${files.length ? files.join(", ") : (info.jobID ?? "").slice(0, 8)}`;
}

// Numbers of a list that the page shows; the report has all.
const MOST_VALUES = 6;

export function valueText(value) {
  if (!Array.isArray(value)) return typeof value === "number" ? `${Number(value.toPrecision(6))}` : `${value}`;
  const flat = value.flat();
  return [...flat.slice(0, MOST_VALUES).map(valueText), ...(flat.length > MOST_VALUES ? ["…"] : [])].join(", ");
}

// columns: [label, function of a row, is a number]
export function table(caption, columns, rows) {
  const head = el("tr", {}, ...columns.map(([label, , number]) =>
    el("th", { scope: "col", class: number ? "number" : null }, label)));
  // A phone leaves out what says nothing: no value yet, the usual priority.
  const cell = (label, value, number) => {
    const classes = [number && "number", (value === "–" || value === "0") && "none"].filter((one) => one);
    return el("td", { "data-label": label, class: classes.join(" ") || null }, value);
  };
  const body = rows.map((row) => el("tr", {}, ...columns.map(([label, value, number]) => cell(label, value(row), number))));
  return el("table", { "aria-label": caption },
    el("thead", {}, head), el("tbody", {}, ...body));
}

// A list of names and values; entries without a value are left out.
export function facts(entries) {
  return el("dl", { class: "facts" }, ...entries
    .filter((entry) => entry && entry[1] !== null && entry[1] !== undefined)
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

export function card(heading, ...children) {
  return el("section", { class: "card" }, el("h3", {}, heading), ...children);
}

export function status(job) {
  return el("span", { class: `status ${job.status}` }, job.status);
}

export function bar(done, label) {
  return el("progress", { max: 100, value: done, "aria-label": label ?? `${Math.floor(done)} percent` });
}

export function donePercent(job) {
  return job.status === "successful" ? 100 : job.detail?.percent ?? 0;
}

const PLAN = [
  ["Expected time", (plan) => plan.expected_seconds && seconds(plan.expected_seconds)],
  ["Limited by", (plan) => plan.expected_limit],
  ["Shape", (plan) => plan.m !== undefined && [plan.m, plan.n, plan.k].filter((x) => x !== undefined).join(" × ")],
  ["Type", (plan) => plan.dtype],
  ["Device", (plan) => plan.device],
  ["Strategy", (plan) => plan.strategy],
  ["Tile", (plan) => plan.tile?.join(" × ")],
  ["Tiles of C", (plan) => plan.units],
  ["Steps", (plan) => plan.steps],
  ["Slabs", (plan) => plan.slabs && `${plan.slabs} of ${plan.slab_columns} columns`],
];

export function planFacts(plan, needs) {
  return facts([
    ...PLAN.map(([name, value]) => [name, value(plan ?? {}) || null]).map(([name, value]) =>
      [name, value === null ? null : `${value}`]),
    ["Memory held", bytes(needs.host_bytes)],
    ["Disk space", needs.disk_bytes ? bytes(needs.disk_bytes) : null],
    ["Devices", needs.devices.join(", ")],
  ]);
}
