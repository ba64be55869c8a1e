"""Random matrices of many shapes in three large pieces of memory, and a check of products."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

#: Left for staging, the driver and the peers' own buffers.
_RESERVE_BYTES = 6 << 30
_PART = 1 << 24


def largest_square(limit: int) -> int:
    """Return the largest n, a multiple of 1024, whose A, B and C the host's memory holds."""
    room = max(0, psutil.virtual_memory().available - _RESERVE_BYTES)
    return min(limit, int((room / 24) ** 0.5) // 1024 * 1024)


class Data:
    """A, B and C of up to n×n doubles; every product is a view, so that nothing is made twice.

    A and B are normal random numbers: zeros would let the GPU draw less power and clock higher.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._flat = [np.empty(n * n) for _ in range(3)]
        for seed, flat in enumerate(self._flat[:2]):
            _each_part(flat, _normal(seed))

    def product(self, m: int, n: int, k: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return A (m×k), B (k×n) and C (m×n), C-contiguous."""
        a, b, c = self._flat
        return (
            a[: m * k].reshape(m, k),
            b[: k * n].reshape(k, n),
            c[: m * n].reshape(m, n),
        )


def spoil(c: NDArray[Any]) -> None:
    """Fill C with NaN, so that no earlier product can pass for this one."""
    _each_part(c.reshape(-1), lambda part, _number: part.fill(np.nan))


def residual(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> float:
    """Return Freivalds' residual of C = A·B in units of its rounding error; sound below 1.

    C·x is held against A·(B·x) for a vector x of signs, so that no single wrong cell goes unseen,
    and several cancel with a probability of at most 1/2. The unit is ``(k + n)·eps·k·√n``, a
    loose bound for normal entries: a cell that is wrong by its own size is some 10⁶ units.
    """
    signs = np.random.default_rng(7).choice([-1.0, 1.0], b.shape[1])
    wanted, got = a @ (b @ signs), c @ signs
    unit = (a.shape[1] + b.shape[1]) * np.finfo(np.float64).eps
    size = a.shape[1] * b.shape[1] ** 0.5
    return float(np.max(np.abs(wanted - got)) / (unit * size))


def _normal(seed: int) -> Callable[[NDArray[Any], int], None]:
    def fill(part: NDArray[Any], number: int) -> None:
        np.random.default_rng((seed, number)).standard_normal(out=part)

    return fill


def _each_part(flat: NDArray[Any], work: Callable[[NDArray[Any], int], None]) -> None:
    """Do `work` on pieces of an array, in as many threads as there are cores."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        parts = range(0, flat.size, _PART)
        list(pool.map(lambda at: work(flat[at : at + _PART], at // _PART), parts))
