"""Columns of finished factors in storage, which update a slab: panels that come from a file.

A stored panel takes the way of a panel that another process has factored: it passes along the rows
of the grid, and the devices update with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.mpi._operands import Loader
from hdgemm.mpi._right_looking import RightLooking
from hdgemm.mpi.distribution import Axis

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.mpi._panel import Panel
    from hdgemm.mpi._part import Part

    Columns = NDArray[Any]


class StoredColumns:
    """Finished columns of a factor in storage, read by blocks of whole panels into all ranks.

    Every method that reads is called by all ranks in the same order.

    Parameters
    ----------
    factor
        The file as this rank has opened it.
    part
        Memory for one block.
    """

    def __init__(self, factor: StoredMatrix, part: Part) -> None:
        self._factor, self._memory = factor, part
        self._block = (0, 0)  # span of the columns in memory
        self.part = part

    def load_lower(self, first: int, last: int) -> None:
        """Read the block that begins with column `first`, from its diagonal on, before `last`."""
        if self._block[0] <= first < self._block[1]:
            return
        stop = min(first + self._memory.cols.extent, last)
        top, part = self._top(first, last), self._begin(first, stop)
        view = self._factor[top:, first:stop]
        Loader(view, "the factor", check_finite=False).load(part, top=top)

    def _top(self, first: int, last: int) -> int:
        """Return the first row that `load_lower` reads."""
        raise NotImplementedError

    def _begin(self, first: int, last: int) -> Part:
        """Return memory for these columns, which is `part` from now on."""
        memory = self._memory
        cols = replace(memory.cols, extent=last - first)
        self.part = replace(memory, a=memory.a[:, : cols.count], cols=cols)
        self._block = (first, last)
        return self.part

    def owner(self, first: int) -> int:
        """Return the column of the grid that holds a panel of the block."""
        return self.part.cols.owner(first - self._block[0])

    def columns(self, first: int, width: int) -> Columns:
        """Return the local rows of a panel of the block, on the ranks that hold it."""
        return self.part.columns(first - self._block[0], width)

    def diagonal(self, first: int, width: int) -> Columns:
        """Return the diagonal block of a panel where it lies; elsewhere memory for it."""
        part = self.part
        top = np.empty((width, width), part.a.dtype, order="F")
        if part.has_rows(first) and self.owner(first) == part.cols.process:
            top[:] = self.columns(first, width)[part.block(first, width)]
        return top

    def panel(self, first: int, width: int) -> Panel:
        """Return a panel of L, on the column of the grid that holds it: a copy."""
        raise NotImplementedError


class Streamed(RightLooking):
    """Elimination of a slab; panels left of it come from `stored`. Before the factorisation's class
    in the list of bases.
    """

    stored: StoredColumns

    def _factored(self, number: int, block: tuple[int, int]) -> Panel:
        """Factor and send a panel of the slab, or receive it; read it where it is stored."""
        first = number * self._variant.nb
        if first >= self._first:
            return super()._factored(number, block)
        stored, width = self.stored, min(self._variant.nb, self._variant.n - first)
        with self._recorder.record("read", first):
            stored.load_lower(first, self._first)
        root = stored.owner(first)
        if root != self._part.cols.process:
            self._update_until(root, self._broadcast.arrived)
            return self._receive(root, first, width)
        with self._recorder.record("broadcast", first):
            panel = stored.panel(first, width)
            self._broadcast.send(panel)
        return panel


def stream_part(part: Part, columns: int) -> Part:
    """Return memory for so many columns beside a part, on the same ranks."""
    cols = Axis(columns, part.cols.block, part.cols.processes, part.cols.process)
    lead = part.a.base.shape[0] if part.a.base is not None else len(part.a)
    memory = np.empty((lead, cols.count), part.a.dtype, order="F")
    return replace(part, a=memory[: part.rows.count], cols=cols)
