"""Factorisation of one panel: NB columns over the processes of a column, or of the whole grid.

Recursive; the rows of the panel's own block are known to every process, so that a triangular solve
is repeated by each instead of communicated (HPL, "recursive panel factorisation"; Jo et al.,
section 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

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


class HeldRows(Protocol):
    """Rows of the matrix that one process of several holds, in ascending order."""

    @property
    def process(self) -> int:
        """Number of this process."""

    def positions(self) -> NDArray[np.int64]:
        """Return the rows that this process holds."""

    def owner(self, position: int) -> int:
        """Return the process that holds a row."""


class SharedRows:
    """Rows of a panel, dealt to all processes of the grid (Jo et al., section 4.3).

    Process (r, c) of the grid takes part c of those rows that the processes (r, *) hold in the
    block-cyclic distribution.

    Parameters
    ----------
    rows
        The block-cyclic rows of this process.
    first
        The first row of the panel.
    col, cols
        Column of this process in the grid, and the number of columns.
    """

    def __init__(self, rows: Axis, first: int, col: int, cols: int) -> None:
        self._rows, self._cols, self._col = rows, cols, col
        self._first = first
        self.process = rows.process * cols + col

    def cuts(self, process: int) -> NDArray[np.int64]:
        """Return where the local rows of a row of the grid are cut, by number of the local row."""
        start = self._rows.below(self._first, process)
        count = self._rows.below(self._rows.extent, process) - start
        return start + np.arange(self._cols + 1) * count // self._cols

    def positions(self) -> NDArray[np.int64]:
        """Return the rows that this process holds."""
        start, stop = self.cuts(self._rows.process)[self._col :][:2]
        return self._rows.positions()[start:stop]

    def owner(self, position: int) -> int:
        """Return the process that holds a row, numbered along the rows of the grid."""
        process = self._rows.owner(position)
        local = self._rows.below(position, process)
        part = int(np.searchsorted(self.cuts(process), local, side="right")) - 1
        return process * self._cols + part


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
    start, end = rows.below(first), rows.below(first + width)
    if column.size == 1:
        local, _ = getrf(a[start:, :width])
        pivots = np.arange(first, first + width)
        pivots[: len(local)] = first + local
        top = np.array(a[start:end, :width], order="F")
        return Panel(first, pivots, top, a[end:, :width])
    pivots, top = factor_rows(a[start:, :width], first, rows, column)
    if rows.owner(first) == rows.process:
        a[start:end, :width] = top
    return Panel(first, pivots, top, a[end:, :width])


def factor_rows(
    a: Columns, first: int, rows: HeldRows, processes: Communicator
) -> tuple[NDArray[np.int64], Columns]:
    """Factor a panel over several processes; return its interchanges and its diagonal block.

    Parameters
    ----------
    a
        The rows from `first` on that this process holds, column-major. L overwrites the rows below
        the diagonal block; those of the block itself are left undefined.
    first
        The panel's first row and column.
    rows
        Which rows of the matrix these are; `processes` have its numbers.
    """
    factoring = _Factoring(a, first, rows, processes)
    factoring.factor(0, a.shape[1])
    return factoring.pivots, factoring.top


class _Factoring:
    """The state of one panel's factorisation by several processes."""

    def __init__(self, a: Columns, first: int, rows: HeldRows, processes: Communicator) -> None:
        width = a.shape[1]
        self._a, self._first, self._rows, self._processes = a, first, rows, processes
        positions = rows.positions()
        self._positions = positions[len(positions) - len(a) :]
        # Local rows that are not above the diagonal, for each row of the diagonal block.
        self._active = np.searchsorted(self._positions, first + np.arange(width + 1)).tolist()
        self._owners = [rows.owner(row) for row in range(first, first + width)]
        self._message = np.zeros(2 + 2 * width)
        self.top: Columns = np.zeros((width, width), a.dtype, order="F")
        self.pivots = np.zeros(width, np.int64)

    def factor(self, start: int, stop: int) -> None:
        """Factor columns of the panel, of which the columns before are factored and applied."""
        if stop - start <= NBMIN:
            for col in range(start, stop):
                self._eliminate(start, col, stop)
            return
        middle = (start + stop) // 2
        self.factor(start, middle)
        top = self.top[start:middle, middle:stop]
        trsm(self.top[start:middle, start:middle], top, unit=True)
        active = self._active[middle]
        gemm(-1.0, self._a[active:, start:middle], top, self._a[active:, middle:stop])
        self.factor(middle, stop)

    def _eliminate(self, start: int, col: int, stop: int) -> None:
        """Factor one column, to which the columns from `start` on are applied first.

        Columns are updated when their turn comes, rows of U when they are interchanged.
        """
        a, top = self._a, self.top
        if col > start:
            column = a[self._active[col] :, col]
            column -= a[self._active[col] :, start:col] @ top[start:col, col]
        self._interchange(col)
        if start < col < stop - 1:
            top[col, col + 1 : stop] -= top[col, start:col] @ top[start:col, col + 1 : stop]
        pivot = top[col, col]
        if pivot != 0:
            a[self._active[col + 1] :, col] /= pivot

    def _interchange(self, col: int) -> None:
        """Exchange the row of the pivot with the diagonal's; every process learns the former."""
        a, row, message = self._a, self._first + col, self._message
        width, active, place = a.shape[1], self._active[col], 0
        message[:2] = -1.0, row
        if active < len(a):
            sizes = np.abs(a[active:, col])
            place = active + int(sizes.argmax())
            message[:2] = sizes[place - active], self._positions[place]
            message[2 : 2 + width] = a[place]
        owner, own = self._owners[col], self._rows.process
        if owner == own:
            message[2 + width :] = a[active]
        found = self._processes.gather(message)
        # The largest element, of equal ones that of the lowest row, as LAPACK takes it; NaN first.
        candidates = found[:, :2].tolist()
        _, lowest, winner = max(
            (_nan_first(size), -position, process)
            for process, (size, position) in enumerate(candidates)
        )
        pivot = int(-lowest)
        self.pivots[col] = pivot
        self.top[col] = found[winner, 2 : 2 + width]
        if winner == own and pivot != row:
            a[place] = found[owner, 2 + width :]
        if owner == own:
            a[active] = self.top[col]


def _nan_first(value: float) -> float:
    return float("inf") if value != value else float(value)  # noqa: PLR0124
