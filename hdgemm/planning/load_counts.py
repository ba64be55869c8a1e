"""How often a shape loads its tiles and how many requests its files see, in closed form.

What `reuse` counts tile by tile, these formulas give at once for thousands of shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hdgemm.machine.rates import REQUEST_BYTES
from hdgemm.planning.memory import ceil_div

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Operand, Problem
    from hdgemm.planning.memory import Count
    from hdgemm.planning.shapes import Shapes


class PerUnit(NamedTuple):
    """One figure for each kind of unit: the run's first, the others of the first bar, the first
    of a later bar, and the others of later bars.
    """

    run: Count
    first_bar: Count
    bar: Count
    unit: Count


class Tile(NamedTuple):
    """An average tile of an operand: its elements, and the requests that a file needs for it."""

    elements: Count
    requests: Count


def unit_counts(problem: Problem, shapes: Shapes) -> PerUnit:
    """Return how many units of each kind there are."""
    bars, per_bar = _bars(problem, shapes)
    return PerUnit(1, per_bar - 1, bars - 1, (bars - 1) * (per_bar - 1))


def unit_loads(problem: Problem, shapes: Shapes, operand: Operand, *, reuse: bool) -> PerUnit:
    """Return how many tiles of A or B each kind of unit loads; without `reuse` the whole panel.

    The operand that stays along a bar finds its last tiles again at every unit, since k is swept
    to and fro. The other finds its last tiles again where the bars turn.
    """
    panel: Count = ceil_div(problem.k, shapes.a_depth if operand == "A" else shapes.b_depth)
    if problem.spec(operand).path == "resident":
        return PerUnit(*[0 * panel] * 4)
    if not reuse:
        return PerUnit(*[panel] * 4)
    _, per_bar = _bars(problem, shapes)
    slots = shapes.a_slots if operand == "A" else shapes.b_slots
    turned = panel - np.minimum(slots, panel)
    stays = shapes.rows == (1 if operand == "A" else 0)
    others = (per_bar - 1) * panel
    older = np.minimum(np.maximum(0, slots - panel), others)
    changing = (others - older) / np.maximum(1, per_bar - 1)
    return PerUnit(
        panel,
        np.where(stays, turned, panel),
        np.where(stays, panel, turned),
        np.where(stays, turned, changing),
    )


def average_tile(problem: Problem, shapes: Shapes, operand: Operand) -> Tile:
    """Return an operand's average tile; edges make it smaller than the largest."""
    spec, extents = problem.spec(operand), shapes.extents(problem)[operand]
    m, n, k = problem.m, problem.n, problem.k
    rows, cols = {"A": (m, k), "B": (k, n), "C": (m, n)}[operand]
    tile_rows = rows / ceil_div(rows, extents[0])
    tile_cols = cols / ceil_div(cols, extents[1])
    elements = tile_rows * tile_cols
    if spec.place != "file":
        return Tile(elements, 0 * elements)
    across, whole = (
        (tile_cols, extents[0] == rows) if spec.trans else (tile_rows, extents[1] == cols)
    )
    together = np.ceil(elements * spec.itemsize / REQUEST_BYTES)
    return Tile(elements, np.where(whole, together, across))


def _bars(problem: Problem, shapes: Shapes) -> tuple[Count, Count]:
    p, q = ceil_div(problem.m, shapes.mb), ceil_div(problem.n, shapes.nb)
    return np.where(shapes.rows, p, q), np.where(shapes.rows, q, p)
