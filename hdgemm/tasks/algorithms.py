"""Cholesky, LU and QR as serial code that inserts tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.tasks._tslu import TournamentTasks
from hdgemm.tasks.capability import HOST
from hdgemm.tasks.kernels import (
    discard_reflectors,
    gemm_below,
    geqrt_panel,
    getrf_panel,
    interchange,
    larfb,
    late_interchanges,
    potrf_diagonal,
    symmetric_update,
    trsm_below,
    trsm_beside,
)
from hdgemm.tasks.tiles import TaskTile
from hdgemm.tasks.tournament import LEAF

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.tasks.block_columns import BlockColumn, BlockColumns
    from hdgemm.tasks.task import Insert


def cholesky(a: BlockColumns, insert: Insert, *, lookahead: bool = True) -> None:
    """Insert the tasks of A = L·L^H, where the lower triangle of A becomes L.

    Without `lookahead`, each panel waits for all updates by the panel before it.
    """
    step = TaskTile("step", 0)
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
                where=a.where(panel, column),
            )


@dataclass(frozen=True, slots=True)
class Factorised:
    """What a factorisation leaves beside the factors in the array.

    LU fills `pivots` and `zeros`: 0-based interchanges as LAPACK's, and 1-based indices of zero
    pivots. QR fills `triangles`: T of the compact WY form of each panel.
    """

    pivots: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    zeros: tuple[int, ...] = ()
    triangles: tuple[NDArray[Any], ...] = ()


class Pivots:
    """The `count` interchanges of an LU factorisation."""

    def __init__(self, count: int) -> None:
        #: Row i was interchanged with row ``rows[i]``; 0-based, as LAPACK's.
        self.rows: NDArray[np.int64] = np.zeros(count, np.int64)
        #: 1-based indices of pivots that are exactly zero, at most one of each panel.
        self.zeros: list[int] = []


def lu(
    a: BlockColumns, insert: Insert, *, lookahead: bool = True, leaf: int | None = None
) -> Pivots:
    """Insert the tasks of P·A = L·U, where A becomes L and U; return where the pivots will be.

    Pivots of a panel are relative to its first row until the tasks are done: see `finish_pivots`.
    The rows of L to the left of a panel are interchanged at the end, once for each block column.
    With `leaf`, a tournament of blocks of so many rows chooses the pivots (CALU).
    """
    pivots = Pivots(min(a.shape))
    step = TaskTile("step", 0)
    order = () if lookahead else (step,)
    lowers: list[TaskTile] = []
    found = TaskTile("pivots", 0)
    for panel in a.panels():
        lower = _lower(panel)
        lowers.append(lower)
        found = TaskTile(f"pivots[{panel.number}]", 0)
        rows = pivots.rows[panel.first : panel.last]
        if leaf is None:
            insert(
                getrf_panel(panel, rows, pivots.zeros),
                reads=[panel.tile],
                writes=[panel.tile, lower, found, *order],
                priority=a.priority(panel),
            )
        else:
            tree = TournamentTasks(panel, leaf, partial(insert, priority=a.priority(panel)))
            tree.insert(rows, pivots.zeros, (lower, found), order)
        for column in a.after(panel):
            priority, tile = a.priority(column), column.tile
            where = a.where(panel, column)
            insert(
                interchange(column, panel.first, rows, panel),
                reads=[tile, found, *order],
                writes=[tile],
                priority=priority,
                where=where,
            )
            insert(
                trsm_beside(panel, lower, column),
                reads=[lower, tile],
                writes=[tile],
                priority=priority,
                where=where,
            )
            if panel.below(panel.last) > 0:
                insert(
                    gemm_below(panel, lower, column),
                    reads=[lower, tile, *order],
                    writes=[tile],
                    priority=priority,
                    where=where,
                )
    _interchange_left(a, pivots, lowers, found, insert)
    return pivots


def calu(a: BlockColumns, insert: Insert, *, lookahead: bool = True, leaf: int = LEAF) -> Pivots:
    """Insert the tasks of LU with tournament pivoting; see `lu`."""
    return lu(a, insert, lookahead=lookahead, leaf=leaf)


def finish_pivots(a: BlockColumns, pivots: Pivots) -> None:
    """Make the pivots relative to the first row of the matrix, when all tasks are done."""
    for panel in a.panels():
        pivots.rows[panel.first : panel.last] += panel.first


def _lower(panel: BlockColumn) -> TaskTile:
    """Return the tile of a panel from its diagonal on: what other devices need of it."""
    tile = panel.tile
    part = None if tile.array is None else panel.part(panel.first)
    nbytes = tile.nbytes // panel.bottom * panel.below(panel.first)
    return TaskTile(f"L[{panel.number}]", nbytes, part)


def _interchange_left(
    a: BlockColumns, pivots: Pivots, lowers: list[TaskTile], found: TaskTile, insert: Insert
) -> None:
    """Insert the interchanges of later panels in the rows of L, which lies on the host."""
    panels = a.panels()
    for panel, lower in zip(panels[:-1], lowers, strict=False):
        insert(
            late_interchanges(panel, panels, pivots.rows),
            reads=[panel.tile, found],
            writes=[panel.tile, lower],
            where=HOST,
        )


def qr(a: BlockColumns, insert: Insert, *, lookahead: bool = True) -> list[TaskTile]:
    """Insert the tasks of A = Q·R, where A becomes R and the reflectors below it.

    Returns the tiles of the triangles T of the compact WY form, one for each panel.
    """
    step = TaskTile("step", 0)
    order = () if lookahead else (step,)
    triangles = []
    for panel in a.panels():
        rows = panel.below(panel.first)
        width = min(panel.width, rows)
        v = TaskTile(f"V[{panel.number}]", rows * width * a.dtype.itemsize)
        t = TaskTile(f"T[{panel.number}]", width**2 * a.dtype.itemsize)
        if a.array is not None:
            t.array = np.zeros((width, width), a.dtype, "F")
        triangles.append(t)
        insert(
            geqrt_panel(panel, v, t),
            reads=[panel.tile],
            writes=[panel.tile, v, t, *order],
            priority=a.priority(panel),
        )
        for column in a.after(panel):
            insert(
                larfb(panel, v, t, column),
                reads=[v, t, column.tile, *order],
                writes=[column.tile],
                priority=a.priority(column),
                where=a.where(panel, column),
            )
        insert(discard_reflectors(panel, v), writes=[v], priority=a.priority(panel), where=HOST)
    return triangles


#: Algorithms by name.
ALGORITHMS: Final[dict[str, Callable[..., Any]]] = {
    "cholesky": cholesky,
    "lu": lu,
    "calu": calu,
    "qr": qr,
}
