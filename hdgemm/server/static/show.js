// Small pieces that several views share: elements, numbers, tables, the tile map.

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// While a button of the mouse is down nothing is redrawn: a click on what is replaced is lost.
let pressed = false;
addEventListener("pointerdown", () => { pressed = true; }, true);
for (const end of ["pointerup", "pointercancel", "blur"]) {
  addEventListener(end, () => setTimeout(() => { pressed = false; }), true);
}

export function isPressed() {
  return pressed;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let power = 0;
  while (count >= 1000 && power < units.length - 1) { count /= 1000; power += 1; }
  return `${count >= 100 || power === 0 ? Math.round(count) : count.toFixed(1)} ${units[power]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 100) return `${value.toFixed(1)} s`;
  const minutes = Math.round(value / 60);
  return minutes < 100 ? `${minutes} min` : `${(minutes / 60).toFixed(1)} h`;
}

export function fixed(value, digits = 1) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

export function time(text) {
  return text ? new Date(text).toLocaleString() : "–";
}

// columns: [label, function of a row, is a number]
export function table(caption, columns, rows) {
  const head = el("tr", {}, ...columns.map(([label, , number]) =>
    el("th", { scope: "col", class: number ? "number" : null }, label)));
  const body = rows.map((row) => el("tr", {}, ...columns.map(([label, value, number]) =>
    el("td", { "data-label": label, class: number ? "number" : null }, value(row)))));
  return el("table", { "aria-label": caption },
    el("thead", {}, head), el("tbody", {}, ...body));
}

export function pairs(caption, entries) {
  return table(caption, [["What", (e) => e[0]], ["Value", (e) => e[1]]], entries);
}

export function status(job) {
  return el("span", { class: `status ${job.status}` }, job.status);
}

export function bar(job) {
  const done = job.status === "successful" ? 100 : job.detail?.percent ?? 0;
  return el("progress", { max: 100, value: done, "aria-label": `${Math.floor(done)} percent` });
}

const SVG = "http://www.w3.org/2000/svg";

// The product's work units in their order; the first `done` of them are finished.
export function tileMap(map, done, running) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "tiles");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${done} of ${map.units.length} tiles of C are finished`);
  const wide = Math.max(map.n, 1);
  const high = Math.max(map.m, 1);
  svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  svg.setAttribute("preserveAspectRatio", "none");
  map.units.forEach(([row, col, rows, cols], number) => {
    const rect = document.createElementNS(SVG, "rect");
    rect.setAttribute("x", col);
    rect.setAttribute("y", row);
    rect.setAttribute("width", cols);
    rect.setAttribute("height", rows);
    if (number < done) rect.setAttribute("class", "done");
    else if (number === done && running) rect.setAttribute("class", "now");
    svg.append(rect);
  });
  return svg;
}

export function planTable(plan, needs) {
  const entries = Object.entries(plan ?? {})
    .filter(([, value]) => value !== null && typeof value !== "object" || Array.isArray(value))
    .map(([key, value]) => [key.replaceAll("_", " "),
      key.endsWith("bytes") ? bytes(value) : Array.isArray(value) ? value.join(" × ") : `${value}`]);
  entries.push(["memory held", bytes(needs.host_bytes)], ["disk for the result", bytes(needs.disk_bytes)],
    ["devices", needs.devices.join(", ")]);
  return pairs("Plan", entries);
}
