"""Norms of stored matrices, in one stream."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.matrices.read_ahead import BLOCK_BYTES, STREAM_BUFFERS, ReadAhead, array_in
from hdgemm.matrices.transfer import ALIGNMENT, aligned_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.linalg.slabs.slab import Slab
    from hdgemm.matrices.stored import StoredMatrix

#: Bytes of the absolute values that are added at once: they stay in the cache.
_STRIP_BYTES: Final = 256 << 10


def norm_inf(matrix: StoredMatrix, memory: int) -> float:
    """Return the largest sum of absolute values of a row, 0 for an empty matrix; NaN for NaN.

    Parameters
    ----------
    memory
        Bytes of the stream's buffers and of the absolute values.
    """
    sums = RowSums(matrix)
    for first, block in line_blocks(matrix, memory):
        sums.add(first, block)
    return sums.norm


class RowSums:
    """Sums of absolute values of a matrix's rows, from blocks of `line_blocks`."""

    def __init__(self, matrix: StoredMatrix) -> None:
        self._by_columns = matrix.order == "F"
        self._sums = np.zeros(matrix.shape[0], matrix.dtype.type(0).real.dtype)

    def add(self, first: int, block: NDArray[Any]) -> None:
        """Add a block of lines."""
        height = max(1, _STRIP_BYTES // max(1, block[:1].nbytes))
        with np.errstate(over="ignore"):
            for top in range(0, len(block), height):
                strip = np.abs(block[top : top + height])
                if self._by_columns:
                    self._sums += strip.sum(axis=0)
                else:
                    self._sums[first + top : first + top + len(strip)] = strip.sum(axis=1)

    @property
    def norm(self) -> float:
        """The largest sum: the infinity norm."""
        return float(self._sums.max(initial=0))


class ColumnSums:
    """Sums of absolute values of a matrix's columns, from slabs while they are loaded.

    Parameters
    ----------
    n
        The number of columns.
    triangle
        Slabs have the lower triangle of a symmetric or Hermitian matrix.
    """

    def __init__(self, n: int, *, triangle: bool = False) -> None:
        self._sums, self._triangle = np.zeros(n), triangle

    def add(self, slab: Slab) -> None:
        """Add the columns of a slab."""
        first, last, _ = slab.place
        width = max(1, _STRIP_BYTES // max(1, slab.array[:, :1].nbytes))
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(first, last, width):
                stop = min(start + width, last)
                part = np.abs(slab.array[:, start - first : stop - first])
                if self._triangle:
                    part = np.tril(part[start - first :])
                    self._sums[start:] += part.sum(axis=1)  # the other triangle, in its columns
                    self._sums[start:stop] -= np.diagonal(part)
                self._sums[start:stop] += part.sum(axis=0)

    @property
    def norm(self) -> float:
        """The largest sum: the 1-norm."""
        return float(self._sums.max(initial=0))


def line_blocks(
    matrix: StoredMatrix, memory: int, recorder: Recorder | None = None, group: int = 0
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the first line and the elements of blocks of rows, or of columns where those are
    contiguous in the file, as rows; each until the next one.

    Parameters
    ----------
    memory
        Bytes of the buffers, and as much beside them as one buffer has.
    recorder, group
        Records the reads, as for a group of right-hand sides.
    """
    lines = matrix.T if matrix.order == "F" else matrix
    rows, cols = lines.shape
    each = max(1, cols * lines.dtype.itemsize)
    height = max(1, min(BLOCK_BYTES, memory // (STREAM_BUFFERS + 1)) // each)
    size = min(height, rows) * each + ALIGNMENT
    buffers = [aligned_bytes(size) for _ in range(STREAM_BUFFERS)]

    def read(first: int, buffer: int) -> tuple[int, NDArray[Any]]:
        part = lines[first : first + height, :]
        block = array_in(buffers[buffer], part, lines.dtype.newbyteorder("="))
        with recorder.operation("load1", group, nbytes=block.nbytes) if recorder else nullcontext():
            return first, part.read(block)

    with ReadAhead() as reads:
        yield from reads.blocks(range(0, rows, height), read)
