"""Norms of stored matrices, in one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.linalg.planning import STREAM_BUFFERS
from hdgemm.linalg.read_ahead import ReadAhead

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix

#: Bytes of a stream buffer, where memory allows them.
_BLOCK_BYTES: Final = 32 << 20


def norm_inf(matrix: StoredMatrix, memory: int) -> float:
    """Return the largest sum of absolute values of a row, 0 for an empty matrix; NaN for NaN.

    Parameters
    ----------
    memory
        Bytes of the stream's buffers and of the absolute values.
    """
    lines = matrix.T if matrix.order == "F" else matrix
    rows, cols = lines.shape
    each = max(1, cols * lines.dtype.itemsize)
    height = max(1, min(_BLOCK_BYTES, memory // (STREAM_BUFFERS + 1)) // each)
    sums = np.zeros(matrix.shape[0], lines.dtype.type(0).real.dtype)
    dtype = lines.dtype.newbyteorder("=")
    buffers = [np.empty((min(height, rows), cols), dtype) for _ in range(STREAM_BUFFERS)]

    def read(first: int, buffer: int) -> tuple[int, NDArray[Any]]:
        block = buffers[buffer][: min(height, rows - first)]
        return first, lines[first : first + height, :].read(block)

    with ReadAhead() as reads, np.errstate(over="ignore"):
        for first, block in reads.blocks(range(0, rows, height), read):
            if lines is matrix:
                sums[first : first + len(block)] = np.abs(block).sum(axis=1)
            else:
                sums += np.abs(block).sum(axis=0)
    return float(sums.max(initial=0))
