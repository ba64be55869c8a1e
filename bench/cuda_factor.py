"""Factorisations of an array on one GPU: native and hybrid, against cuSOLVER through CuPy.

    python -m bench.cuda_factor [--n 12288 24576] [--repeats 2]

All start with the matrix in host memory and end with the factors there, by turns. Every
factorisation is checked by ||P·A·x - L·(U·x)|| (below 30). Joules are the GPU's, where its driver
counts them.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench.harness import environment, save, spread
from bench.hybrid_linalg import check, matrix
from hdgemm.linalg import cholesky, lu_factor
from hdgemm.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.report import Report

#: LAPACK's operation count in units of n³.
FLOPS: Final = {"cholesky": 1 / 3, "lu": 2 / 3}


def main() -> int:
    """Measure, print and write bench/results/cuda_factor.json after each order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--n", type=int, nargs="+", default=[12288, 24576])
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    where = environment()
    found: list[dict[str, Any]] = []
    for n in arguments.n:
        for name in FLOPS:
            found.append(_compare(name, n, arguments.device, arguments.repeats))
            print(found[-1], flush=True)
            save("cuda_factor", {"cases": found}, where)
    return 0


def _compare(name: str, n: int, device: str, repeats: int) -> dict[str, Any]:
    """Return the speed of each way, Tflop/s, and the GPU's joules."""
    a, flops = matrix(name, n), FLOPS[name] * n**3
    ways: dict[str, Callable[[Any], tuple[Any, Any, Report | None]]] = {
        strategy: partial(_ours, name, strategy, device) for strategy in ("native", "hybrid")
    }
    ways["cusolver"] = partial(_cusolver, name)
    tflops: dict[str, list[float]] = {way: [] for way in ways}
    joules: dict[str, float | None] = {}
    for turn in range(repeats + 1):  # the first turn loads kernels
        for way, call in ways.items():
            array = a.copy("F")
            began = time.perf_counter()
            factors, pivots, report = call(array)
            seconds = time.perf_counter() - began
            assert check(name, a, factors, pivots) < 30, (name, way)
            if turn:
                tflops[way].append(flops / seconds / 1e12)
            if report is not None and report.energy is not None:
                joules[way] = report.energy.joules.get(device)
    return {
        "routine": name,
        "n": n,
        "tflops": {way: spread(values) for way, values in tflops.items()},
        "joules": joules,
    }


def _ours(name: str, strategy: str, device: str, array: Any) -> tuple[Any, Any, Report]:
    reports: list[Report] = []
    keywords: dict[str, Any] = {
        "strategy": strategy, "options": Options(devices=device), "report": reports.append,
        "overwrite_a": True,
    }  # fmt: skip
    if name == "cholesky":
        return cholesky(array, lower=True, **keywords), None, reports[-1]
    factors, pivots = lu_factor(array, **keywords)
    return factors, pivots, reports[-1]


def _cusolver(name: str, array: Any) -> tuple[Any, Any, None]:
    """Copy the matrix up, factor it by one call of cuSOLVER, and copy the factors back."""
    import cupy
    import cupyx.scipy.linalg

    on_device = cupy.asarray(array, order="F")
    if name == "cholesky":
        return cupy.asnumpy(cupy.linalg.cholesky(on_device), order="F"), None, None
    factors, pivots = cupyx.scipy.linalg.lu_factor(on_device, overwrite_a=True, check_finite=False)
    return cupy.asnumpy(factors, order="F"), np.asarray(cupy.asnumpy(pivots)), None


if __name__ == "__main__":
    sys.exit(main())
