"""A matrix in RAM, copied by slabs of rows from several threads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.matrices.base import Matrix
from hdgemm.matrices.transfer import Bounce, copy_pool

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bytes that one thread copies at a time; less than two of them are copied by the caller.
_SLAB: Final = 4 << 20


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
        rows, cols = out.shape
        _copy(out, self._array[row : row + rows, col : col + cols])

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store `tile` at ``[row, col]``, converting to the array's dtype."""
        rows, cols = tile.shape
        _copy(self._array[row : row + rows, col : col + cols], tile)

    def part(self, row: int, col: int, shape: tuple[int, int]) -> ArrayMatrix:
        """Return the rectangle as a view of the array."""
        rows, cols = shape
        return ArrayMatrix(self._array[row : row + rows, col : col + cols])


def _copy(target: NDArray[Any], source: NDArray[Any]) -> None:
    height = max(1, _SLAB // max(1, target.shape[1] * target.itemsize))
    if len(target) < 2 * height:
        np.copyto(target, source, casting="same_kind")
        return
    copy_pool().run(
        [
            partial(_copy_slab, target[top : top + height], source[top : top + height])
            for top in range(0, len(target), height)
        ]
    )


def _copy_slab(target: NDArray[Any], source: NDArray[Any], _bounce: Bounce) -> None:
    np.copyto(target, source, casting="same_kind")
