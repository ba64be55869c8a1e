// Charts as SVG: lines with axes, a strip of loads, the map of C's tiles. Colours are classes of the
// style sheet, and cividis for loads.

const SVG = "http://www.w3.org/2000/svg";
const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369",
  "#e1cc55", "#fee838"];
const LEFT = 52;
const BOTTOM = 26;

function draw(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function picture(width, height, label, name) {
  return draw("svg", { class: name, role: "img", "aria-label": label, viewBox: `0 0 ${width} ${height}`,
    width, height });
}

// Round steps (1, 2 or 5 times a power of ten) from 0 to at least `most`.
function ticks(most, count, least = 0) {
  const raw = Math.max(least, (most || 1) / count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  return Array.from({ length: Math.ceil((most || 1) / step - 1e-9) + 1 }, (_, number) => number * step);
}

// At most six characters or so: more would not fit left of an axis.
function short(value) {
  const rounded = Number(value.toPrecision(4));
  return rounded && (rounded < 1e-3 || rounded >= 1e6) ? rounded.toExponential().replace("e+", "e") : String(rounded);
}

// The marks of a time axis: `step` seconds are its unit, and marks count from `origin`.
function timeMarks(from, to, origin, step, width) {
  const found = ticks((to - from) / step, Math.max(2, Math.floor(width / 110)), step > 1 ? 1 : 0).map((mark) => mark * step);
  return found.filter((mark) => mark <= (to - from) * 1.001).map((mark) => (origin === to ? to - mark : from + mark));
}

const inSeconds = (value) => `${short(value)} s`;

// Lines over time. series: [{name, points: [[x, y], …]}]; x in seconds, from `from` to `to`; marks of y
// are at least `least` apart.
export function lineChart(host, { label, unit, series, from, to, top, least = 0, origin = from, step = 1, xText = inSeconds }) {
  const width = Math.max(280, host.clientWidth || 600);
  const height = 180;
  const svg = picture(width, height, label, "chart");
  const marks = ticks(top ?? Math.max(...series.flatMap((one) => one.points.map(([, y]) => y)), 0), 4, least);
  const most = marks.at(-1);
  const x = (value) => LEFT + ((width - LEFT - 8) * (value - from)) / (to - from || 1);
  const y = (value) => height - BOTTOM - ((height - BOTTOM - 28) * value) / most;
  for (const mark of marks) {
    svg.append(draw("line", { class: "grid", x1: LEFT, x2: width - 8, y1: y(mark), y2: y(mark) }),
      draw("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, short(mark)));
  }
  for (const mark of timeMarks(from, to, origin, step, width)) {
    const anchor = x(mark) > width - 40 ? "end" : "middle";
    svg.append(draw("text", { x: x(mark), y: height - 8, "text-anchor": anchor }, xText(mark)));
  }
  svg.append(draw("text", { x: 2, y: 12 }, unit));
  series.forEach((one, number) => {
    const points = one.points.map(([a, b]) => `${x(a).toFixed(1)},${y(Math.min(b, most)).toFixed(1)}`);
    svg.append(draw("polyline", { class: `line colour-${number % 7}`, points: points.join(" ") }));
  });
  host.replaceChildren(svg, ...(series.length > 1 ? [legend(series.map((one) => one.name))] : []));
}

// Names with the class of each colour; by default the colours in their order.
export function legend(names, classes = names.map((_, number) => `fill colour-${number % 7}`)) {
  const list = document.createElement("ul");
  list.className = "legend";
  names.forEach((name, number) => {
    const item = document.createElement("li");
    const swatch = draw("svg", { class: "tiles swatch", width: 12, height: 12, "aria-hidden": "true" });
    swatch.append(draw("rect", { class: classes[number], width: 12, height: 12, rx: 2 }));
    item.append(swatch, ` ${name}`);
    list.append(item);
  });
  return list;
}

function cividis(share) {
  const place = Math.min(1, Math.max(0, share)) * (CIVIDIS.length - 1);
  const low = Math.floor(place);
  const [a, b] = [CIVIDIS[low], CIVIDIS[Math.min(low + 1, CIVIDIS.length - 1)]];
  const mixed = [1, 3, 5].map((at) => {
    const [from, to] = [a, b].map((text) => parseInt(text.slice(at, at + 2), 16));
    return Math.round(from + (to - from) * (place - low));
  });
  return `rgb(${mixed.join(",")})`;
}

// One row of boxes for each name over time. rows: [{name, boxes: [[from, to, attributes], …]}], in seconds;
// `below` is the height left under the time axis.
function boxChart(host, { label, rows, from, to, below = 0 }) {
  const width = Math.max(280, host.clientWidth || 600);
  const left = 8 + 7 * Math.max(6, ...rows.map((row) => row.name.length));
  const svg = picture(width, rows.length * 24 + 22 + below, label, "chart");
  const x = (value) => left + ((width - left - 8) * (value - from)) / (to - from || 1);
  rows.forEach((row, number) => {
    svg.append(draw("text", { x: left - 6, y: number * 24 + 16, "text-anchor": "end" }, row.name));
    for (const [start, end, attributes] of row.boxes) {
      svg.append(draw("rect", { x: x(start), y: number * 24 + 2, height: 20, width: Math.max(0.5, x(end) - x(start)), ...attributes }));
    }
  });
  for (const mark of timeMarks(from, to, from, 1, width - left)) {
    const anchor = x(mark) > width - 40 ? "end" : "middle";
    svg.append(draw("text", { x: x(mark), y: rows.length * 24 + 16, "text-anchor": anchor }, inSeconds(mark)));
  }
  host.replaceChildren(svg);
  return { svg, left };
}

// Rows of loads over time. rows: [{name, loads: [[from, to, load from 0 to 1], …]}], in seconds.
export function loadStrip(host, { label, rows, from, to }) {
  const boxes = rows.map(({ name, loads }) => ({ name, boxes: loads.map(([start, end, load]) => [start, end, { fill: cividis(load) }]) }));
  const { svg, left } = boxChart(host, { label, rows: boxes, from, to, below: 24 });
  const scale = rows.length * 24 + 26;
  for (let number = 0; number < 20; number += 1) {
    svg.append(draw("rect", { x: left + 34 + 5 * number, y: scale, width: 5.3, height: 12, fill: cividis(number / 19) }));
  }
  svg.append(draw("text", { x: left, y: scale + 11 }, "idle"), draw("text", { x: left + 140, y: scale + 11 }, "busy"));
}

const LIVE_SECONDS = 30;

// The last operations of each stage. lanes: {"DEVICE STAGE": [[start, end, work unit], …]}, the last `most` of each.
export function ganttChart(host, { lanes, most }) {
  const names = Object.keys(lanes);
  const several = new Set(names.map((name) => name.split(" ")[0])).size > 1;
  const to = Math.max(...Object.values(lanes).map((operations) => operations.at(-1)[1]));
  // Before the first operation kept of a full row nothing is known of that row.
  const known = Object.values(lanes).filter((operations) => operations.length === most).map((operations) => operations[0][0]);
  const from = Math.max(0, to - LIVE_SECONDS, ...known);
  const rows = names.map((name) => ({ name: several ? name : name.split(" ").at(-1),
    boxes: lanes[name].filter(([, end]) => end > from).map(([start, end, unit]) =>
      [Math.max(start, from), end, { class: `fill colour-${unit % 2 ? 4 : 0}` }]) }));
  boxChart(host, { label: `Gantt chart of the last ${short(to - from)} seconds`, rows, from, to });
}

// Tiles of C, an m×n matrix. tiles: [[row, column, rows, columns, class name], …].
export function tileMap({ m, n, tiles, label }) {
  const svg = draw("svg", { class: "tiles", role: "img", "aria-label": label,
    viewBox: `0 0 ${Math.max(n, 1)} ${Math.max(m, 1)}`, preserveAspectRatio: "none" });
  for (const [row, col, rows, cols, name] of tiles) {
    svg.append(draw("rect", { class: name, x: col, y: row, width: cols, height: rows }));
  }
  return svg;
}
