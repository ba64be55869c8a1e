"""Checksums of rectangles of C: of the bytes as they are stored, in the machine's byte order."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix
    from hdgemm.pipeline.plan import Rect

#: Bytes that are read at a time to be summed.
_BLOCK: Final = 32 << 20
#: Elements at the start of a rectangle: a change of their checksum shows that it was written to.
SAMPLE: Final = 512


def as_stored(tile: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a tile in a store's dtype, contiguous; the tile itself where it is so already."""
    return np.ascontiguousarray(tile, dtype.newbyteorder("="))


def checksum(tile: NDArray[Any], start: int = 0) -> int:
    """Return the CRC-32 of a contiguous tile's bytes, going on from `start`."""
    return zlib.crc32(tile.reshape(-1).view(np.uint8).data, start)


def stored_checksum(matrix: Matrix, rect: Rect) -> int:
    """Read a rectangle and return the checksum that `checksum` gave for it, in bounded memory."""
    dtype = matrix.dtype.newbyteorder("=")
    height = max(1, _BLOCK // max(1, rect.cols * dtype.itemsize))
    total = 0
    for top in range(0, rect.rows, height):
        block = np.empty((min(height, rect.rows - top), rect.cols), dtype)
        matrix.read(rect.row + top, rect.col, block)
        total = checksum(block, total)
    return total


def checksum_of_start(matrix: Matrix, rect: Rect) -> int:
    """Read the first elements of a rectangle's first row and return their checksum."""
    row = np.empty((1, min(rect.cols, SAMPLE)), matrix.dtype.newbyteorder("="))
    matrix.read(rect.row, rect.col, row)
    return checksum(row)
