"""Whether the host's cores draw blocks of C or share threaded BLAS: measured once, then cached."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from hdgemm.machine.cache import read_entries, write_entry
from hdgemm.machine.limits import cores
from hdgemm.pipeline.devices.protocol import Block, Tile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.host import HostDevice

#: In the cache folder; an entry for each machine and number of threads.
_FILE: Final = "host_gemm.json"
#: Extents m, n and k of the measured step, and how many steps are queued at once.
_STEP: Final = (768, 4096, 512)
_STEPS: Final = 2
#: Floating-point operations of the shortest measurement: both ways, warmed up.
LEAST_FLOPS: Final = 2 * 2 * _STEPS * 2 * _STEP[0] * _STEP[1] * _STEP[2]
#: Drawing is kept down to this ratio. The measured steps are cut into blocks of 384×2048, which
#: cost 6 % more than threaded BLAS on 2 cores; the larger tiles of a plan cost 2 %. Beside another
#: process, drawing is faster by more than that.
_LEAST: Final = 0.85


def draws_blocks(threads: int) -> bool:
    """Return the cached decision; True where nothing was measured yet."""
    ratio = read_entries(_FILE).get(_key(threads))
    return not (isinstance(ratio, float) and ratio < _LEAST)


def measure_drawing(threads: int, seconds: float) -> float:
    """Time both by turns; return the speed of drawing divided by that of threaded BLAS.

    Each is warmed up just before it is timed: for some 26 ms after a product, OpenBLAS's threads
    wait for the next one in a loop, which would take half of a core from drawn blocks.
    """
    from hdgemm.pipeline.devices.host import HostDevice

    m, n, k = _STEP
    rng = np.random.default_rng(0)
    a, b, c = rng.random((m, k)), rng.random((k, n)), np.empty((m, n))
    devices = [HostDevice(threads=threads, draws=draws) for draws in (True, False)]
    best = [float("inf"), float("inf")]
    end = time.perf_counter() + seconds
    while best[1] == float("inf") or time.perf_counter() < end:
        for number, device in enumerate(devices):
            _seconds(device, a, b, c)
            best[number] = min(best[number], _seconds(device, a, b, c))
    for device in devices:
        device.close()
    return best[1] / best[0]


def remember_drawing(threads: int, ratio: float) -> None:
    """Cache what `measure_drawing` returned, for `draws_blocks`."""
    write_entry(_FILE, _key(threads), ratio)


def _seconds(
    device: HostDevice, a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]
) -> float:
    blocks = [
        Block(Tile("C", x, len(x), x.shape[1], x.shape[1], x.dtype), 0, 0, len(x), x.shape[1])
        for x in (a, b, c)
    ]
    began = time.perf_counter()
    for step in range(_STEPS):
        device.gemm(1.0, blocks[0], blocks[1], float(step > 0), blocks[2], ())
    device.synchronize()
    return time.perf_counter() - began


def _key(threads: int) -> str:
    return f"{platform.node()} {platform.machine()} {cores()} cores, {threads} threads"
