"""Substitution with a triangle in storage: its columns are read by blocks, and B is in memory.

Blocks of whole columns are contiguous in a column-major file, also of an upper triangle: T⁻¹·B
takes a multiple of each column from B, and T^-H·B a product of each column and the rows of X that
are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.fortran import gemm, trsm
from hdgemm.mpi._operands import Loader
from hdgemm.mpi.slabs._streamed import StoredColumns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.mpi._part import Part

    Columns = NDArray[Any]


class TriangularFactor(StoredColumns):
    """One triangle of a factor in storage; parameters as for `StoredColumns`.

    `zero` is the 1-based index of the first zero on the diagonal, as far as it was read; 0 without
    one.

    Parameters
    ----------
    lower
        The triangle that is read.
    unit
        The diagonal has ones, which are not stored.
    check_finite
        NaN and Inf in the triangle are errors.
    flipped
        The triangle is the transpose of the caller's; errors name places in the caller's.
    """

    def __init__(
        self,
        factor: StoredMatrix,
        part: Part,
        *,
        lower: bool,
        unit: bool = False,
        check_finite: bool = False,
        flipped: bool = False,
    ) -> None:
        super().__init__(factor, part)
        self.lower, self.unit, self.check_finite = lower, unit, check_finite
        self.flipped = flipped
        self.zero = 0

    def panels(self, *, reverse: bool) -> Iterator[tuple[int, int]]:
        """Yield the first column and the width of each panel, whose block is then in memory."""
        n, wide, nb = self._factor.shape[0], self._memory.cols.extent, self._memory.cols.block
        for first, last in _spans(0, n, wide, reverse=reverse):
            self._load_triangle(first, last)
            for start, stop in _spans(first, last, nb, reverse=reverse):
                yield start, stop - start

    def top(self, part: Part, first: int, width: int) -> Columns:
        """Return the diagonal block of a panel on the row of the grid that holds it."""
        top = self.diagonal(first, width)
        part.row.broadcast(top, self.owner(first))
        zeros = np.flatnonzero(top.diagonal() == 0)
        if zeros.size and not self.unit:
            found = first + int(zeros[0]) + 1
            self.zero = min(self.zero or found, found)
        return top

    def rest(self, part: Part, first: int, width: int) -> tuple[slice, Columns]:
        """Return the local rows of a panel beside its diagonal block, and their elements."""
        below, above = part.rows.below(first + width), part.rows.below(first)
        where = slice(below, part.rows.count) if self.lower else slice(0, above)
        rows = np.empty((where.stop - where.start, width), part.a.dtype, order="F")
        root = self.owner(first)
        if root == part.cols.process:
            rows[:] = self.columns(first, width)[where]
        part.row.broadcast(rows, root)
        return where, rows

    def _load_triangle(self, first: int, last: int) -> None:
        """Read the columns of a block from the diagonal on, or down to it."""
        part, check = self._begin(first, last), self.check_finite
        columns, corner, named = self._factor[:, first:last], (first, first), "the factor"
        if self.lower:
            loader = Loader(columns[first:], named, check, "lower", corner, flipped=self.flipped)
            loader.load(part, top=first)
            return
        Loader(columns[:first], named, check, corner=(0, first)).load(part)
        block = Loader(columns[first:last], named, check, "upper", corner, upper="stored")
        block.load(part, top=first)


def substitute(factor: TriangularFactor, part: Part) -> None:
    """Overwrite the columns of a part, right-hand sides, by T⁻¹·B."""
    for first, width in factor.panels(reverse=not factor.lower):
        block = part.block(first, width)
        x = np.empty((width, part.cols.count), part.a.dtype, order="F")
        if part.has_rows(first):
            x[:] = part.a[block]
            trsm(factor.top(part, first, width), x, lower=factor.lower, unit=factor.unit)
            part.a[block] = x
        part.column.broadcast(x, part.rows.owner(first))
        where, rows = factor.rest(part, first, width)
        gemm(-1.0, rows, x, part.a[where])


def substitute_adjoint(factor: TriangularFactor, part: Part) -> None:
    """Overwrite the columns of a part, right-hand sides, by T^-H·B."""
    trans = "C" if part.a.dtype.kind == "c" else "T"
    for first, width in factor.panels(reverse=factor.lower):
        where, rows = factor.rest(part, first, width)
        product = np.zeros((width, part.cols.count), part.a.dtype, order="F")
        gemm(1.0, rows, part.a[where], product, trans_a=trans)
        sums = part.column.total(product)
        if part.has_rows(first):
            block = part.block(first, width)
            x = np.array(part.a[block] - sums, order="F")
            trsm(factor.top(part, first, width), x, lower=factor.lower, trans=trans)
            part.a[block] = x


def _spans(first: int, last: int, width: int, *, reverse: bool) -> list[tuple[int, int]]:
    """Return the intervals of so many columns between two, in ascending or descending order."""
    found = [(start, min(start + width, last)) for start in range(first, last, width)]
    return found[::-1] if reverse else found
