"""Seconds and loads of the tiles of many shapes, in closed form.

What `reuse` and `costs` count operation by operation, these formulas give for thousands of shapes
at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from hdgemm.pipeline.slots import PHASE_BYTES, UNIFIED_PIECE_BYTES
from hdgemm.planning._storage_chunks import file_requests, op_origin, sides_moved_whole
from hdgemm.planning.byte_counts import ceil_div, op_extents, staging

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Operand, Problem
    from hdgemm.planning.byte_counts import Count
    from hdgemm.planning.case import Case
    from hdgemm.planning.shapes import Shapes

#: Seconds, an array with one element for each shape.
Seconds: TypeAlias = Any
#: Seconds by stage or by resource.
Busy: TypeAlias = dict[str, Seconds]


class PerUnit(NamedTuple):
    """One figure for each kind of unit: the run's first, the others of the first bar, the first
    of a later bar, and the others of later bars.
    """

    run: Count
    first_bar: Count
    bar: Count
    unit: Count


class AverageTile(NamedTuple):
    """An average tile of an operand: its elements, and the requests that a file needs for it."""

    elements: Count
    requests: Count


def unit_counts(problem: Problem, shapes: Shapes) -> PerUnit:
    """Return how many units of each kind there are."""
    bars, per_bar = _bars(problem, shapes)
    return PerUnit(1, per_bar - 1, bars - 1, (bars - 1) * (per_bar - 1))


def unit_loads(problem: Problem, shapes: Shapes, operand: Operand, *, reuse: bool) -> PerUnit:
    """Return how many tiles of A or B each kind of unit loads; without `reuse` the whole panel.

    The operand that is the same along a bar finds its last tiles again in every unit, since k is
    swept to and fro. The other operand finds its last tiles again where a bar turns.
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


def average_tile(problem: Problem, shapes: Shapes, operand: Operand) -> AverageTile:
    """Return an operand's average tile; tiles at edges are smaller than the largest."""
    spec, extents = problem.spec(operand), shapes.extents(problem)[operand]
    m, n, k = problem.m, problem.n, problem.k
    rows, cols = {"A": (m, k), "B": (k, n), "C": (m, n)}[operand]
    tile_rows = rows / ceil_div(rows, extents[0])
    tile_cols = cols / ceil_div(cols, extents[1])
    elements = tile_rows * tile_cols
    if spec.place != "file":
        return AverageTile(elements, 0 * elements)
    stored = (tile_cols, tile_rows, rows) if spec.trans else (tile_rows, tile_cols, cols)
    return AverageTile(elements, file_requests(spec, *stored))


def _bars(problem: Problem, shapes: Shapes) -> tuple[Count, Count]:
    p, q = ceil_div(problem.m, shapes.mb), ceil_div(problem.n, shapes.nb)
    return np.where(shapes.rows, p, q), np.where(shapes.rows, q, p)


def tile_pieces(
    case: Case, shapes: Shapes, average: dict[Operand, AverageTile]
) -> dict[Operand, Count]:
    """Return the pieces in which the stages move an average tile of each operand."""
    problem, extents = case.problem, shapes.extents(case.problem)
    rings = staging(case, extents, shapes.c_slots)
    found: dict[Operand, Count] = {}
    for operand, tile in average.items():
        spec, ring = problem.spec(operand), rings.down if operand == "C" else rings.up
        itemsize = problem.tile_itemsize(operand)
        row = extents[operand][0 if spec.trans else 1] * itemsize
        most = ring.nbytes - (PHASE_BYTES if spec.place == "file" else 0)
        if not np.any(ring.nbytes):
            most = UNIFIED_PIECE_BYTES
        nbytes = tile.elements * itemsize
        found[operand] = np.ceil(nbytes / (np.maximum(1, most // row) * row))
    return found


def tile_busy(
    case: Case, shapes: Shapes, operand: Operand, tile: AverageTile, pieces: Count
) -> Busy:
    """Return the seconds that one tile takes of its stages and of their resources, by name."""
    problem, machine, spec = case.problem, case.machine, case.problem.spec(operand)
    gaps = pieces * machine.operation_seconds
    near, far = ("store2", "store1") if operand == "C" else ("load1", "load2")
    link = "pcie_down" if operand == "C" else "pcie_up"
    busy: Busy = {}
    if spec.path == "resident":
        return busy
    if not case.device.unified and (operand != "C" or case.overlap.c_on_device):
        rate = machine.pcie_down if operand == "C" else machine.pcie_up
        busy[link] = tile.elements * problem.tile_itemsize(operand) / rate
        busy[far] = busy[link] + gaps
        busy["interpreter"] = gaps
    if spec.path != "staged":
        return busy
    again = 1 if operand == "C" and problem.reads_c else 0
    nbytes = tile.elements * spec.itemsize
    if spec.place == "file":
        nbytes = nbytes * moved_ratio(problem, shapes, operand)
        decoding = nbytes / machine.decode * spec.encoded
        rate = machine.disk_write if operand == "C" else machine.disk_read
        busy["disk"] = nbytes / rate + again * nbytes / machine.disk_read
        requests = tile.requests * (1 + again)
        busy["cores"] = (requests * machine.request_seconds + decoding) / machine.cores
        alone = np.maximum(np.maximum(busy["disk"], busy["cores"]), decoding)
    else:
        moved = nbytes * (1 + again)
        busy["host_memory"] = 2 * moved / machine.memory
        alone = moved / machine.copy
        busy["cores"] = alone / machine.cores
    busy[near] = alone + gaps
    busy["interpreter"] = busy.get("interpreter", 0.0) + gaps
    return busy


def moved_ratio(problem: Problem, shapes: Shapes, operand: Operand) -> Count:
    """Return the elements moved for each element used, on average over all tiles."""
    origins = op_origin(problem.spec(operand))
    factor: Count = np.ones(len(shapes.mb))
    for side, extent in sides_moved_whole(problem, operand):
        tile, whole = shapes.extents(problem)[operand][side], op_extents(problem)[operand][side]
        step = min(extent, whole)
        # The average extent of the chunks touched by tiles that begin at the multiples of `tile`.
        common = np.gcd(tile, step)
        touched = tile + step - np.where(origins[side] % common == 0, common, 0)
        factor = factor * np.where(tile >= whole, 1.0, touched / tile)
    return factor
