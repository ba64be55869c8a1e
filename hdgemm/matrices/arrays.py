"""A matrix in RAM, copied by slabs of rows from several threads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.matrices._conversion_copy import copy_converted
from hdgemm.matrices.base import Matrix
from hdgemm.matrices.transfer import copy_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.matrices.transfer import Bounce, Transfer

#: Bytes that one thread copies at a time; less than two of them are copied by the caller. With
#: 2 MiB products on a GPU were 6 % slower: the interpreter's lock is taken more often.
SLAB_BYTES: Final = 4 << 20


class ArrayMatrix(Matrix):
    """A 2-D array of any strides; it is used in place, never copied."""

    name = "array"

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = self._array = array
        rows, cols = array.shape
        self.shape = rows, cols
        self.dtype = array.dtype

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]``, converting to its dtype."""
        _wait(self.begin_read(row, col, out))

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store `tile` at ``[row, col]``, converting to the array's dtype."""
        _wait(self.begin_write(row, col, tile))

    def begin_read(self, row: int, col: int, out: NDArray[Any]) -> Transfer | None:
        """Begin to read; None where it is done at the return."""
        rows, cols = out.shape
        return _by_slabs(_copy, out, self._array[row : row + rows, col : col + cols])

    def begin_write(self, row: int, col: int, tile: NDArray[Any]) -> Transfer | None:
        """Begin to write; None where it is done at the return."""
        rows, cols = tile.shape
        return _by_slabs(_copy, self._array[row : row + rows, col : col + cols], tile)

    def add_to(
        self, row: int, col: int, factor: np.generic, out: NDArray[Any], _scratch: NDArray[np.uint8]
    ) -> None:
        """Add `factor` times the rectangle at ``[row, col]`` to `out`, by several threads."""
        rows, cols = out.shape
        old = self._array[row : row + rows, col : col + cols]
        _wait(_by_slabs(partial(_add, factor), out, old))

    def part(self, row: int, col: int, shape: tuple[int, int]) -> ArrayMatrix:
        """Return the rectangle as a view of the array."""
        rows, cols = shape
        return ArrayMatrix(self._array[row : row + rows, col : col + cols])

    def strided(self, rows: range, cols: range) -> ArrayMatrix:
        """Return rows and columns as a view of the array."""
        return ArrayMatrix(self._array[_as_slice(rows), _as_slice(cols)])


def _as_slice(indices: range) -> slice:
    stop = indices.stop if indices.stop >= 0 else None
    return slice(indices.start, stop, indices.step) if indices else slice(0, 0)


def _by_slabs(
    work: Callable[[NDArray[Any], NDArray[Any]], None], target: NDArray[Any], source: NDArray[Any]
) -> Transfer | None:
    """Begin to do `work` on slabs of rows of two matrices of one shape, by the threads that copy.

    Small matrices are done at the return; None says so.
    """
    height = max(1, SLAB_BYTES // max(1, target.shape[1] * target.itemsize))
    if len(target) < 2 * height:
        work(target, source)
        return None

    def piece(top: int, _bounce: Bounce) -> None:
        work(target[top : top + height], source[top : top + height])

    return copy_pool().begin([partial(piece, top) for top in range(0, len(target), height)])


def _wait(transfer: Transfer | None) -> None:
    if transfer is not None:
        transfer.wait()


def _copy(target: NDArray[Any], source: NDArray[Any]) -> None:
    copy_converted(target, source)


def _add(factor: np.generic, target: NDArray[Any], source: NDArray[Any]) -> None:
    # As in BLAS, NaN and Inf raise no floating-point warnings.
    with np.errstate(all="ignore"):
        if factor != 1:
            source = np.multiply(source, factor, dtype=target.dtype, casting="same_kind")
        np.add(target, source, out=target, dtype=target.dtype, casting="same_kind")
