"""Rows of the tables of measured figures, each made of one result in bench/results.

The first cell of a row says what was measured, the others have the figures.
"""

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
                f"| {what} | {share['median']:.3f} of the best in-RAM `numpy.matmul`"
                f" (best run {share['max']:.3f}, {best:.0f} GFLOP/s);"
                f" cgroup peak {max(peaks):.0f} of {limit:.0f} MB |"
            )
        for name, peer in case["peers"].items():
            speed = f"{peer['gflops']:.1f} GFLOP/s" if "gflops" in peer else peer["status"]
            rows.append(f"| {what}, `{name}` | {speed} after {peer['wall_seconds']:.0f} s |")
    return rows


def by_turns(result: dict[str, Any]) -> list[str]:
    """Return the row of files against `numpy.matmul` of the same turn, and beside a reader."""
    what = f"files, n = {result['n']}, {result['host_memory'] / 1e6:.0f} MB"
    if "burnt" in result["environment"]["command"]:
        what += ", beside half a busy core"
    ratios = result["ratios"]
    figures = f"{_spread(ratios['of_numpy'], 3)} of the `numpy.matmul` of the same turn"
    if beside := ratios.get("of_numpy_beside_reader"):
        figures += f", {_spread(beside, 3)} of it beside a process that reads as many bytes"
    peak = max(run["cgroup_peak_bytes"] for run in result["hdgemm"]) / 1e6
    return [f"| {what} | {figures}; cgroup peak {peak:.0f} MB |"]


def _spread(found: dict[str, Any], digits: int) -> str:
    """Return the median, and the least and the most where they differ from it."""
    median_of, least, most = (f"{found[key]:.{digits}f}" for key in ("median", "min", "max"))
    return median_of if least == most else f"{median_of} ({least}–{most})"


def in_ram(result: dict[str, Any]) -> list[str]:
    """Return the rows of matrices in RAM, of the largest and the smallest order."""
    n, size = max(result["sizes"].items(), key=lambda item: int(item[0]))
    tiny = result["overhead"]
    added = tiny["added_microseconds"]
    large = f"{size['share_best']:.3f} of the speed of `numpy.matmul` (best)"
    small = f"{added['median']:.1f} µs added to `numpy.matmul` (best {added['min']:.1f})"
    return [
        f"| in RAM, n = {n} | {large}, {size['share_median']:.3f} (median) |",
        f"| in RAM, n = {tiny['n']} | {small} |",
    ]


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
    """Return the rows of the OpenCL kernel on resident data of the largest order."""
    rows = []
    for name, dtype in sorted(key.split() for key in result if key != "environment"):
        measured = result[f"{name} {dtype}"]
        n, size = max(measured["sizes"].items(), key=lambda item: int(item[0]))
        of_numpy, of_clblast = (size["kernel_to"].get(peer) for peer in ("numpy", "clblast"))
        platform = "PoCL" if "Portable" in measured["platform"] else "Intel"
        rows.append(f"| {platform}, {dtype}, n = {n} | {_cell(of_numpy)} | {_cell(of_clblast)} |")
    return rows


def _cell(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


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
    """Return a row for each case: the speed of each dtype to the speed of the product's dtype."""
    rows = []
    for case in result["cases"]:
        size = f"{case['m']}² by {case['n']} columns, {case['limits']} limits"
        speeds = " | ".join(
            _spread(case["speed"][dtype], 2) for dtype in ("int8", "float16", "bfloat16")
        )
        rows.append(f"| {size} | {speeds} |")
    return rows


def tall(result: dict[str, Any]) -> list[str]:
    """Return a row for each contender on a tall file: seconds, part of the bound, MB, error."""
    rows = []
    for name, found in result["contenders"].items():
        if "status" in found:
            rows.append(f"| {name} | {found['status']} after {found['seconds']:.0f} | – | – | – |")
            continue
        bound = found.get("of_bound")
        of_bound = f"{bound['median']:.2f}" if bound else "–"
        rows.append(
            f"| {name} | {_spread(found['seconds'], 2)} | {of_bound} |"
            f" {found['peak_bytes'] / 1e6:.0f} | {found['error']:.1e} |"
        )
    return rows


def tall_file(result: dict[str, Any]) -> str:
    """Return the size of a tall file, and the number of singular values."""
    rows, columns = result["rows"], result["columns"]
    return f"A of {rows:,} × {columns} ({8e-9 * rows * columns:.2g} GB), k = {result['k']}"


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
        f"| {text}, n = {n} | {measured['ratio']['median']:.3f} | {measured['ratio_of_best']:.3f} |"
        for where, text in wheres.items()
        for n, measured in result[where].items()
    ]


def formats(result: dict[str, Any]) -> list[str]:
    """Return the rows of the file formats."""
    rows = []
    for name, measured in result["formats"].items():
        what = f"{name} files, n = {result['n']}, {result['host_memory'] / 1e6:.0f} MB"
        if "share_of_in_ram" not in measured:
            rows.append(f"| {what} | {measured['runs'][0]['status']} | – |")
            continue
        share = measured["share_of_in_ram"]
        decoding = measured.get("decompression_seconds")
        seconds = "–" if decoding is None else f"{decoding:.1f} s"
        rows.append(f"| {what} | {share['median']:.3f} (best {share['max']:.3f}) | {seconds} |")
    return rows


def overhead(result: dict[str, Any]) -> list[str]:
    """Return the rows of what the engine itself costs."""
    rows = [
        f"| an operation, {name} | {case['executor_cpu']['median']:.0f} µs of CPU time |"
        for name, case in result["us_per_operation"]["recording"].items()
    ]
    for device, seconds in result["second_product_seconds"].items():
        later = seconds["later"]["median"] * 1e3
        rows.append(f"| start of the second product of a session, {device} | {later:.1f} ms |")
    return rows


def linalg(result: dict[str, Any]) -> list[str]:
    """Return the rows of factorisations from file to file: ratios, part of the time in kernels."""
    rows = []
    devices = result.get("devices", "host")
    where = "" if devices == "host" else f", slabs on {devices}"
    where += ", column-major" if result.get("order") == "F" else ""
    for name, measured in result.items():
        if not isinstance(measured, dict):
            continue
        found = [measured.get(f"of_{peer}") for peer in ("scipy", "gemm")]
        if any(found):
            cells = [f"{ratio['median']:.3f}" if ratio else "–" for ratio in found]
            cells.append(f"{_in_kernels(measured, result):.0%}" if devices == "host" else "–")
            size = f"n = {result['n']}, {result['host_memory'] / 1e6:.0f} MB"
            what = f"`{name}`, files, {size}{where}"
            rows.append(f"| {what} | {' | '.join(cells)} |")
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
    """Return how each peer factored under the memory limit, or how it failed.

    Cells are seconds, peak in MB and residual.
    """
    names = {"dask": "Dask", "memmap": "SciPy, memmap", "hdgemm": "hdgemm"}
    rows = []
    for routine, found in result.items():
        if not isinstance(found, dict) or "turns" not in found:
            continue
        for peer, turns in found["turns"].items():
            turn = turns[-1]
            cells = f"{turn['status']}{''.join(f': `{x}`' for x in turn.get('last_words', ()))}"
            cells += " | – | –"
            if turn["status"] == "done":
                peak = turn["peak_bytes"] / 1e6
                cells = f"{turn['seconds']:.1f} | {peak:.0f} | {turn['residual']:.2g}"
            matrix = " of a permutation" if result.get("matrix") == "reversed" else ""
            rows.append(f"| `{routine}`{matrix}, {names[peer]} | {cells} |")
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
    """Return the rows of LINPACK against hpcc and DGEMM."""
    return [
        f"| {name}, N = {part['n']}, {part['threads']} threads a process |"
        f" {part['best_ratio']:.3f} |"
        f" {max(each['of_dgemm'] for each in part['blocks'].values()):.3f} |"
        for name, part in result.items()
        if isinstance(part, dict) and "best_ratio" in part
    ]


def linpack_devices(result: dict[str, Any]) -> list[str]:
    """Return the rows of LINPACK on devices; the overlaps are in bench/results alone."""
    rows = []
    devices = result["devices"]
    for name, peers in (("halves", ("whole",)), ("half and host", ("half", "host"))):
        alone = sum(devices[peer]["gflops"]["median"] for peer in peers)
        rows.append(
            f"| {name} as devices against {' + '.join(peers)} |"
            f" {devices[name]['gflops']['median'] / alone:.3f};"
            f" imbalance {devices[name]['imbalance']:.1%} |"
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
            more = f"; HPL's ratio {errors[0]:.2g}, ScaLAPACK's {errors[1]:.2g}"
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
    """Return the rows of factorisations by tasks: ratios of Cholesky and of LU."""
    sections = {
        "halves": "halves of an OpenCL device against the whole",
        "beside": "half a device and a core against the best alone",
        "slab": "an array by tasks against one slab on an OpenCL device",
        "schedule": "{}",
        "host": "tasks on the host against LAPACK",
    }
    ratios: dict[str, dict[str, float]] = {}
    for section, text in sections.items():
        for name, case in result.get(section, {}).items():
            routine, _, variant = name.partition(": ")
            ratio = case.get("of the best alone", case["ratio"]["median"])
            ratios.setdefault(f"{text.format(variant)}, n = {case['n']}", {})[routine] = ratio
            if handed := case.get("factor ratio"):
                ratios.setdefault("LAPACK chosen, against LAPACK itself", {})[routine] = handed
    rows = [
        f"| {what} | {found['cholesky']:.3f} | {found['lu']:.3f} |"
        for what, found in ratios.items()
    ]
    if empty := result.get("overhead"):
        cell = f"{empty['us']['median']:.0f} µs"
        rows.append(f"| a task that does nothing | {cell} | {cell} |")
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
    """Return what a campaign did, and how much of it was wrong if anything was."""
    counts = {key: total(result, key) for key in (*_CAMPAIGN_COUNTS, "wrong")}
    return ", ".join(f"{count} {key}" for key, count in counts.items() if count)


def hostile_json(result: dict[str, Any]) -> list[str]:
    """Return the rows of hostile bodies: the verdict, and the slowest answers."""
    shape, slowest = max(result["slowest_ms_by_shape"].items(), key=lambda item: float(item[1]))
    return [
        f"| {total(result, 'checks')} hostile bodies | {total(result, 'wrong')} wrong |",
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
    what = f"{len(cases)} plans of {routines} routines"
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
        f"| {name} | {case['per_second']:.0f} | {case['p50_ms']:.1f} | {case['p99_ms']:.1f} |"
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
    return [(f"| 1 GB, against a plain file copy over HTTP | up {up} of its speed, down {down} |")]


def neighbour(result: dict[str, Any]) -> list[str]:
    """Return the rows of products on a quiet machine and beside another process."""
    return [
        f"| {n}², {name.removeprefix('hdgemm ')} |"
        f" {size['quiet'][name]['ratio']['median']:.3f} |"
        f" {size['half a core burnt'][name]['ratio']['median']:.3f} |"
        for n, size in result["sizes"].items()
        for name in size["quiet"]
        if name.startswith("hdgemm")
    ]


def cuda(result: dict[str, Any]) -> list[str]:
    """Return the rows of an NVIDIA GPU: its kernels, the pipeline, and peers."""
    sections = ("ceiling", "pipeline", "paper_shapes", "ladder", "cupy")
    return [row for section in sections for row in _speeds(result, section)]


def gpu(result: dict[str, Any]) -> str:
    """Return the name of the GPU and the speed of its link."""
    link = result["link"]
    return (
        f"{result['device']['description']}; link with page-locked memory"
        f" {link['pinned_up_gbs']:.0f} GB/s up, {link['pinned_down_gbs']:.0f} GB/s down,"
        f" {link['pinned_both_gbs']:.0f} GB/s each way at once"
    )


def cublasxt(result: dict[str, Any]) -> list[str]:
    """Return the rows of cuBLASXt."""
    return _speeds(result, "cublasxt")


def _speeds(result: dict[str, Any], section: str) -> list[str]:
    who = {"ceiling": "cuBLAS", "cublasxt": "cuBLASXt", "cupy": "CuPy"}.get(section, "hdgemm")
    rows = []
    for one in _shown(section, result.get(section, [])):
        share = one.get("share_of_ceiling")
        of = f"{share:.3f}" if share else "–"
        rows.append(f"| {who}: {one['label']} | {one['tflops']:.2f} | {of} |")
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
