"""A store seen as its transpose, for the rare reader that cannot take a flag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix

#: Bytes that are transposed at a time.
_BLOCK: Final = 8 << 20


class Transposed:
    """Reads `matrix` by rectangles of its transpose, in bounded memory; never written."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self.name = matrix.name
        self.dtype = matrix.dtype
        self.chunk = None
        self.array = None if matrix.array is None else matrix.array.T

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the transpose."""
        rows, cols = self._matrix.shape
        return cols, rows

    def phase(self, row: int, col: int) -> int:
        """Return the phase of the stored element."""
        return self._matrix.phase(col, row)

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the transpose's rectangle at ``[row, col]``."""
        rows, cols = out.shape
        height = max(1, _BLOCK // max(1, rows * out.itemsize))
        for first in range(0, cols, height):
            stored = np.empty((min(height, cols - first), rows), out.dtype)
            self._matrix.read(col + first, row, stored)
            out[:, first : first + height] = stored.T

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store the transpose of `tile`."""
        self._matrix.write(col, row, np.ascontiguousarray(tile.T))

    def flush(self) -> None:
        """Return when everything written is durable."""
        self._matrix.flush()

    def close(self) -> None:
        """Close the store."""
        self._matrix.close()
