"""The CUDA pipeline against cuBLAS on resident data, cuBLASXt and plain CuPy.

    python -m bench.cuda [--device cuda:0] [--limit 420] [--out FOLDER] [--dry-run]

One command, at most ten minutes on an H200 (`--limit` seconds; what does not fit is left out and
named). Every product is checked. Results are written to bench/results/ after each measurement:
cuda.json, at the end cuda.png and cuda-gantt.png. It exits with 1 where a measurement failed.
`--dry-run` goes through all of it on a machine without a GPU, with tiny matrices and a stand-in for
the driver: no figure it prints or writes is a measurement.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.cuda_data import Data, largest_square
from bench.cuda_run import NO_MEASUREMENT, TINY, Run, Sizes
from bench.cuda_sections import measure_all
from bench.harness import RESULTS
from hdgemm.pipeline.devices.cuda import driven_by, list_devices
from tests.pipeline.devices.cuda.standin import StandIn

_COLOURS = {"hdgemm": "#d55e00", "cuBLASXt": "#0072b2", "CuPy": "#009e73"}


def main() -> int:
    """Measure, check, write; return the exit code."""
    arguments = _arguments()
    if arguments.dry_run:
        print(NO_MEASUREMENT)
    standin = driven_by(StandIn(pageable=True).api()) if arguments.dry_run else nullcontext()
    with standin:
        info = list_devices()[0]
        if not info.usable:
            print(f"no GPU to measure: {info.note}\n(--dry-run goes through the script without)")
            return 2
        run = _measure(arguments)
    print(json.dumps(run.results["summary"], indent=2))
    for line in run.left_out:
        print(f"left out: {line}")
    for line in run.failed:
        print(f"failed: {line}")
    print(f"written: {run.folder}/cuda.json, cuda.png, cuda-gantt.png")
    if run.dry:
        print(NO_MEASUREMENT.replace("below", "above"))
    return 1 if run.failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cuda", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--limit", type=float, default=420.0, help="seconds")
    parser.add_argument("--out", type=Path, help="where results go; default bench/results")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def _measure(arguments: argparse.Namespace) -> Run:
    began = time.perf_counter()
    sizes = TINY if arguments.dry_run else _sizes()
    print(f"making random matrices, n = {max(sizes.squares)} ...", flush=True)
    data, deadline = Data(max(sizes.squares)), began + arguments.limit
    folder = arguments.out or (Path(tempfile.mkdtemp()) if arguments.dry_run else RESULTS)
    run = Run(arguments.device, sizes, data, deadline, arguments.dry_run, folder)
    measure_all(run)
    run.results["seconds_in_all"] = time.perf_counter() - began
    run.results["summary"] = summary(run.results)
    run.attempt("picture", lambda: save_picture(run.results, folder / "cuda.png", run.title))
    return run


def _sizes() -> Sizes:
    """Let the largest square be what host memory holds."""
    sizes = Sizes()
    largest = largest_square(max(sizes.squares))
    squares = sorted({n for n in sizes.squares if n <= largest} | {largest})
    return replace(
        sizes,
        squares=tuple(squares),
        peers=tuple(n for n in sizes.peers if n <= largest),
        paper=tuple((n, k) for n, k in sizes.paper if n <= largest),
    )


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that the pipeline is judged by; None where one was not measured."""
    pipeline, peers = results.get("pipeline", []), results.get("cublasxt", [])
    shares = [r.get("share_of_ceiling") for r in pipeline if r["n"] >= 32768]
    ladder = {r["strategy"]: r["tflops"] for r in results.get("ladder", [])}
    best: dict[int, float] = {}
    for peer in peers:
        best[peer["n"]] = max(best.get(peer["n"], 0.0), peer["tflops"])
    ours: dict[int, float] = {}
    for one in pipeline:
        ours[one["n"]] = max(ours.get(one["n"], 0.0), one["tflops"])
    others = [ladder[name] for name in ("double-buffering", "data-reuse") if name in ladder]
    return {
        "share_of_resident_cublas_from_n_32768": min((s for s in shares if s), default=None),
        "goal_share": 0.97,
        "times_best_cublasxt": {n: ours[n] / best[n] for n in best if n in ours} or None,
        "goal_times": 1.2,
        "data_placement_not_slower": (
            ladder["data-placement"] >= max(others)
            if others and "data-placement" in ladder
            else None
        ),
        "moved_as_planned": all(
            r["moved_as_planned"]
            for section in ("pipeline", "paper_shapes", "ladder")
            for r in results.get(section, [])
        ),
    }


def save_picture(results: dict[str, Any], path: Path, title: str) -> None:
    """Draw every timed product as a bar, the ceiling of its extents as a tick; write a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    bars = [
        (f"{library}: {run['label']}", run["tflops"], run.get("ceiling_tflops"), _COLOURS[library])
        for library, section in (
            ("hdgemm", "pipeline"),
            ("hdgemm", "paper_shapes"),
            ("hdgemm", "ladder"),
            ("cuBLASXt", "cublasxt"),
            ("CuPy", "cupy"),
        )
        for run in results.get(section, [])
    ]
    figure, axes = plt.subplots(figsize=(9.0, 1.2 + 0.26 * max(1, len(bars))), dpi=90)
    for place, (_, tflops, ceiling, colour) in enumerate(bars):
        axes.barh(place, tflops, color=colour)
        if ceiling:
            axes.plot([ceiling, ceiling], [place - 0.4, place + 0.4], color="black", linewidth=2)
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("Tflop/s, median (black: cuBLAS on resident data)")
    axes.set_title(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
