"""How fast the link to a GPU takes page-locked memory: what host copies have to keep up with."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from hdgemm.pipeline.devices.protocol import Block, Tile

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.protocol import Device

#: One row of the sample, and rows: 32 MiB.
_ROW: Final = 1 << 20
_ROWS: Final = 32
_REPEATS: Final = 3


def measure_link(device: Device) -> float:
    """Return the bytes per second of the best of a few uploads; takes milliseconds."""
    nbytes = _ROW * _ROWS
    staging = device.allocate_staging(nbytes)
    try:
        slot = device.allocate(nbytes)
        try:
            block = Block(
                Tile("A", slot, _ROWS, _ROW // 8, _ROW // 8, np.dtype("float64")),
                0, 0, _ROWS, _ROW // 8,
            )  # fmt: skip
            source = np.ndarray((_ROWS, _ROW // 8), np.float64, staging.array)
            source[...] = np.random.default_rng(0).random(source.shape)
            seconds = []
            for _ in range(_REPEATS + 1):
                began = time.perf_counter()
                device.upload(source, block, ()).wait()
                seconds.append(time.perf_counter() - began)
        finally:
            device.synchronize()
            device.free(slot)
    finally:
        device.free(staging)
    return nbytes / min(seconds[1:])
