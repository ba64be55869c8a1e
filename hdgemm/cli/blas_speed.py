"""The ceiling of a run: how fast this machine's BLAS is when everything is in RAM."""

from __future__ import annotations

import math
import time
from typing import Final

import numpy as np

#: Larger products are hardly faster, and smaller ones begin to be slower.
_LARGEST: Final = 4096
_ALIGNMENT: Final = 64


class BlasSpeed:
    """Best speed of `numpy.matmul` on float64 matrices that together take up to `memory` bytes.

    Measured a few times before and a few times after what it is compared with, so that a machine
    that slows down or speeds up meanwhile favours neither.
    """

    def __init__(self, memory: int) -> None:
        n = min(_LARGEST, math.isqrt(memory // 24))
        self.n = max(_ALIGNMENT, n - n % _ALIGNMENT)
        self.runs: list[float] = []

    @property
    def gflops(self) -> float:
        """The best run so far, in 10⁹ flop/s."""
        return max(self.runs)

    def measure(self, repeats: int = 3) -> None:
        """Time `repeats` products; one more first, uncounted, to warm up."""
        rng = np.random.default_rng(0)
        a, b = rng.random((2, self.n, self.n))
        c = np.empty_like(a)
        np.matmul(a, b, out=c)
        for _ in range(repeats):
            began = time.perf_counter()
            np.matmul(a, b, out=c)
            self.runs.append(2 * self.n**3 / (time.perf_counter() - began) / 1e9)
