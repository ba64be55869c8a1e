"""Cholesky factorisation on a grid of processes: right-looking, the lower triangle only.

The processes of a column factor a panel; it passes along the rows of the grid as a panel of LU
does. Each process then gathers from its column the rows of the panel that its own columns need,
and updates strips of columns from their diagonal on (ScaLAPACK's pdpotrf).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.fortran import potrf, trsm
from hdgemm.mpi._panel import Panel
from hdgemm.mpi._right_looking import RightLooking
from hdgemm.mpi._window import Strip

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.mpi._part import Part
    from hdgemm.mpi._timeline import PhaseRecorder
    from hdgemm.mpi._window import Solve, Window
    from hdgemm.mpi.variant import Variant

    Columns = NDArray[Any]


class SymmetricStrip(Strip):
    """Columns from their diagonal on, updated by the rows of a panel and their adjoint."""

    def solve(self, solve: Solve) -> None:
        """Do nothing: the rows of the panel are solved already."""


class CholeskyElimination(RightLooking):
    """Cholesky factorisation of the lower triangle of a `Part`; parameters as for `RightLooking`.

    `order` of the first leading minor that is not positive definite, 0 without one.
    """

    def __init__(
        self,
        variant: Variant,
        part: Part,
        window: Window,
        recorder: PhaseRecorder,
        progress: Callable[[float], None] | None = None,
        span: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(variant, part, window, recorder, progress, span)
        self.order = 0
        self._adjoints: dict[int, Columns] = {}

    @property
    def failed(self) -> bool:  # type: ignore[override] # known with the panel
        """A leading minor is not positive definite."""
        return self.order > 0

    def _panel(self, number: int, block: tuple[int, int]) -> Panel:
        """Return a panel, and gather its rows for the local columns."""
        panel = self._factored(number, block)
        # The first interchange stands for the order of the minor within the panel.
        if order := int(panel.pivots[0]):
            self.order = panel.first + order
        with self._recorder.record("swap", panel.first):
            self._adjoints[number] = self._adjoint(panel)
        return panel

    def _factored(self, number: int, block: tuple[int, int]) -> Panel:
        """Factor and send a panel, or receive it."""
        variant, part = self._variant, self._part
        first = number * variant.nb
        width = min(variant.nb, variant.n - first)
        root = part.cols.owner(first - self._first)
        if root != part.cols.process:
            self._update_until(root, self._broadcast.arrived)
            return self._receive(root, first, width)
        self._window.wait(*block)
        with self._recorder.record("panel", first):
            panel = self._factor(first, part.a[:, slice(*block)])
        with self._recorder.record("broadcast", first):
            self._broadcast.send(panel)
        return panel

    def _below(self, end: int) -> int:
        """Return the local row at which `below` begins: the updated columns' first row at least."""
        return self._part.rows.below(max(end, self._first))

    def _factor(self, first: int, columns: Columns) -> Panel:
        """Factor the diagonal block on its owner, and solve for the rows below it on all."""
        part, width = self._part, columns.shape[1]
        block, end = part.block(first, width), part.rows.below(first + width)
        top = np.zeros((width, width), columns.dtype, order="F")
        order = np.zeros(width, np.int64)
        if part.has_rows(first):
            order[0] = potrf(columns[block])
            top[:] = columns[block]
        part.column.broadcast(order, part.rows.owner(first))
        part.column.broadcast(top, part.rows.owner(first))
        below = columns[end:]
        if not order[0]:
            trans = "C" if columns.dtype.kind == "c" else "T"
            trsm(top, below, side="R", trans=trans)
        return Panel(first, order, top, below)

    def _adjoint(self, panel: Panel) -> Columns:
        """Return the adjoint of the panel's rows that have the numbers of the local columns."""
        part, start = self._part, max(panel.end, self._first)
        rows = _after(part.rows.positions(), start, self._variant.n)
        cols = _after(part.cols.positions() + self._first, start, self._last)
        owners = cols // part.rows.block % part.rows.processes
        own = np.searchsorted(rows, cols[owners == part.rows.process])
        sizes = [int(np.count_nonzero(owners == each)) for each in range(part.rows.processes)]
        message = np.ascontiguousarray(panel.below[own]).reshape(-1)
        parts = part.column.gather_parts(message, [panel.width * size for size in sizes])
        found = np.empty((panel.width, len(cols)), part.a.dtype, order="F")
        for process, each in enumerate(parts):
            found[:, owners == process] = each.reshape(-1, panel.width).conj().T
        return found

    def _apply(self, number: int, start: int, stop: int, *, urgent: bool = False) -> None:
        """Give the local columns from `start` to `stop` to the window, strip by strip."""
        part, panel = self._part, self._panels[number]
        adjoint = self._adjoints[number]
        after = part.cols.below(max(panel.end, self._first) - self._first)
        stop = min(stop, part.cols.below(self._last - self._first))
        width, below = self._width(), self._below(panel.end)
        positions = part.cols.positions() + self._first
        for left in range(start, stop, width):
            right = min(left + width, stop)
            # Rows above the diagonal of the first column are in no triangle.
            top = part.rows.below(int(positions[left]))
            columns = part.a[top:, left:right]
            strip = SymmetricStrip(panel, left, right, columns, urgent=urgent)
            strip.factor = panel.below[top - below :]
            strip.u = adjoint[:, left - after : right - after]
            self._window.announce(strip)
            self._window.wait(left, right, before=strip)
            self._window.open(strip)

    def _width(self) -> int:
        """Return the columns of a strip: few, since half of its diagonal part is not needed."""
        variant = self._variant
        return variant.strip or max(variant.nb, variant.n // (32 * variant.grid[1]))

    def _forget(self, number: int) -> None:
        """Free the adjoint of a panel."""
        self._adjoints.pop(number, None)


def _after(positions: NDArray[np.int64], first: int, n: int) -> NDArray[np.int64]:
    """Return the positions from `first` to `n`."""
    return positions[np.searchsorted(positions, first) : np.searchsorted(positions, n)]
