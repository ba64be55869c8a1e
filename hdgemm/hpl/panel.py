"""Factorisation of one panel: NB columns over the processes of a column of the grid.

Recursive and right-looking; the rows of the panel's own block are known to every process, so that
a triangular solve is repeated by each instead of communicated (HPL, "recursive panel
factorisation"; seed 004, section 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.fortran import gemm, getrf, trsm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.hpl.communicator import Communicator
    from hdgemm.hpl.distribution import Axis

    Columns = NDArray[np.floating]

#: Columns that are factored one by one (HPL's NBMIN).
NBMIN: Final = 8


@dataclass(frozen=True, slots=True)
class Panel:
    """A factored panel, as the update of the columns after it needs it.

    Parameters
    ----------
    first
        The first row and column of the panel's diagonal block.
    pivots
        Row ``first + i`` was interchanged with row ``pivots[i]``, for i = 0, 1, ... in order.
    top
        The diagonal block: U, and L without its unit diagonal. Column-major.
    below
        L of the rows below the block that this process holds. Column-major.
    """

    first: int
    pivots: NDArray[np.int64]
    top: Columns
    below: Columns

    @property
    def width(self) -> int:
        """Columns of the panel."""
        return len(self.pivots)

    @property
    def end(self) -> int:
        """The first row and column after the diagonal block."""
        return self.first + self.width


def factor_panel(a: Columns, first: int, rows: Axis, column: Communicator) -> Panel:
    """Factor the local rows of a panel in place.

    Parameters
    ----------
    a
        All local rows of the panel's columns, column-major.
    first
        The panel's first column.
    rows
        Which rows of the matrix these are.
    column
        The processes that hold the other rows.
    """
    width = min(a.shape[1], rows.extent - first)
    start = rows.below(first)
    if column.size == 1:
        local, _ = getrf(a[start:, :width])
        pivots = np.arange(first, first + width)
        pivots[: len(local)] = first + local
        top = np.array(a[start : start + width, :width], order="F")
        return Panel(first, pivots, top, a[start + width :, :width])
    factoring = _Factoring(a[:, :width], first, rows, column)
    factoring.factor(0, width)
    if rows.owner(first) == rows.process:
        a[start : start + width, :width] = factoring.top
    below = a[rows.below(first + width) :, :width]
    return Panel(first, factoring.pivots, factoring.top, below)


class _Factoring:
    """The state of one panel's factorisation by several processes."""

    def __init__(self, a: Columns, first: int, rows: Axis, column: Communicator) -> None:
        width = a.shape[1]
        self._a, self._first, self._rows, self._column = a, first, rows, column
        self._positions = rows.positions()
        self.top: Columns = np.zeros((width, width), a.dtype, order="F")
        self.pivots = np.zeros(width, np.int64)

    def factor(self, start: int, stop: int) -> None:
        """Factor columns of the panel, of which the columns before are factored and applied."""
        if stop - start <= NBMIN:
            for col in range(start, stop):
                self._eliminate(col, stop)
            return
        middle = (start + stop) // 2
        self.factor(start, middle)
        top = self.top[start:middle, middle:stop]
        trsm(self.top[start:middle, start:middle], top, unit=True)
        active = self._rows.below(self._first + middle)
        gemm(-1.0, self._a[active:, start:middle], top, self._a[active:, middle:stop])
        self.factor(middle, stop)

    def _eliminate(self, col: int, stop: int) -> None:
        """Find the pivot of one column, interchange two rows, and update the columns to `stop`."""
        a, first = self._a, self._first
        pivot = self._interchange(col)
        active = self._rows.below(first + col + 1)
        if pivot != 0:
            a[active:, col] /= pivot
        a[active:, col + 1 : stop] -= np.outer(a[active:, col], self.top[col, col + 1 : stop])

    def _interchange(self, col: int) -> float:
        """Exchange the row of the pivot with the diagonal's; every process learns the former."""
        a, rows, row = self._a, self._rows, self._first + col
        width, active = a.shape[1], self._rows.below(self._first + col)
        message = np.zeros(2 + 2 * width)
        message[:2] = -1.0, row
        if active < len(a):
            place = active + int(np.argmax(np.abs(a[active:, col])))
            message[:2] = abs(a[place, col]), self._positions[place]
            message[2 : 2 + width] = a[place]
        owner = rows.owner(row)
        if owner == rows.process:
            message[2 + width :] = a[active]
        found = self._column.gather(message)
        # The largest element, of equal ones that of the lowest row, as LAPACK takes it; NaN first.
        winner = int(np.lexsort((found[:, 1], -_nan_first(found[:, 0])))[0])
        pivot = int(found[winner, 1])
        self.pivots[col] = pivot
        self.top[col] = found[winner, 2 : 2 + width]
        if winner == rows.process:
            a[rows.below(pivot)] = found[owner, 2 + width :]
        if owner == rows.process:
            a[active] = self.top[col]
        return float(self.top[col, col])


def _nan_first(values: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.isnan(values), np.inf, values)
