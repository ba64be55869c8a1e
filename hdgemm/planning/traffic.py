"""How often a shape loads its tiles and how many requests its files see, in closed form.

What `reuse` counts tile by tile, these formulas give at once for thousands of shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hdgemm.planning.memory import ceil_div
from hdgemm.planning.rates import REQUEST_BYTES

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Operand, Problem
    from hdgemm.planning.memory import Count
    from hdgemm.planning.partition import Shapes


class Traffic(NamedTuple):
    """What one operand's tiles cost over a run.

    `loads` are tiles brought (or stored, for C), `passes` how many times the whole operand goes
    through, `nbytes` as the application stores them, `tile_bytes` for one tile, `requests` to
    files.
    """

    loads: Count
    passes: Count
    nbytes: Count
    tile_bytes: Count
    requests: Count


def count_loads(problem: Problem, shapes: Shapes, operand: Operand, *, reuse: bool) -> Count:
    """Return how many loads of A or B a shape needs; without `reuse` a whole panel every unit.

    The operand that changes with every unit of a bar finds its last tiles again where the bar
    turns; the one that stays finds them again at every unit, since k is swept to and fro.
    """
    per_panel = ceil_div(problem.k, shapes.a_depth if operand == "A" else shapes.b_depth)
    p, q = ceil_div(problem.m, shapes.mb), ceil_div(problem.n, shapes.nb)
    if not reuse:
        return p * q * per_panel
    slots = shapes.a_slots if operand == "A" else shapes.b_slots
    stays = shapes.rows == (1 if operand == "A" else 0)
    bars: Count = np.where(shapes.rows, p, q)
    per_bar: Count = np.where(shapes.rows, q, p)
    kept = np.minimum(slots, per_panel)
    staying = bars * (per_panel + (per_bar - 1) * (per_panel - kept))
    panels = per_bar * per_panel
    changing = bars * panels - (bars - 1) * np.minimum(slots, panels)
    return np.where(stays, staying, changing)


def load_traffic(problem: Problem, shapes: Shapes, operand: Operand, *, reuse: bool) -> Traffic:
    """Return what bringing A or B costs."""
    spec = problem.spec(operand)
    a = operand == "A"
    across = problem.m if a else problem.n
    extent = np.minimum(shapes.mb if a else shapes.nb, across)
    depth = np.minimum(shapes.a_depth if a else shapes.b_depth, problem.k)
    loads = count_loads(problem, shapes, operand, reuse=reuse)
    tiles = ceil_div(across, extent) * ceil_div(problem.k, depth)
    passes = loads / tiles
    tile_bytes = extent * depth * spec.itemsize
    # A is stored by rows of k elements, B by rows of n; a transpose turns that round.
    rows, whole = (extent, depth == problem.k) if a != spec.trans else (depth, extent == across)
    requests = _requests(problem, operand, loads, rows, whole, tile_bytes)
    nbytes = passes * (across * problem.k * spec.itemsize)
    return Traffic(loads, passes, nbytes, tile_bytes, requests)


def store_traffic(problem: Problem, shapes: Shapes) -> Traffic:
    """Return what storing C costs, and reading the old one where beta asks for it."""
    mb, nb = np.minimum(shapes.mb, problem.m), np.minimum(shapes.nb, problem.n)
    units = ceil_div(problem.m, mb) * ceil_div(problem.n, nb)
    tile_bytes = mb * nb * problem.c.itemsize
    requests = _requests(problem, "C", units, mb, nb == problem.n, tile_bytes)
    passes = 2 if problem.reads_c else 1
    nbytes = passes * problem.m * problem.n * problem.c.itemsize
    return Traffic(units, passes, nbytes, tile_bytes, requests * passes)


def _requests(
    problem: Problem, operand: Operand, tiles: Count, rows: Count, whole: Count, nbytes: Count
) -> Count:
    """Return the requests to a file: whole rows go together, part rows one by one."""
    if problem.spec(operand).place != "file":
        return 0 * tiles
    return tiles * np.where(whole, ceil_div(nbytes, REQUEST_BYTES), rows)
