"""Elimination of one slab: panels of earlier slabs come from storage, its own ones are factored.

A stored panel takes the way of a panel that another process has factored: it passes along the rows
of the grid, its interchanges are applied to the slab, and the devices update with it. Its rows lie
in the order in which it was factored, so that all panels are applied as in memory; the interchanges
of later panels are applied to the stored rows at the end, once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.fortran import gemm, trsm
from hdgemm.mpi._elimination import Elimination
from hdgemm.mpi._operands import Loader
from hdgemm.mpi._panel import Panel, factor_panel
from hdgemm.mpi.distribution import Axis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.mpi._elimination import PanelFactorisation
    from hdgemm.mpi._part import Part
    from hdgemm.mpi._timeline import PhaseRecorder
    from hdgemm.mpi._window import Window
    from hdgemm.mpi.variant import Variant

    Columns = NDArray[Any]


class StoredFactors:
    """Finished columns of L and U in storage, read by blocks of whole panels into all ranks.

    Every method that reads is called by all ranks in the same order.

    Parameters
    ----------
    lu
        The file as this rank has opened it: the rows of each panel in the order in which it was
        factored.
    part
        Memory for one block.
    pivots
        Interchanges of each panel that is stored.
    """

    def __init__(
        self, lu: StoredMatrix, part: Part, pivots: Mapping[int, NDArray[np.int64]]
    ) -> None:
        self._lu, self._memory, self._pivots = lu, part, pivots
        # Columns in memory, and the columns whose rows from the block's diagonal on are there.
        self._block = self._lower = (0, 0)
        self.part = part

    def load_lower(self, first: int, last: int) -> None:
        """Read the block that begins with column `first`, from its diagonal on, before `last`."""
        if self._lower[0] <= first < self._lower[1]:
            return
        self._load(first, min(first + self._memory.cols.extent, last), first, self._lu.shape[0])
        self._lower = self._block

    def load_upper(self, last: int) -> tuple[int, int]:
        """Read the block that ends before column `last`, down to its diagonal; return its span."""
        width = self._memory.cols.extent
        first = (last - 1) // width * width
        self._load(first, last, 0, last)
        self._lower = (0, 0)
        return first, last

    def _load(self, first: int, last: int, top: int, bottom: int) -> None:
        memory = self._memory
        cols = replace(memory.cols, extent=last - first)
        self.part = replace(memory, a=memory.a[:, : cols.count], cols=cols)
        view = self._lu[top:bottom, first:last]
        Loader(view, "the factor", check_finite=False).load(self.part, top=top)
        self._block = (first, last)

    def owner(self, first: int) -> int:
        """Return the column of the grid that holds a panel of the block."""
        return self.part.cols.owner(first - self._block[0])

    def columns(self, first: int, width: int) -> Columns:
        """Return the local rows of a panel of the block, on the ranks that hold it."""
        return self.part.columns(first - self._block[0], width)

    def panel(self, first: int, width: int) -> Panel:
        """Return a panel of L, on the column of the grid that holds it: a copy."""
        part, columns = self.part, self.columns(first, width)
        top = self.diagonal(first, width)
        part.column.broadcast(top, part.rows.owner(first))
        below = np.array(columns[part.rows.below(first + width) :], order="F")
        return Panel(first, self._pivots[first], top, below)

    def diagonal(self, first: int, width: int) -> Columns:
        """Return the diagonal block of a panel where it lies; elsewhere memory for it."""
        part = self.part
        top = np.empty((width, width), part.a.dtype, order="F")
        if part.has_rows(first) and self.owner(first) == part.cols.process:
            top[:] = self.columns(first, width)[part.block(first, width)]
        return top


class SlabElimination(Elimination):
    """LU of one slab; parameters as for `Elimination`, and the factors left of it.

    With an empty `span` at the end, the columns of the part are right-hand sides: L⁻¹ and the
    interchanges are applied to them.
    """

    def __init__(
        self,
        variant: Variant,
        part: Part,
        window: Window,
        recorder: PhaseRecorder,
        span: tuple[int, int],
        stored: StoredFactors,
        factor: PanelFactorisation = factor_panel,
    ) -> None:
        super().__init__(variant, part, window, recorder, span=span, factor=factor)
        self._stored = stored

    def _factored(self, number: int, block: tuple[int, int]) -> Panel:
        """Factor and send a panel of the slab, or receive it; read it where it is stored."""
        first = number * self._variant.nb
        if first >= self._first:
            return super()._factored(number, block)
        part, stored = self._part, self._stored
        width = min(self._variant.nb, self._variant.n - first)
        with self._recorder.record("read", first):
            stored.load_lower(first, self._first)
        root = stored.owner(first)
        if root == part.cols.process:
            with self._recorder.record("broadcast", first):
                panel = stored.panel(first, width)
                self._broadcast.send(panel)
            return panel
        if self._variant.depth:
            arrived = self._broadcast.arrived
            self._window.wait(0, part.cols.count, help_until=lambda: arrived(root))
        below = part.rows.count - part.rows.below(first + width)
        with self._recorder.record("broadcast", first):
            return self._broadcast.receive(root, first, width, below, part.a.dtype)


def back_substitute(stored: StoredFactors, part: Part) -> None:
    """Overwrite the columns of a part, right-hand sides, by U⁻¹·B; U is read from right to left."""
    nb, last = part.rows.block, part.rows.extent
    while last:
        first, last = stored.load_upper(last)
        for at in reversed(range(first, last, nb)):
            width = min(nb, last - at)
            _substitute(stored, part, at, width)
        last = first


def _substitute(stored: StoredFactors, part: Part, first: int, width: int) -> None:
    """Solve for the rows of X of one panel, and subtract their product above."""
    root, above = stored.owner(first), part.rows.below(first)
    x = np.empty((width, part.cols.count), part.a.dtype, order="F")
    if part.has_rows(first):
        top = stored.diagonal(first, width)
        part.row.broadcast(top, root)
        x[:] = part.a[part.block(first, width)]
        trsm(top, x, lower=False)
        part.a[part.block(first, width)] = x
    part.column.broadcast(x, part.rows.owner(first))
    rows = np.empty((above, width), part.a.dtype, order="F")
    if root == part.cols.process:
        rows[:] = stored.columns(first, width)[:above]
    part.row.broadcast(rows, root)
    gemm(-1.0, rows, x, part.a[:above])


def stream_part(part: Part, columns: int) -> Part:
    """Return memory for so many columns beside a part, on the same ranks."""
    cols = Axis(columns, part.cols.block, part.cols.processes, part.cols.process)
    lead = part.a.base.shape[0] if part.a.base is not None else len(part.a)
    memory = np.empty((lead, cols.count), part.a.dtype, order="F")
    return replace(part, a=memory[: part.rows.count], cols=cols)
