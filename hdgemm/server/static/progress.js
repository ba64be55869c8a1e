// Throughput and load of the stages over time, from a job's progress events or its history.

import { lineChart, loadStrip } from "./charts.js";
import { rate } from "./show.js";

const MOST = 120;

// Points: {elapsed, percent, gflops, busy: {"DEVICE STAGE": seconds}}; gflops is the mean so far.
export class ProgressChart {
  #points = [];

  add(point) {
    if (point.elapsed === undefined || point.phase === "calibrating") return;
    if (point.elapsed < (this.#points.at(-1)?.elapsed ?? 0)) this.#points = [];
    if (!this.#points.length) this.#points.push({ elapsed: 0, gflops: 0, busy: {} });
    this.#points.push(point);
  }

  get empty() {
    return this.#points.length < 2;
  }

  // Whether the points tell a speed: a short job ends before its first operations are counted.
  get hasSpeed() {
    return this.#points.some((point) => point.gflops > 0);
  }

  // At most MOST intervals: [from, to] points.
  #intervals() {
    const every = Math.max(1, Math.ceil(this.#points.length / MOST));
    const kept = this.#points.filter((_, number) => number % every === 0 || number === this.#points.length - 1);
    return kept.slice(1).map((point, number) => [kept[number], point]).filter(([a, b]) => b.elapsed > a.elapsed);
  }

  throughput(host) {
    const points = this.#intervals().map(([a, b]) => [b.elapsed,
      Math.max(0, (b.gflops * b.elapsed - a.gflops * a.elapsed) / (b.elapsed - a.elapsed))]);
    if (!points.length) return;
    points.unshift([this.#points[0].elapsed, points[0][1]]);
    lineChart(host, { label: `Throughput over time, last ${rate(points.at(-1)[1])} GFLOP/s`, unit: "GFLOP/s",
      series: [{ name: "throughput", points }], from: 0, to: this.#points.at(-1).elapsed });
  }

  // Whether the points tell how long each stage was busy.
  get hasStages() {
    return Object.keys(this.#points.at(-1)?.busy ?? {}).length > 0;
  }

  stages(host) {
    const names = Object.keys(this.#points.at(-1).busy);
    const devices = new Set(names.map((name) => name.split(" ")[0]));
    const rows = names.map((name) => ({
      name: devices.size > 1 ? name : name.split(" ")[1],
      loads: this.#intervals().map(([a, b]) => [a.elapsed, b.elapsed,
        Math.max(0, ((b.busy?.[name] ?? 0) - (a.busy?.[name] ?? 0)) / (b.elapsed - a.elapsed))]),
    }));
    loadStrip(host, { label: "Load of each stage over time, from idle to busy", rows, from: 0, to: this.#points.at(-1).elapsed });
  }
}
