"""Cholesky factorisation as serial code that inserts tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdgemm.tasks.kernels import potrf_diagonal, symmetric_update, trsm_below
from hdgemm.tasks.task import Tile

if TYPE_CHECKING:
    from hdgemm.tasks.block_columns import BlockColumns
    from hdgemm.tasks.task import Insert


def cholesky(a: BlockColumns, insert: Insert, *, lookahead: bool = True) -> None:
    """Insert the tasks of A = L·L^H, where the lower triangle of A becomes L.

    Without `lookahead`, each panel waits for all updates by the panel before it.
    """
    step = Tile("step", 0)
    order = () if lookahead else (step,)
    for panel in a.columns:
        priority = a.priority(panel)
        tile = panel.tile
        insert(potrf_diagonal(panel), reads=[tile], writes=[tile, *order], priority=priority)
        insert(trsm_below(panel), reads=[tile], writes=[tile, *order], priority=priority)
        for column in a.after(panel):
            insert(
                symmetric_update(panel, column),
                reads=[tile, column.tile, *order],
                writes=[column.tile],
                priority=a.priority(column),
                where=column.tile.home,
            )
