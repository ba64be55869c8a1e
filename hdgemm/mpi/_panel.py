"""Factorisation of one panel: NB columns over the processes of a column, or of the whole grid.

Recursive; the rows of the panel's own block are known to every process, so that a triangular solve
is repeated by each instead of communicated (HPL, "recursive panel factorisation"; Jo et al.,
section 2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.fortran import getrf
from hdgemm.mpi._panel_kernels import PanelKernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.distribution import Axis

    Columns = NDArray[Any]

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


class SharedRows:
    """Rows of a panel, dealt to all processes of the grid (Jo et al., section 4.3).

    Process (r, c) of the grid takes part c of those `rows` that the processes (r, *) hold in the
    block-cyclic distribution, from the panel's `first` on. This process is in column `col` of
    `cols`.
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
    """Factor all local rows `a` of a panel in place, column-major; `first` is its first column.

    `rows` says which rows of the matrix these are; the processes of `column` hold the others.
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
    a: Columns, first: int, rows: Axis | SharedRows, processes: Communicator
) -> tuple[NDArray[np.int64], Columns]:
    """Factor a panel over several processes; return its interchanges and its diagonal block.

    `a`, column-major, has the rows from `first` on that this process holds. L overwrites the rows
    below the diagonal block; the block's own are left undefined. `rows` says which rows
    of the matrix these are; `processes` have its numbers.
    """
    factoring = _Factoring(a, first, rows, processes)
    factoring.factor(0, a.shape[1])
    return factoring.pivots, factoring.top


class _Factoring:
    """The state of one panel's factorisation by several processes."""

    def __init__(
        self, a: Columns, first: int, rows: Axis | SharedRows, processes: Communicator
    ) -> None:
        width = a.shape[1]
        self._a, self._first, self._rows, self._processes = a, first, rows, processes
        positions = rows.positions()
        self._positions = positions[len(positions) - len(a) :].tolist()
        # Local rows that are not above the diagonal, for each row of the diagonal block.
        self._active = np.searchsorted(
            positions[len(positions) - len(a) :], first + np.arange(width + 1)
        ).tolist()
        self._owners = [rows.owner(row) for row in range(first, first + width)]
        self._complex = a.dtype.kind == "c"
        self._sizes = np.empty(len(a), a.real.dtype)
        # Size and negative position of the candidate, its row, and the row of the diagonal.
        wide = np.dtype(np.complex128 if self._complex else np.float64)
        length = 2 + 2 * width * (wide.itemsize // 8)
        self._message, self._found = np.zeros(length), np.zeros((processes.size, length))
        both = self._message[2:].view(wide)
        self._candidate, self._diagonal = both[:width], both[width:]
        self._rows_found = self._found[:, 2:].view(wide)
        self.top: Columns = np.zeros((width, width), a.dtype, order="F")
        self.pivots = np.zeros(width, np.int64)
        self._kernels = PanelKernels(a, self.top, self._active)

    def factor(self, start: int, stop: int) -> None:
        """Factor columns of the panel, of which the columns before are factored and applied."""
        if stop - start <= NBMIN:
            for col in range(start, stop):
                self._eliminate(start, col)
            return
        middle = (start + stop) // 2
        self.factor(start, middle)
        self._kernels.update(start, middle, stop)
        self.factor(middle, stop)

    def _eliminate(self, start: int, col: int) -> None:
        """Factor one column, to which the columns from `start` on are applied first."""
        if col > start:
            self._kernels.update_column(start, col)
        self._interchange(col)
        pivot = self.top[col, col]
        if pivot != 0:
            below = self._a[self._active[col + 1] :, col]
            np.divide(below, pivot, out=below)

    def _interchange(self, col: int) -> None:
        """Exchange the row of the pivot with the diagonal's; every process learns the former.

        The row of the diagonal itself is not stored: it belongs to `top` from now on.
        """
        a, row, message = self._a, self._first + col, self._message
        active, owner, own = self._active[col], self._owners[col], self._rows.process
        size, position, place = -1.0, row, active
        if active < len(a):
            sizes = self._absolute(a[active:, col], self._sizes[active:])
            place += int(sizes.argmax())
            size, position = float(self._sizes[place]), self._positions[place]
            self._candidate[:] = a[place]
        # NaN is chosen first, as by argmax.
        message[0] = math.inf if math.isnan(size) else size
        message[1] = -position
        if owner == own:
            self._diagonal[:] = a[active]
        found = self._processes.gather(message, self._found)
        # The largest element; among equal ones the lowest row's, as in LAPACK.
        candidates = found[:, :2].tolist()
        largest = max(candidates)
        winner = candidates.index(largest)
        width = len(self.pivots)
        self.pivots[col] = pivot = int(-largest[1])
        self.top[col] = self._rows_found[winner, :width]
        if winner == own and pivot != row:
            a[place] = self._rows_found[owner, width:]

    def _absolute(self, column: Columns, out: NDArray[Any]) -> NDArray[Any]:
        """Return absolute values; of complex elements |Re| + |Im|, by which LAPACK compares."""
        if not self._complex:
            return np.abs(column, out=out)
        np.abs(column.real, out=out)
        out += np.abs(column.imag)
        return out
