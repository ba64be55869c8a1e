"""Whole matrices of which one triangle is stored: symmetric, Hermitian and triangular ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.matrices.base import Wrapper

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix, Operand

#: Order of the largest diagonal block that is read whole.
_SQUARE: Final = 256


class _FromTriangle(Wrapper):
    """A square matrix that is read from one triangle of a stored one.

    The elements of the other triangle are read only where they lie in a diagonal block of up to
    `_SQUARE` rows; their values have no effect.
    """

    def __init__(self, matrix: Matrix, *, lower: bool) -> None:
        super().__init__(matrix)
        # What stands for the stored elements elsewhere does not stand for the whole matrix.
        self.array = self.source = self.opened_from = None
        self.lower = lower

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]`` of the whole matrix."""
        rows, cols = out.shape
        first, last = max(row, col), min(row + rows, col + cols)
        if not out.size:
            return
        if first >= last:  # no element of the diagonal
            if (row > col) == self.lower:
                self.stored.read(row, col, out)
            else:
                self._read_other(row, col, out)
        elif rows == cols == last - first <= _SQUARE:
            self.stored.read(row, col, out)
            self._complete(out)
        else:
            middle = (first + last) // 2 if last - first > _SQUARE else first
            for top, bottom in _intervals(row, first, middle, last, row + rows):
                for left, right in _intervals(col, first, middle, last, col + cols):
                    self.read(top, left, out[top - row : bottom - row, left - col : right - col])

    def part(self, row: int, col: int, shape: tuple[int, int]) -> Matrix:
        """Return a rectangle; the whole matrix is this one."""
        return self if shape == self.shape else super().part(row, col, shape)

    def _read_other(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from a rectangle of the triangle that is not stored."""
        raise NotImplementedError

    def _complete(self, block: NDArray[Any]) -> None:
        """Overwrite the elements of a diagonal block that are not stored."""
        raise NotImplementedError


class SymmetricMatrix(_FromTriangle):
    """A symmetric matrix of which `matrix` holds the lower or the upper triangle.

    Of a Hermitian one, elements of the other triangle are conjugated, and the diagonal is real.
    """

    def __init__(self, matrix: Matrix, *, lower: bool, hermitian: bool = False) -> None:
        super().__init__(matrix, lower=lower)
        self._hermitian = hermitian and matrix.dtype.kind == "c"

    def _read_other(self, row: int, col: int, out: NDArray[Any]) -> None:
        self.stored.read(col, row, out.T)
        if self._hermitian:
            np.conjugate(out, out=out)

    def _complete(self, block: NDArray[Any]) -> None:
        stored = np.tril_indices(len(block), -1) if self.lower else np.triu_indices(len(block), 1)
        block.T[stored] = block[stored].conj() if self._hermitian else block[stored]
        if self._hermitian:
            np.fill_diagonal(block.imag, 0)


def symmetric(operand: Operand, *, lower: bool, hermitian: bool) -> Operand:
    """Return the symmetric or Hermitian matrix of which an operand holds one triangle."""
    stored_lower = lower != operand.trans
    matrix = SymmetricMatrix(operand.matrix, lower=stored_lower, hermitian=hermitian)
    return replace(operand, matrix=matrix)


class TriangularMatrix(_FromTriangle):
    """A lower or upper triangular matrix: the other triangle is zero, whatever `matrix` has there.

    With `unit` the diagonal is not read; ones are in its place.
    """

    def __init__(self, matrix: Matrix, *, lower: bool, unit: bool = False) -> None:
        super().__init__(matrix, lower=lower)
        self._unit = unit

    def _read_other(self, row: int, col: int, out: NDArray[Any]) -> None:  # noqa: ARG002 - zeros
        out[...] = 0

    def _complete(self, block: NDArray[Any]) -> None:
        other = np.triu_indices(len(block), 1) if self.lower else np.tril_indices(len(block), -1)
        block[other] = 0
        if self._unit:
            np.fill_diagonal(block, 1)


def _intervals(*bounds: int) -> list[tuple[int, int]]:
    """Return the intervals between bounds, those outside the first and the last left out."""
    inside = sorted({bound for bound in bounds if bounds[0] <= bound <= bounds[-1]})
    return list(pairwise(inside))
