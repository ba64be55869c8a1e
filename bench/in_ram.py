"""Matrices in RAM: hdgemm.matmul against numpy.matmul, turn by turn, and what a tiny one costs.

python -m bench.in_ram [--sizes 2048 4096 8192] [--repeats 7]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import hdgemm
from bench.harness import environment, save, spread

if TYPE_CHECKING:
    from collections.abc import Callable

TINY = 4
TINY_CALLS = 2000


def seconds_of(function: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def compare(n: int, repeats: int) -> dict[str, Any]:
    """Time both on the same random n×n float64 matrices, in turns that begin with either."""
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    c = np.empty((n, n))
    turns: dict[str, Callable[[], object]] = {
        "numpy": lambda: np.matmul(a, b, out=c),
        "hdgemm": lambda: hdgemm.matmul(a, b, out=c),
    }
    taken: dict[str, list[float]] = {name: [] for name in turns}
    for function in turns.values():
        function()
    for turn in range(repeats):
        for name in sorted(turns, reverse=bool(turn % 2)):
            taken[name].append(seconds_of(turns[name]))
    gflops = {name: [2 * n**3 / each / 1e9 for each in times] for name, times in taken.items()}
    ratio = min(taken["numpy"]) / min(taken["hdgemm"])
    median = statistics.median(taken["numpy"]) / statistics.median(taken["hdgemm"])
    print(f"n = {n}: {ratio:.3f} of numpy.matmul (best), {median:.3f} (median)", flush=True)
    return {
        "share_best": ratio,
        "share_median": median,
        "gflops": {name: spread(values) for name, values in gflops.items()},
    }


def overhead(repeats: int) -> dict[str, Any]:
    """Return the microseconds that hdgemm.matmul adds to numpy.matmul for a 4×4 product."""
    a, b = np.random.default_rng(0).standard_normal((2, TINY, TINY))
    added, best = [], {"numpy": float("inf"), "hdgemm": float("inf")}
    for _ in range(repeats * 3):
        each = {
            name: min(
                seconds_of(lambda f=function: [f(a, b) for _ in range(TINY_CALLS)])
                for _ in range(3)
            )
            / TINY_CALLS
            * 1e6
            for name, function in (("numpy", np.matmul), ("hdgemm", hdgemm.matmul))
        }
        added.append(each["hdgemm"] - each["numpy"])
        best = {name: min(best[name], value) for name, value in each.items()}
    print(f"n = {TINY}: {statistics.median(added):.1f} µs added (median), {min(added):.1f} (best)")
    return {"n": TINY, "added_microseconds": spread(added), "best_microseconds": best}


def main() -> None:
    """Measure and write bench/results/in_ram.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    where = environment()
    tiny = overhead(args.repeats)
    sizes = {str(n): compare(n, args.repeats) for n in args.sizes}
    save("in_ram", {"sizes": sizes, "overhead": tiny}, where)


if __name__ == "__main__":
    main()
