"""Every n-th row and column of a matrix, as a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.matrices.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix

#: Bytes that are read at a time, elements that are dropped among them.
_BLOCK: Final = 1 << 20
#: Bytes between two rows from which each is read by a request of its own.
_GAP: Final = 48 << 10


class Strided(Wrapper):
    """Rows and columns of a matrix at constant steps, which may be negative.

    Elements between the columns, and between rows that lie close together, are read and dropped.

    Parameters
    ----------
    matrix
        The matrix that they belong to.
    rows, cols
        Indices of the rows and of the columns.
    """

    def __init__(self, matrix: Matrix, rows: range, cols: range) -> None:
        super().__init__(matrix)
        self._rows, self._cols = rows, cols
        self.shape = len(rows), len(cols)
        self.steps = rows.step * matrix.steps[0], cols.step * matrix.steps[1]
        first = (_bounds(rows)[0], _bounds(cols)[0]) if rows and cols else (0, 0)
        self.origin = (
            matrix.origin[0] + first[0] * abs(matrix.steps[0]),
            matrix.origin[1] + first[1] * abs(matrix.steps[1]),
        )
        self.array = self.chunk = self.opened_from = None
        self.encoded = False
        if not matrix.files and matrix.home is not None and matrix.home.is_file():
            self.files = (matrix.home,)  # the whole file counts for overlaps

    def phase(self, row: int, col: int) -> int:  # noqa: ARG002 - elements are picked
        """Return 0: no element is read without a copy."""
        return 0

    def part(self, row: int, col: int, shape: tuple[int, int]) -> Matrix:
        """Return a rectangle of these rows and columns."""
        rows, cols = shape
        return Strided(self.stored, self._rows[row : row + rows], self._cols[col : col + cols])

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]``, in bounded memory."""
        height, width = out.shape
        for top, left, rows, cols in self._pieces(
            self._rows[row : row + height], self._cols[col : col + width], out.itemsize
        ):
            (r0, r1), (c0, c1) = _bounds(rows), _bounds(cols)
            block = np.empty((r1 - r0, c1 - c0), out.dtype)
            self.stored.read(r0, c0, block)
            picked = block[:: abs(rows.step), :: abs(cols.step)]
            out[top : top + len(rows), left : left + len(cols)] = picked[
                :: 1 if rows.step > 0 else -1, :: 1 if cols.step > 0 else -1
            ]

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:  # noqa: ARG002 - refused
        """Refuse: elements between the columns would have to be read and written again."""
        raise InputError(
            f"{self.name} cannot be written by steps: write M[r0:r1, c0:c1], or single rows"
        )

    @staticmethod
    def _pieces(rows: range, cols: range, itemsize: int) -> Iterator[tuple[int, int, range, range]]:
        """Cut into pieces whose rectangles have at most `_BLOCK` bytes, one element at least."""
        wide = max(1, _BLOCK // itemsize // abs(cols.step))
        for left in range(0, len(cols), wide):
            part = cols[left : left + wide]
            row_bytes = ((len(part) - 1) * abs(cols.step) + 1) * itemsize
            between = (abs(rows.step) - 1) * row_bytes
            high = 1 if between > _GAP else max(1, _BLOCK // (row_bytes + between))
            for top in range(0, len(rows), high):
                yield top, left, rows[top : top + high], part


def _bounds(indices: range) -> tuple[int, int]:
    """Return the smallest index, and the largest one plus 1."""
    first, last = sorted((indices[0], indices[-1]))
    return first, last + 1
