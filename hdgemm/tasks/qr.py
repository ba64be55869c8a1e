"""QR factorisation by Householder reflectors as serial code that inserts tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hdgemm.tasks.capability import HOST
from hdgemm.tasks.kernels import discard_reflectors, geqrt_panel, larfb
from hdgemm.tasks.task import Tile

if TYPE_CHECKING:
    from hdgemm.tasks.block_columns import BlockColumns
    from hdgemm.tasks.task import Insert


def qr(a: BlockColumns, insert: Insert, *, lookahead: bool = True) -> list[Tile]:
    """Insert the tasks of A = Q·R, where A becomes R and the reflectors below it.

    Returns the tiles of the triangles T of the compact WY form, one for each panel.
    """
    step = Tile("step", 0)
    order = () if lookahead else (step,)
    triangles = []
    for panel in a.panels():
        rows = panel.below(panel.first)
        width = min(panel.width, rows)
        v = Tile(f"V[{panel.number}]", rows * width * a.dtype.itemsize)
        t = Tile(f"T[{panel.number}]", width**2 * a.dtype.itemsize)
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
                where=column.tile.home,
            )
        insert(discard_reflectors(panel, v), writes=[v], priority=a.priority(panel), where=HOST)
    return triangles
