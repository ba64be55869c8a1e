"""A matrix in RAM, copied by slabs of rows from several threads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.matrices.transfer import Bounce, copy_pool

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bytes that one thread copies at a time; less than two of them are copied by the caller.
_SLAB: Final = 4 << 20


class ArrayMatrix:
    """A 2-D array of any strides, implementing `Matrix`; it is used in place, never copied."""

    name = "array"
    chunk: tuple[int, int] | None = None

    def __init__(self, array: NDArray[Any]) -> None:
        self.array: NDArray[Any] | None = array
        self._array = array

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the array."""
        rows, cols = self._array.shape
        return rows, cols

    @property
    def dtype(self) -> np.dtype[Any]:
        """The array's dtype, byte order included."""
        return self._array.dtype

    def phase(self, row: int, col: int) -> int:  # noqa: ARG002 - the protocol's signature
        """Return 0: an array is not on disk."""
        return 0

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]``, converting to its dtype."""
        rows, cols = out.shape
        _copy(out, self._array[row : row + rows, col : col + cols])

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store `tile` at ``[row, col]``, converting to the array's dtype."""
        rows, cols = tile.shape
        _copy(self._array[row : row + rows, col : col + cols], tile)

    def flush(self) -> None:
        """Do nothing: an array is never durable."""

    def close(self) -> None:
        """Do nothing: the array is the caller's."""


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
