"""Substitution with distributed triangles: the few columns move, the triangle stays.

A triangle of N columns has N²/2 elements, and each process multiplies its own ones by the rows of
X that are known. Partial sums are added along the rows of the grid, and each block of X passes down
one column of it, as HPL's back substitution does for one column (Jo et al., section 2.1).

Right-hand sides and solutions are the rows that a process holds, all columns, the same on each
process of a row of the grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.fortran import laswp, trsm
from hdgemm.mpi._interchange import RowExchange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from hdgemm.mpi._part import Part
    from hdgemm.mpi._strips import Rectangle

    Columns = NDArray[Any]


def back_substitute(part: Part, right: Columns) -> Columns:
    """Return U⁻¹·B in double precision; U is the upper triangle of the part's first N columns."""
    state = _State(part, right)
    for first, width in reversed(list(_blocks(part))):
        x = state.solve(first, width, lower=False)
        if x is not None:
            above = part.rows.below(first)
            state.sums[:above] += part.columns(first, width)[:above] @ x
    return state.solution()


def forward_substitute(
    part: Part, right: Columns, pivots: Mapping[int, NDArray[np.int64]] | None, *, unit: bool = True
) -> Columns:
    """Return L⁻¹·P·B in double precision; L is the lower triangle, with a `unit` diagonal or not.

    `pivots` are the interchanges of each panel, where the rows of L lie in the order in which their
    panel was factored; None where there are none any more.
    """
    state = _State(part, right)
    for first, width in _blocks(part):
        if pivots is not None:
            exchange = RowExchange(first, pivots[first], part.rows, part.column)
            u = exchange.apply(state.both)
            if part.has_rows(first):
                state.both[part.block(first, width)] = u
        x = state.solve(first, width, lower=True, unit=unit)
        if x is not None:
            below = part.rows.below(first + width)
            state.sums[below:] += part.columns(first, width)[below:] @ x
    return state.solution()


def back_substitute_adjoint(part: Part, right: Columns) -> Columns:
    """Return L^-H·B in double precision; L is the lower triangle of the part's first N columns."""
    x = right.astype(_wide(part), order="F")
    for first, width in reversed(list(_blocks(part))):
        block, below = part.block(first, width), part.rows.below(first + width)
        solution = np.empty((width, x.shape[1]), part.a.dtype, order="F")
        if part.has_columns(first):
            columns = part.columns(first, width)
            product = columns[below:].conj().T @ x[below:].astype(part.a.dtype, copy=False)
            sums = part.column.total(product)
            if part.has_rows(first):
                solution[:] = x[block] - sums
                trans = "C" if part.a.dtype.kind == "c" else "T"
                trsm(columns[block], solution, trans=trans)
        if part.has_rows(first):
            part.row.broadcast(solution, part.cols.owner(first))
            x[block] = solution
    return x


def interchange(part: Part, right: Columns, pivots: Mapping[int, NDArray[np.int64]]) -> Columns:
    """Return P·B: all interchanges are applied, panel by panel."""
    found = right.copy(order="F")
    interchange_rows(part, found, pivots)
    return found


def interchange_rows(part: Part, columns: Columns, pivots: Mapping[int, NDArray[np.int64]]) -> None:
    """Overwrite the columns of B by P·B."""
    for first, rows in pivots.items():
        u = RowExchange(first, rows, part.rows, part.column).apply(columns)
        if part.has_rows(first):
            columns[part.block(first, len(rows))] = u


def interchange_left(part: Part, pivots: Mapping[int, NDArray[np.int64]]) -> None:
    """Apply the interchanges of each panel to the columns left of it, as LAPACK leaves L's rows."""
    for first, rows in pivots.items():
        left = part.a[:, : part.cols.below(first)]
        if left.shape[1]:
            u = RowExchange(first, rows, part.rows, part.column).apply(left)
            if part.has_rows(first):
                left[part.block(first, len(rows))] = u


def interchange_strip(
    pivots: NDArray[np.int64], nb: int, strip: Rectangle, array: NDArray[Any]
) -> None:
    """Apply to each panel of a strip of whole columns the interchanges of the panels after it.

    The factorisation leaves the rows of L in the order in which their panel was factored.
    """
    first, last = strip.row, strip.row + strip.rows
    for start in range(first // nb * nb, last, nb):
        after = start + nb
        own = array[max(start, first) - first : min(after, last) - first]
        laswp(own.T, pivots[after:], after)


class _State:
    """Right-hand sides, and the products of X that this process has to subtract from them."""

    def __init__(self, part: Part, right: Columns) -> None:
        rows, count = right.shape
        self._part = part
        self.both: Columns = np.zeros((rows, 2 * count), _wide(part), order="F")
        self._right, self.sums = self.both[:, :count], self.both[:, count:]
        self._right[:] = right
        self._x: Columns = np.zeros((rows, count), _wide(part), order="F")

    def solve(self, first: int, width: int, *, lower: bool, unit: bool = False) -> Columns | None:
        """Return the rows of X of one block on the processes that hold the block's columns."""
        part, here = self._part, self._part.has_rows(first)
        block = part.block(first, width)
        x = np.empty((width, self._x.shape[1]), part.a.dtype, order="F")
        if here:
            x[:] = self._right[block] - part.row.total(self.sums[block])
        if not part.has_columns(first):
            return None
        if here:
            trsm(part.columns(first, width)[block], x, lower=lower, unit=unit)
        part.column.broadcast(x, part.rows.owner(first))
        if here:
            self._x[block] = x
        return x

    def solution(self) -> Columns:
        """Return the rows of X that this process holds."""
        self._part.row.join(self._x)
        return self._x


def _wide(part: Part) -> np.dtype[Any]:
    """Return the dtype of sums: single precision is added up in double."""
    return np.result_type(part.a.dtype, np.float64)


def _blocks(part: Part) -> Iterable[tuple[int, int]]:
    """Yield the first column and the width of each block of the triangle."""
    n, nb = part.rows.extent, part.rows.block
    return ((first, min(nb, n - first)) for first in range(0, n, nb))
