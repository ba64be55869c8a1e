// The machines that run jobs: queue and throughput of the last day, the workers, what each runs, its load.

import { get } from "./api.js";
import { lineChart } from "./charts.js";
import { bar, bytes, card, el, facts, fixed, processName, rate, repeat, replace, seconds, since, title } from "./show.js";

const HOUR = 3600;
const DAY = 24 * HOUR;

function charts(series) {
  const last = series.taken.at(-1);
  const points = (values, scale = 1) => values.map((value, number) => [series.taken[number] - last, value * scale]);
  const minutes = (value) => (Math.round(value / 60) === 0 ? "now" : `${Math.round(value / 60)} min`);
  const shared = { from: Math.max(-HOUR, Math.min(-60, series.taken[0] - last)), to: 0, origin: 0, step: 60, xText: minutes };
  const GB = 1e-9;
  return [
    ["Processors", { ...shared, label: `Load of the processors, now ${fixed(series.cpu.at(-1), 0)} percent`, unit: "%", top: 100,
      series: [{ name: "processors", points: points(series.cpu) }] }],
    ["Devices", { ...shared, label: "Share of the time in which a job held each device", unit: "% held by jobs", top: 100,
      series: Object.entries(series.devices).map(([name, loads]) => ({ name, points: points(loads, 100) })) }],
    ["Memory", { ...shared, label: `Memory in use, now ${bytes(series.memory_used.at(-1))}`, unit: "GB in use", top: series.memory_total.at(-1) * GB,
      series: [{ name: "memory", points: points(series.memory_used, GB) }] }],
    ["Disk", { ...shared, label: `Disk in use, now ${bytes(series.disk_used.at(-1))}`, unit: "GB in use", top: series.disk_total.at(-1) * GB,
      series: [{ name: "disk", points: points(series.disk_used, GB) }] }],
  ];
}

// Queue and throughput of all jobs over the last day.
function dayCard(day) {
  const points = (values) => values.map((value, number) => [day.at[number], value]);
  const hours = (value) => (value === 0 ? "now" : `${Math.round(value / HOUR)} h`);
  const shared = { from: -DAY, to: 0, origin: 0, step: HOUR, xText: hours };
  const total = day.finished.reduce((sum, count) => sum + count, 0);
  const pictures = [
    ["Throughput", { ...shared, label: `Throughput of all jobs over the last day, at most ${rate(Math.max(...day.gflops))} GFLOP/s`,
      unit: "GFLOP/s", least: 0.1, series: [{ name: "throughput", points: points(day.gflops) }] }],
    ["Queue", { ...shared, label: `Jobs over the last day: at most ${Math.max(...day.waiting)} waited, ${Math.max(...day.running)} ran`,
      unit: "jobs", least: 1, series: [{ name: "waiting", points: points(day.waiting) }, { name: "running", points: points(day.running) }] }],
  ];
  const drawn = pictures.map(([heading, options]) => {
    const host = el("div", {});
    return [el("figure", {}, el("figcaption", {}, heading), host), () => lineChart(host, options)];
  });
  return [card("Last day", el("p", { class: "soft" }, `${total} ${total === 1 ? "job" : "jobs"} finished`), el("div", { class: "charts" }, ...drawn.map(([figure]) => figure))),
    () => drawn.forEach(([, drawOne]) => drawOne())];
}

function workerCard(worker, running, series) {
  const mine = running.filter((one) => one.worker === worker.id);
  const grid = el("div", { class: "charts" });
  const held = mine.reduce((sum, one) => sum + one.host_bytes, 0);
  const node = card(`${worker.host}: ${worker.devices.join(", ")}`,
    facts([
      ["Runs", mine.length ? el("span", {}, ...mine.map((one) => el("div", {},
        one.mine ? el("a", { href: `#/job/${one.jobID}` }, title(one)) : `a job of ${one.owner}`,
        `${one.mine && !one.name ? "" : `, ${processName(one.processID)}`}, ${Math.floor(one.percent)} %${one.eta === null ? "" : `, ${seconds(one.eta)} left`}`))) : "nothing"],
      ["Memory for jobs", `${bytes(held)} of ${bytes(worker.memory)} held`],
      ["Up for", seconds(since(worker.started))],
      ["Last seen", `${seconds(worker.seconds_since_seen)} ago`],
    ]), grid);
  if (!series || series.taken.length < 2) {
    grid.append(el("p", { class: "soft" }, "Load is shown after two samples, which are taken every 15 seconds."));
    return [node, () => {}];
  }
  const drawn = charts(series).map(([heading, options]) => {
    const host = el("div", {});
    grid.append(el("figure", {}, el("figcaption", {}, heading), host));
    return () => lineChart(host, options);
  });
  return [node, () => drawn.forEach((one) => one())];
}

export async function machine(signal, _id, _more, { main, tell }) {
  await repeat(async () => {
    const [system, landing, queue, load, day] = await Promise.all([get("/v1/system"), get("/v1"), get("/v1/queue?limit=0"),
      get("/v1/system/load"), get("/v1/system/activity")]);
    if (signal.aborted) return;
    const { disk, account } = system;
    const cards = system.workers.map((worker) => workerCard(worker, queue.running, load.workers[worker.id]));
    const [ofDay, drawDay] = dayCard(day);
    replace(main,
      el("h2", {}, "Machine"),
      el("p", { class: "summary" }, `${queue.running.length} running and ${queue.waiting_of_all} waiting jobs of all tokens`),
      cards.length ? cards.map(([node]) => node) : el("p", { class: "card" }, "No worker is running: jobs wait until one is started."),
      ofDay,
      card("Disk of the service", bar((100 * disk.used) / disk.total, "Disk in use"),
        el("p", { class: "soft" }, `${bytes(disk.used)} used, ${bytes(disk.free)} free`)),
      card("Folders whose files jobs may name", landing.roots.length
        ? el("ul", {}, ...landing.roots.map((root) => el("li", {}, root)))
        : el("p", {}, "None: start the server with --root.")),
      card("Your account", facts([
        ["Name", account.name],
        ["Unfinished jobs", `${account.unfinished_jobs} (${account.max_jobs === null ? "no limit" : `at most ${account.max_jobs}`})`],
        ["Quota", account.max_bytes === null ? "no limit" : `at most ${bytes(account.max_bytes)}`],
      ])));
    drawDay();
    for (const [, drawCharts] of cards) drawCharts();
  }, 5000, signal, tell);
}
