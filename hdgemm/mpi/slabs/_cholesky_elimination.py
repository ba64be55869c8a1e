"""Cholesky factorisation of one slab: panels of earlier slabs come from storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hdgemm.mpi._cholesky_elimination import CholeskyElimination
from hdgemm.mpi._panel import Panel
from hdgemm.mpi.slabs._streamed import StoredColumns, Streamed

if TYPE_CHECKING:
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.mpi._part import Part
    from hdgemm.mpi._timeline import PhaseRecorder
    from hdgemm.mpi._window import Window
    from hdgemm.mpi.variant import Variant


class StoredTriangle(StoredColumns):
    """Finished columns of L: of each, a slab needs the rows from its own first one on.

    Parameters
    ----------
    slab
        The first column of the slab.
    """

    def __init__(self, factor: StoredMatrix, part: Part, slab: int) -> None:
        super().__init__(factor, part)
        self._slab = slab

    def _top(self, first: int, last: int) -> int:  # noqa: ARG002 - rows above update no column
        """Return the first row that is read: the slab's diagonal."""
        return last

    def panel(self, first: int, width: int) -> Panel:
        """Return the rows of a panel that update the slab; its diagonal block is not needed."""
        part = self.part
        below = np.array(self.columns(first, width)[part.rows.below(self._slab) :], order="F")
        top = np.zeros((width, width), part.a.dtype, order="F")
        return Panel(first, np.zeros(width, np.int64), top, below)


class SlabCholesky(Streamed, CholeskyElimination):
    """Cholesky factorisation of one slab; parameters as for `CholeskyElimination`, and L."""

    def __init__(
        self,
        variant: Variant,
        part: Part,
        window: Window,
        recorder: PhaseRecorder,
        span: tuple[int, int],
        stored: StoredTriangle,
    ) -> None:
        super().__init__(variant, part, window, recorder, span=span)
        self.stored = stored
