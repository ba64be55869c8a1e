"""LINPACK against Debian's hpcc (HPL 2.0), on devices, and what its overlaps hide.

    python -m bench.linpack [--n 10000] [--blocks 128 192 256] [--turns 3] [--parts host ranks]
    python -m bench.linpack --n 27000 --blocks 256 --turns 2 --parts host --save linpack_large

`host`: one process with all cores against hpcc with as many BLAS threads, the same N and NB, by
turns: hpcc is stopped after each of its HPL runs, while hdgemm runs with the same NB. `ranks`: 1×2
and 2×1 processes of one thread each, the same way. `devices`: halves of the first OpenCL device,
and one half with a core of the host. `overlap`: how much of panels, broadcasts and swaps runs
beneath updates, by variant. Without a C compiler hpcc runs its other benchmarks first, which takes
minutes, and half an hour where N is large.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bench.figure_rows import linpack as table
from bench.harness import ROOT, environment, save, spread
from bench.hpcc import Hpcc, blas_version, missing
from hdgemm.machine.limits import cores

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTS = ("host", "ranks", "devices", "overlap")
#: Variants of the overlap: depth, names, grid, threads of a process. Each grid starts with
#: the one without overlaps.
VARIANTS = (
    (0, "none", "1x1", 2), (1, "none", "1x1", 2), (1, "window", "1x1", 2),
    (1, "window+panel-swap", "1x1", 2), (2, "window", "1x1", 2),
    (1, "none", "1x2", 1), (1, "shared-panel", "1x2", 1),
    (1, "none", "2x1", 1), (1, "split-swap", "2x1", 1), (1, "all", "2x1", 1),
)  # fmt: skip


def hdgemm(n: int, nb: int, *options: str, ranks: int = 1) -> dict[str, Any]:
    """Run `hdgemm linpack` once; return its run, with the rate of DGEMM."""
    command = [sys.executable, "-m", "hdgemm", "linpack", "--n", str(n), "--nb", str(nb), "--json"]
    if ranks > 1:
        found = shutil.which(
            "mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
        )
        command = [found or "mpiexec", "-n", str(ranks), *command]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
    printed = json.loads(done.stdout)
    return {"dgemm": printed["dgemm"] / 1e9, **printed["runs"][0]}


def against_hpcc(
    n: int, blocks: Sequence[int], turns: int, grid: tuple[int, int], threads: int
) -> dict[str, Any]:
    """Measure both by turns; return the rates by block size, and the ratio of the best ones."""
    reason = missing()
    if reason is not None:
        return {"skipped": reason}
    options = ("--grid", f"{grid[0]}x{grid[1]}", "--threads", str(threads))
    ours: dict[int, list[dict[str, Any]]] = {nb: [] for nb in blocks}
    theirs: dict[int, list[float]] = {nb: [] for nb in blocks}
    hdgemm(min(n, 2000), blocks[0], *options, ranks=grid[0] * grid[1])  # warms up
    with (
        TemporaryDirectory(prefix="hpcc-") as folder,
        Hpcc(Path(folder), n, blocks, turns, grid, threads) as hpcc,
    ):
        for result in hpcc.results():
            theirs[result.nb].append(result.gflops)
            own = hdgemm(n, result.nb, *options, ranks=grid[0] * grid[1])
            ours[result.nb].append(own)
            print(f"N {n} NB {result.nb}: hpcc {result.gflops:.1f}, hdgemm {own['gflops']:.1f}")
    by_block = {
        nb: {
            "hdgemm": spread([run["gflops"] for run in ours[nb]]),
            "hpcc": spread(theirs[nb]),
            "ratio": median(
                run["gflops"] / other for run, other in zip(ours[nb], theirs[nb], strict=True)
            ),
            "of_dgemm": median(run["gflops"] / run["dgemm"] for run in ours[nb]),
            "residual": max(run["residual"] for run in ours[nb]),
            "hidden": median(run["hidden_part"] or 0.0 for run in ours[nb]),
        }
        for nb in blocks
        if ours[nb]
    }
    best = {
        who: max(each[who]["median"] for each in by_block.values()) for who in ("hdgemm", "hpcc")
    }
    return {
        "n": n, "grid": grid, "threads": threads, "blocks": by_block, "best": best,
        "best_ratio": best["hdgemm"] / best["hpcc"], "hpcc_blas": blas_version(),
    }  # fmt: skip


def on_devices(n: int, nb: int, turns: int, device: str) -> dict[str, Any]:
    """Measure halves of an OpenCL device, a half with a core of the host, and each alone."""
    halves = [f"{device}/2:{part}" for part in range(2)]
    choices = {
        "whole": (device,), "half": (halves[0],), "halves": tuple(halves),
        "half and host": (halves[0], "host"), "host": ("host",),
    }  # fmt: skip
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in choices}
    for _ in range(turns):
        for name, devices in choices.items():
            chosen = [word for each in devices for word in ("--device", each)]
            runs[name].append(hdgemm(n, nb, *chosen, "--threads", "1", "--strip", "1024"))
            print(f"{name}: {runs[name][-1]['gflops']:.1f}")
    return {
        name: {
            "gflops": spread([run["gflops"] for run in found]),
            "residual": max(run["residual"] for run in found),
            "passed": all(run["passed"] for run in found),
            "busy": [run["busy"] for run in found],
            "imbalance": median(imbalance(run["busy"]) for run in found),
        }
        for name, found in runs.items()
    }


def imbalance(busy: dict[str, float]) -> float:
    """Return how much longer the busiest thread updated than the least busy one, of the former."""
    return 1.0 - min(busy.values()) / max(busy.values()) if busy else 0.0


def overlaps(n: int, nb: int, turns: int) -> list[dict[str, Any]]:
    """Measure the variants of the overlap by turns."""
    runs: list[list[dict[str, Any]]] = [[] for _ in VARIANTS]
    for _ in range(turns):
        for found, (depth, names, grid, threads) in zip(runs, VARIANTS, strict=True):
            ranks = 1 if grid == "1x1" else 2
            found.append(
                hdgemm(
                    n,
                    nb,
                    "--depth",
                    str(depth),
                    "--overlap",
                    names,
                    "--grid",
                    grid,
                    "--threads",
                    str(threads),
                    ranks=ranks,
                )
            )
            print(f"depth {depth} {names} {grid}: {found[-1]['gflops']:.1f}")
    return [
        {
            "depth": depth, "overlap": names, "grid": grid, "threads": threads,
            "gflops": spread([run["gflops"] for run in found]),
            "hidden_part": median(run["hidden_part"] or 0.0 for run in found),
            "phases": found[-1]["phases"], "hidden": found[-1]["hidden"],
        }
        for found, (depth, names, grid, threads) in zip(runs, VARIANTS, strict=True)
    ]  # fmt: skip


def main() -> None:
    """Measure the chosen parts and save them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, nargs="+", default=[128, 192, 256])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--save", default="linpack", help="name of the result; none: not saved")
    chosen = parser.parse_args()
    # A killed bench ends hpcc, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    where = environment()
    found: dict[str, Any] = {}
    half = max(256, chosen.n // 2)
    if "host" in chosen.parts:
        found["host"] = against_hpcc(chosen.n, chosen.blocks, chosen.turns, (1, 1), cores())
    if "ranks" in chosen.parts:
        for p, q in ((1, 2), (2, 1)):
            found[f"{p}x{q}"] = against_hpcc(half, chosen.blocks, chosen.turns, (p, q), 1)
    if "devices" in chosen.parts:
        found["devices"] = on_devices(half, 512, chosen.turns, chosen.device)
    if "overlap" in chosen.parts:
        found["overlap"] = overlaps(half, 192, chosen.turns)
    print("\n".join(table(found)))
    if chosen.save != "none":
        save(chosen.save, found, where)


if __name__ == "__main__":
    main()
