"""Measured rates of host copies by number of threads."""

from __future__ import annotations

import time
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np

from hdgemm.machine.limits import cores
from hdgemm.matrices.arrays import SLAB_BYTES
from hdgemm.matrices.transfer import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.matrices.transfer import Bounce

_REPEATS: Final = 3


@cache
def copy_rates(nbytes: int) -> dict[int, float]:
    """Measure the bytes per second that 1, 2, 4 … threads copy together, up to all cores.

    Measured once per process and size; takes a few passes over `nbytes` for each count.
    """
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    counts = [1 << power for power in range(cores().bit_length()) if 1 << power <= cores()]
    return {threads: nbytes / _seconds(threads, source, target) for threads in counts}


def _seconds(threads: int, source: NDArray[np.uint8], target: NDArray[np.uint8]) -> float:
    """Time the best of a few copies by a pool of threads, in pieces of the matrices' size."""
    slabs: list[Callable[[Bounce], None]] = [
        partial(_copy, target[at : at + SLAB_BYTES], source[at : at + SLAB_BYTES])
        for at in range(0, source.size, SLAB_BYTES)
    ]
    pool = _pool(threads)
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        pool.run(slabs)
        times.append(time.perf_counter() - began)
    return min(times)


@cache
def _pool(threads: int) -> Pool:
    """Return one pool for each count of threads; its threads never end."""
    return Pool(threads, "copy-rates")


def _copy(target: NDArray[np.uint8], source: NDArray[np.uint8], _bounce: Bounce) -> None:
    np.copyto(target, source)
