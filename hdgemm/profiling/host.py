"""The CPU's own speed: BLAS on a product in RAM, as its share of a hybrid run is computed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from hdgemm.profiling.workload import Extents

#: The largest side, and how long it is multiplied, in seconds.
_SIDE: Final = 1024
_LONG: Final = 0.1


def host_speed(extents: Extents) -> float:
    """Return BLAS's 10⁹ flop/s on a part of a product, into memory that was written before."""
    n = max(256, min(_SIDE, extents.m // 2))
    k = max(256, min(_SIDE, extents.k))
    rng = np.random.default_rng(3)
    a, b = rng.random((n, k)), rng.random((k, n))
    out = a @ b
    flops, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < _LONG:
        np.matmul(a, b, out=out)
        flops += 2 * n * n * k
    return flops / seconds / 1e9
