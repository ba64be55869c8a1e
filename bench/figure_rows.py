"""Rows of the tables of measured figures, each made of one result in bench/results."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import Any


def file_to_file(result: dict[str, Any]) -> list[str]:
    """Return the rows of files multiplied under a limit."""
    rows = []
    for case in result["cases"].values():
        share = case["share_of_in_ram"]
        what = f"files, n = {case['n']}, {case['host_memory'] / 1e6:.0f} MB"
        limit = case["cgroup_limit"] / 1e6
        peaks = [run["cgroup_peak_bytes"] / 1e6 for run in case["hdgemm"] if "report" in run]
        if share is not None:
            best = max(run["gflops"] for run in case["hdgemm"] if "gflops" in run)
            rows.append(
                f"| {what} | {share['median']:.3f} of the speed of in-RAM `numpy.matmul`"
                f" (best {share['max']:.3f}, {best:.0f} GFLOP/s);"
                f" cgroup peak {max(peaks):.0f} of {limit:.0f} MB |"
            )
        for name, peer in case["peers"].items():
            speed = f"{peer['gflops']:.1f} GFLOP/s" if "gflops" in peer else peer["status"]
            rows.append(f"| {what}, `{name}` | {speed} after {peer['wall_seconds']:.0f} s |")
    return rows


def in_ram(result: dict[str, Any]) -> list[str]:
    """Return the rows of matrices in RAM."""
    rows = [
        f"| in RAM, n = {n} | {size['share_best']:.3f} of the speed of `numpy.matmul` (best),"
        f" {size['share_median']:.3f} (median) |"
        for n, size in result["sizes"].items()
    ]
    tiny = result["overhead"]
    added = tiny["added_microseconds"]
    rows.append(
        f"| in RAM, n = {tiny['n']} | {added['median']:.1f} µs added to `numpy.matmul`"
        f" (best {added['min']:.1f}) |"
    )
    return rows


def opencl_pipeline(result: dict[str, Any]) -> list[str]:
    """Return the row of the OpenCL pipeline."""
    part = result["device_memory"] / result["data_bytes"]
    return [
        (
            f"| OpenCL pipeline, n = {result['n']}, device memory {part:.3f} of the data"
            f" | {result['share_best']:.3f} of its own kernel on resident data |"
        )
    ]


def opencl_kernel(result: dict[str, Any]) -> list[str]:
    """Return the rows of the OpenCL kernel on resident data."""
    rows = []
    for name, dtype in sorted(key.split() for key in result if key != "environment"):
        measured = result[f"{name} {dtype}"]
        for n, size in measured["sizes"].items():
            peers = ", ".join(
                f"{ratio:.2f} of {'`numpy.matmul`' if peer == 'numpy' else 'CLBlast'}"
                for peer, ratio in size["kernel_to"].items()
            )
            platform = "PoCL" if "Portable" in measured["platform"] else "Intel"
            rows.append(f"| {platform}, {dtype}, n = {n} | {peers} |")
    return rows


def split(result: dict[str, Any]) -> list[str]:
    """Return the rows of several devices on one product."""
    rows = []
    for name, measured in result["real"].items():
        ratio, imbalance = measured["of_best_alone"], measured["imbalance"]
        rows.append(
            f"| {name} of {result['device']}, n = {result['n']} | {ratio['median']:.3f} of the best"
            f" alone; {100 * imbalance['median']:.1f} % of the run apart at the end |"
        )
    worst = min(case["learned"]["of_best_static"] for case in result["simulated"].values())
    rows.append(
        f"| a device 1:1 to 1:100 as fast, steady or not, in virtual time | at least {worst:.3f} of"
        " the best fixed split |"
    )
    return rows


def topk(result: dict[str, Any]) -> list[str]:
    """Return the row of the largest entries of a product against faiss."""
    found, size = result["of_faiss"], f"{result['rows']:,} × {result['columns']}"
    pairs = f"{found['min']:.2f}–{found['max']:.2f}, {found['count']} pairs"
    speed = f"{found['median']:.2f} of the speed of faiss.IndexFlatIP ({pairs})"
    different = f"{result['different']:.4%} of the columns differ"
    return [f"| `topk`, float32 {size} by itself, k = {result['k']} | {speed}; {different} |"]


def low_precision(result: dict[str, Any]) -> list[str]:
    """Return a row for each case: the speed of each dtype against the arithmetic's."""
    memory, rows = f"{result['host_memory'] / 1e6:.0f} MB", []
    for case in result["cases"]:
        size = f"{case['m']}² by {case['n']} columns, {memory} ({case['limits']} limits)"
        speeds = "; ".join(
            f"{dtype} {found['median']:.2f} of {case['wide'][dtype]} "
            f"({found['min']:.2f}–{found['max']:.2f})"
            for dtype, found in case["speed"].items()
        )
        rows.append(f"| {size} | {speeds} |")
    return rows


def tall(result: dict[str, Any]) -> list[str]:
    """Return a row for each contender on a tall file."""
    rows = [f"| A | {result['rows']:,} × {result['columns']}, k = {result['k']} |"]
    for name, found in result["contenders"].items():
        if "status" in found:
            rows.append(f"| {name} | {found['status']} after {found['seconds']:.0f} s |")
            continue
        seconds, bound = found["seconds"], found.get("of_bound")
        of_bound = f"; {bound['median']:.2f} of the bound" if bound else ""
        rows.append(
            f"| {name} | {seconds['median']:.2f} s ({seconds['min']:.2f}–{seconds['max']:.2f})"
            f"{of_bound}; {found['peak_bytes'] / 1e6:.0f} MB; "
            f"error {found['error']:.1e}·s[0] |"
        )
    return rows


def durable_overhead(result: dict[str, Any]) -> list[str]:
    """Return the row of what a journal costs."""
    ratio = result["ratio"]
    return [
        (
            f"| a journal, files, n = {result['n']}, {result['memory']} | {ratio['median']:.3f} of"
            f" the run's time without it ({ratio['min']:.3f}–{ratio['max']:.3f}) |"
        )
    ]


def tile_checks(result: dict[str, Any]) -> list[str]:
    """Return the rows of what checking each tile costs."""
    wheres = {"in_ram": "in RAM", "file_to_file": "files"}
    return [
        f"| {text}, n = {n} | {measured['ratio']['median']:.3f} (median),"
        f" {measured['ratio_of_best']:.3f} (best) |"
        for where, text in wheres.items()
        for n, measured in result[where].items()
    ]


def formats(result: dict[str, Any]) -> list[str]:
    """Return the rows of the file formats."""
    rows = []
    for name, measured in result["formats"].items():
        what = f"{name} files, n = {result['n']}, {result['host_memory'] / 1e6:.0f} MB"
        if "share_of_in_ram" not in measured:
            rows.append(f"| {what} | {measured['runs'][0]['status']} |")
            continue
        share = measured["share_of_in_ram"]
        decoding = measured.get("decompression_seconds")
        cost = "" if decoding is None else f"; decompression {decoding:.1f} s of load1"
        rows.append(
            f"| {what} | {share['median']:.3f} of in-RAM `numpy.matmul` (best {share['max']:.3f})"
            f"{cost} |"
        )
    return rows


def overhead(result: dict[str, Any]) -> list[str]:
    """Return the rows of what the engine itself costs."""
    rows = [
        f"| an operation of five stages, {name} | {case['executor_cpu']['median']:.0f} µs of CPU"
        " time |"
        for name, case in result["us_per_operation"]["recording"].items()
    ]
    for device, seconds in result["second_product_seconds"].items():
        later = seconds["later"]["median"] * 1e3
        rows.append(f"| start of the second product of a session, {device} | {later:.1f} ms |")
    return rows


def linalg(result: dict[str, Any]) -> list[str]:
    """Return the rows of factorisations from file to file."""
    rows = []
    devices = result.get("devices", "host")
    where = "" if devices == "host" else f", slabs updated by {devices}"
    where += ", column-major" if result.get("order") == "F" else ""
    for name, measured in result.items():
        if not isinstance(measured, dict):
            continue
        ratios = ", ".join(
            f"{measured[f'of_{peer}']['median']:.3f} of {text}"
            for peer, text in (("scipy", "SciPy in RAM"), ("gemm", "DGEMM in RAM"))
            if f"of_{peer}" in measured
        )
        if ratios:
            what = f"`{name}`, files, n = {result['n']}, {result['host_memory'] / 1e6:.0f} MB"
            if devices == "host":
                ratios += f"; cores in kernels {_in_kernels(measured, result):.0%} of the time"
            rows.append(f"| {what}{where} | {ratios} |")
    return rows


def _in_kernels(measured: dict[str, Any], result: dict[str, Any]) -> float:
    """Return the median part of the cores' time that kernels of the host took."""
    cores = result["environment"]["cores"]
    turns = (turn for turn in measured["hdgemm"] if turn["status"] == "done")
    return median(turn["stages"]["mult1"]["seconds"] / turn["seconds"] / cores for turn in turns)


def lstsq(result: dict[str, Any]) -> list[str]:
    """Return the row of a least-squares solution in one pass over a file."""
    found, limit = result["lstsq"], result["host_memory"] / 1e6
    slower, scipy = (found[key]["median"] for key in ("of_slower", "of_scipy"))
    return [
        (
            f"| `lstsq`, {limit:.0f} MB | {slower:.3f} of its kernel in RAM or of reading,"
            f" whichever is slower; {scipy:.3f} of SciPy in RAM |"
        )
    ]


def syrk(result: dict[str, Any]) -> list[str]:
    """Return the row of A^T·A by `syrk` against `matmul`."""
    m, n = result["shape"]
    speedup = result["speedup"]["median"]
    return [f"| `syrk`, A of {m}×{n} | {speedup:.2f} times as fast as `matmul(A.T, A)` |"]


def refine(result: dict[str, Any]) -> list[str]:
    """Return the row of `solve` with factors in single precision against plain `solve`."""
    n, limit, speedup = result["shape"][0], result["host_memory"] / 1e6, result["speedup"]["median"]
    ratios = [turn[name]["hpl_ratio"] for turn in result["turns"] for name in ("plain", "refine")]
    return [
        (
            f'| `solve(refine="float32")`, n = {n}, {limit:.0f} MB | {speedup:.2f} times as fast as'
            f" `solve`; HPL's residual of both at most {max(ratios):.2g} |"
        )
    ]


def linalg_peers(result: dict[str, Any]) -> list[str]:
    """Return how each peer factored under the memory limit, or how it failed."""
    names = {"dask": "Dask", "memmap": "SciPy on a memory map", "hdgemm": "hdgemm"}
    rows = []
    for routine, found in result.items():
        if not isinstance(found, dict) or "turns" not in found:
            continue
        for peer, turns in found["turns"].items():
            turn = turns[-1]
            outcome = turn["status"] + "".join(
                f": `{words}`" for words in turn.get("last_words", ())
            )
            if turn["status"] == "done":
                outcome = (
                    f"{turn['seconds']:.1f} s, peak {turn['peak_bytes'] / 1e6:.0f} MB,"
                    f" residual {turn['residual']:.2g}"
                )
            what = f"`{routine}`, n = {result['n']}"
            limit = f"{result['host_memory'] / 1e6:.0f} MB"
            rows.append(f"| {what}, {limit}, {names[peer]} | {outcome} |")
    return rows


def cluster_virtual(result: dict[str, Any]) -> list[str]:
    """Return the row of a large cluster in virtual time."""
    return [
        (
            f"| 1,000 workers in virtual time, 5 % lost, n = {result['n']} |"
            f" {result['median']:.3f} of perfect balance |"
        )
    ]


def linpack(result: dict[str, Any]) -> list[str]:
    """Return the rows of LINPACK against hpcc, on devices, and with and without overlaps."""
    rows = [
        f"| {name}, N = {part['n']}, {part['threads']} threads a process |"
        f" {part['best_ratio']:.3f} of hpcc, best block size of each;"
        f" {max(each['of_dgemm'] for each in part['blocks'].values()):.3f} of DGEMM |"
        for name, part in result.items()
        if isinstance(part, dict) and "best_ratio" in part
    ]
    devices = result.get("devices", {})
    for name, peers in (("halves", ("whole",)), ("half and host", ("half", "host"))):
        if name in devices:
            alone = sum(devices[peer]["gflops"]["median"] for peer in peers)
            rows.append(
                f"| {name} as devices against {' + '.join(peers)} |"
                f" {devices[name]['gflops']['median'] / alone:.3f}"
                f" ({devices[name]['gflops']['median']:.1f} GFLOP/s);"
                f" imbalance {devices[name]['imbalance']:.1%},"
                f" residual {devices[name]['residual']:.2g} |"
            )
    without: dict[str, float] = {}
    for variant in result.get("overlap", []):
        rate, grid = variant["gflops"]["median"], variant["grid"]
        rows.append(
            f"| {grid}, depth {variant['depth']}, overlap {variant['overlap']} |"
            f" {rate / without.setdefault(grid, rate):.3f}; {variant['hidden_part']:.1%} hidden |"
        )
    return rows


def scalapack(result: dict[str, Any]) -> list[str]:
    """Return the rows of systems over MPI against ScaLAPACK, LINPACK and the disk."""
    rows = []
    for name, part in result.items():
        if "best_ratio" in part:
            errors = [
                max(each[key] for each in part["blocks"].values())
                for key in ("hpl_ratio", "scalapack_hpl_ratio")
            ]
            what, figure = "speed of `solve` to ScaLAPACK's", f"{part['best_ratio']:.3f}"
            more = (
                f", best block size of each; HPL's ratio {errors[0]:.2g}, ScaLAPACK's"
                f" {errors[1]:.2g}"
            )
        elif name.startswith("linpack"):
            what, figure = "speed of `solve` to LINPACK's", f"{part['ratio']['median']:.3f}"
            more = f" ({part['ratio']['min']:.2f}–{part['ratio']['max']:.2f})"
        elif name.startswith("disk"):
            what, figure = "reading and redistribution", f"{part['ratio']['median']:.3f}"
            more = (
                f" ({part['ratio']['min']:.2f}–{part['ratio']['max']:.2f}) of the disk's"
                f" {part['disk_rate']['median'] / 1e6:.0f} MB/s"
            )
        else:
            continue
        p, q = part["grid"]
        rows.append(f"| {what}, {p}×{q}, N = {part['n']} | {figure}{more} |")
    return rows


def hybrid(result: dict[str, Any]) -> list[str]:
    """Return the rows of factorisations by tasks."""
    sections = {
        "halves": "{}: halves of an OpenCL device against the whole",
        "beside": "{}: half a device and a core against the best alone",
        "slab": "{}: an array by tasks against one slab on an OpenCL device",
        "schedule": "{}",
        "host": "{}: tasks on the host against LAPACK",
    }
    rows = []
    for section, text in sections.items():
        for name, case in result.get(section, {}).items():
            ratio = case.get("of the best alone", case["ratio"]["median"])
            rows.append(f"| {text.format(name)}, n = {case['n']} | {ratio:.3f} |")
            if handed := case.get("factor ratio"):
                rows.append(f"| {name}: LAPACK chosen, against LAPACK itself | {handed:.3f} |")
    if empty := result.get("overhead"):
        rows.append(f"| a task that does nothing | {empty['us']['median']:.0f} µs |")
    return rows


def cluster(result: dict[str, Any]) -> list[str]:
    """Return the rows of a cluster against one engine with the same cores and memory."""
    return [
        f"| {name} of one core, n = {result['n']}, {result['memory']} in all |"
        f" {case['efficiency']['median']:.3f} of one engine |"
        for name, case in result.items()
        if isinstance(case, dict) and "efficiency" in case
    ]


def cluster_rows(result: dict[str, Any]) -> list[str]:
    """Return the rows of passes over rows on two workers against one engine on two cores."""
    return [
        f"| {name}, {result['rows']:,} × {result['n']}, two workers of one core |"
        f" {case['efficiency']['median']:.3f} ({case['efficiency']['min']:.2f}–"
        f"{case['efficiency']['max']:.2f}) of one engine |"
        for name, case in result.items()
        if isinstance(case, dict) and "efficiency" in case
    ]


def cluster_load(result: dict[str, Any]) -> list[str]:
    """Return the row of what each block costs the client and the scheduler of a cluster."""
    return [
        (
            f"| client and scheduler, {result['blocks']:,} blocks |"
            f" {result['processor_milliseconds_each']:.2f} ms of processor time a block |"
        )
    ]


def total(result: dict[str, Any], key: str) -> int:
    """Return the sum of a count in a result, at any depth; lists count their members."""
    value = result.get(key)
    if isinstance(value, int):
        return value
    if isinstance(value, list):
        return len(value)
    if isinstance(value, dict):
        return sum(value.values())
    return sum(total(part, key) for part in result.values() if isinstance(part, dict))


#: Counts of campaigns that are shown.
_CAMPAIGN_COUNTS = ("kills", "stops", "products", "jobs", "attempts", "uploads", "checks")


def campaign(result: dict[str, Any]) -> str:
    """Return two cells of a campaign: what it did, and how much of it was wrong."""
    counts = {key: total(result, key) for key in _CAMPAIGN_COUNTS}
    did = ", ".join(f"{count} {key}" for key, count in counts.items() if count)
    return f"{did or 'generated requests'} | {total(result, 'wrong')} wrong"


def hostile_json(result: dict[str, Any]) -> list[str]:
    """Return the rows of hostile bodies: the verdict, and the slowest answers."""
    shape, slowest = max(result["slowest_ms_by_shape"].items(), key=lambda item: float(item[1]))
    return [
        f"| {campaign(result)} |",
        f"| slowest answer, to {shape} | {slowest:.0f} ms |",
        f"| slowest answer of `/healthz` meanwhile | {result['slowest_healthz_ms']:.0f} ms |",
    ]


def planning(result: dict[str, Any]) -> list[str]:
    """Return the rows of plans: how many, and each routine's slowest beyond the bounds."""
    cases = [case for case in result["cases"] if "seconds" in case]
    most_ms, most_mb = 1e3 * result["most_seconds"], result["most_bytes"] / 1e6
    over = [case for case in cases if case["exceeds"]]
    routines = len({case["routine"] for case in cases})
    bounds = f"{most_ms:.0f} ms of a core or {most_mb:.0f} MB"
    load = f"the machine's load was {result['environment']['load_before']:.1f}"
    what = f"{len(cases)} plans of {routines} routines; {load}"
    rows = [f"| {what} | {len(over)} take more than {bounds} |"]
    slowest = {case["routine"]: case for case in sorted(over, key=lambda case: case["seconds"])}
    for case in slowest.values():
        memory = f"{case['host_memory'] / 1e6:,.0f} MB"
        rows.append(
            f"| plan of `{case['routine']}`, {case['shape']}, {memory} |"
            f" {1e3 * case['seconds']:.0f} ms, {case['peak_bytes'] / 1e6:.1f} MB |"
        )
    again = [case for case in cases if case.get("named")]
    works = sum("refused" not in case for case in again)
    rows.append(f"| memory that refusals name | works in {works} of {len(again)} cases |")
    return rows


def service_load(result: dict[str, Any]) -> list[str]:
    """Return the rows of many requests beside a job."""
    return [
        f"| {name} | {case['per_second']:.0f} requests/s, p50 {case['p50_ms']:.1f} ms,"
        f" p99 {case['p99_ms']:.1f} ms |"
        for name, case in result.items()
        if isinstance(case, dict) and "per_second" in case
    ]


def service_queue(result: dict[str, Any]) -> list[str]:
    """Return the rows of a long queue."""
    rows = []
    for name in ("0 queued jobs", "10000 queued jobs"):
        times = ", ".join(f"{call} {case['p99_ms']:.0f}" for call, case in result[name].items())
        rows.append(f"| {name}, p99 in ms | {times} |")
    streams = result["list beside event streams"]
    rows.append(
        f"| list beside {streams['streams']} event streams, p99 in ms | {streams['p99_ms']:.0f} |"
    )
    return rows


def service_transfer(result: dict[str, Any]) -> list[str]:
    """Return the row of uploads and downloads."""
    share, spread = result["share of plain"], result["least and most"]
    up, down = (
        f"{share[way]:.2f} ({spread[way][0]:.2f} to {spread[way][1]:.2f})" for way in ("up", "down")
    )
    return [
        (
            "| 1 GB over HTTP, against a plain file copy over HTTP |"
            f" up {up} of its speed, down {down} |"
        )
    ]


def neighbour(result: dict[str, Any]) -> list[str]:
    """Return the rows of products on a quiet machine and beside another process."""
    loads = {"quiet": "alone", "half a core burnt": "beside half a busy core"}
    return [
        f"| {n}², {text}, {name} | {size[load][name]['ratio']['median']:.3f} of `numpy.matmul` |"
        for n, size in result["sizes"].items()
        for load, text in loads.items()
        for name in size[load]
        if name.startswith("hdgemm")
    ]


def cuda(result: dict[str, Any]) -> list[str]:
    """Return the rows of an NVIDIA GPU: its kernels and link, the pipeline, and peers."""
    rows = [f"| GPU | {result['device']['description']} |"]
    link = result["link"]
    rows.append(
        f"| link, page-locked memory | {link['pinned_up_gbs']:.0f} GB/s up,"
        f" {link['pinned_down_gbs']:.0f} GB/s down, {link['pinned_both_gbs']:.0f} GB/s each way"
        " at once |"
    )
    sections = ("ceiling", "pipeline", "paper_shapes", "ladder", "cupy")
    return rows + [row for section in sections for row in _speeds(result, section)]


def cublasxt(result: dict[str, Any]) -> list[str]:
    """Return the rows of cuBLASXt, and of hdgemm on the same products."""
    return _speeds(result, "pipeline") + _speeds(result, "cublasxt")


def _speeds(result: dict[str, Any], section: str) -> list[str]:
    who = {"ceiling": "cuBLAS", "cublasxt": "cuBLASXt", "cupy": "CuPy"}.get(section, "hdgemm")
    rows = []
    for one in _shown(section, result.get(section, [])):
        share = one.get("share_of_ceiling")
        of = f", {share:.3f} of cuBLAS" if share else ""
        rows.append(f"| {who}: {one['label']} | {one['tflops']:.2f} Tflop/s{of} |")
    return rows


def _shown(section: str, measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the measurements of a section in the table; all are in bench/results.

    Of products with small k the largest order, of cuBLASXt its default and fastest blocks.
    """
    if section == "paper_shapes":
        largest = max((one["m"] for one in measured), default=0)
        return [one for one in measured if one["m"] == largest]
    if section == "cublasxt":
        by_memory = groupby(measured, key=lambda one: one["label"].rpartition(", ")[2])
        fastest = [max(group, key=lambda one: float(one["tflops"])) for _, group in by_memory]
        return [one for one in measured if one in fastest or "default" in one["label"]]
    return measured
