"""The CUDA pipeline against cuBLAS on resident data, cuBLASXt and plain CuPy.

    python -m bench.cuda [--device cuda:0] [--limit 420] [--out FOLDER] [--dry-run]

One command, well inside ten minutes on an H200 (`--limit` seconds at most; what no longer fits is
left out and named). It checks every product, and writes cuda.json, cuda.png and cuda-gantt.png to
bench/results/. `--dry-run` goes through all of it on a machine without a GPU, with tiny matrices
and a stand-in for the driver: no figure it prints or writes is a measurement.
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
from bench.cuda_picture import save_picture
from bench.cuda_run import TINY, Run, Sizes
from bench.cuda_sections import measure_device, measure_peers, measure_pipeline
from bench.harness import RESULTS, environment
from hdgemm.errors import HdgemmError
from hdgemm.pictures.gantt import save_gantt
from hdgemm.pipeline.devices.cuda import driven_by, list_devices
from hdgemm.pipeline.devices.cuda.standin import StandIn

NO_MEASUREMENT = "DRY RUN on a stand-in for the driver: no figure below is a measurement"


def main() -> int:
    """Measure, check, write; return the exit code."""
    arguments = _arguments()
    folder = arguments.out or (Path(tempfile.mkdtemp()) if arguments.dry_run else RESULTS)
    if arguments.dry_run:
        print(NO_MEASUREMENT)
    standin = driven_by(StandIn(pageable=True).api()) if arguments.dry_run else nullcontext()
    with standin:
        info = list_devices()[0]
        if not info.usable:
            print(f"no GPU to measure: {info.note}\n(--dry-run goes through the script without)")
            return 2
        run = _measure(arguments)
    _write(run, folder)
    return 0


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
    run = Run(
        arguments.device,
        sizes,
        Data(max(sizes.squares)),
        began + arguments.limit,
        arguments.dry_run,
    )
    for part in (measure_device, measure_pipeline, measure_peers):
        try:
            part(run)
        except HdgemmError as error:
            # The other parts are still worth their time.
            run.left_out.append(f"{part.__name__}: {type(error).__name__}: {error}")
            print(run.left_out[-1], file=sys.stderr)
    run.results["seconds_in_all"] = time.perf_counter() - began
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
            ladder["data-placement"] >= max(others) if others and "data-placement" in ladder
            else None
        ),
        "moved_as_planned": all(
            r["moved_as_planned"]
            for section in ("pipeline", "paper_shapes", "ladder")
            for r in results.get(section, [])
        ),
    }  # fmt: skip


def _write(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    gantt = run.results.pop("gantt", None)
    title = NO_MEASUREMENT if run.dry else run.results["device"]["description"]
    if gantt is not None:
        save_gantt(gantt.timeline, folder / "cuda-gantt.png", title=title)
    save_picture(run.results, folder / "cuda.png", title)
    judged = summary(run.results)
    written = {
        "is_a_measurement": not run.dry,
        "environment": environment(),
        "summary": judged,
        **run.results,
        "left_out": run.left_out,
    }
    (folder / "cuda.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(judged, indent=2))
    for line in run.left_out:
        print(f"left out: {line}")
    print(f"written: {folder}/cuda.json, cuda.png, cuda-gantt.png")
    if run.dry:
        print(NO_MEASUREMENT.replace("below", "above"))


if __name__ == "__main__":
    sys.exit(main())
