"""LU of one slab: panels of earlier slabs come from storage, its own ones are factored.

Interchanges of a stored panel are applied to the slab. Its rows lie in the order in which it was
factored, so that all panels are applied as in memory; the interchanges of later panels are applied
to the stored rows at the end, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hdgemm.mpi._elimination import Elimination
from hdgemm.mpi._panel import Panel, factor_panel
from hdgemm.mpi.slabs._streamed import StoredColumns, Streamed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.mpi._elimination import PanelFactorisation
    from hdgemm.mpi._part import Part
    from hdgemm.mpi._timeline import PhaseRecorder
    from hdgemm.mpi._window import Window
    from hdgemm.mpi.variant import Variant


class StoredFactors(StoredColumns):
    """Finished columns of L and U; parameters as for `StoredColumns`.

    Parameters
    ----------
    pivots
        Interchanges of each panel that is stored, whose rows lie in the order in which it was
        factored.
    """

    def __init__(
        self, lu: StoredMatrix, part: Part, pivots: Mapping[int, NDArray[np.int64]]
    ) -> None:
        super().__init__(lu, part)
        self._pivots = pivots

    def _top(self, first: int, last: int) -> int:  # noqa: ARG002 - interchanges need all rows
        """Return the first row that is read: the block's diagonal."""
        return first

    def panel(self, first: int, width: int) -> Panel:
        """Return a panel of L, on the column of the grid that holds it: a copy."""
        part, columns = self.part, self.columns(first, width)
        top = self.diagonal(first, width)
        part.column.broadcast(top, part.rows.owner(first))
        below = np.array(columns[part.rows.below(first + width) :], order="F")
        return Panel(first, self._pivots[first], top, below)


class SlabElimination(Streamed, Elimination):
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
        self.stored = stored
