"""From a shape to a plan: work units in order, steps, and the loads that bring their tiles."""

from __future__ import annotations

import math
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import numpy as np

from hdgemm.pipeline.plan import NO_SLOTS, Expectation, Load, Plan, Rect, Slots, Step, WorkUnit
from hdgemm.planning.byte_counts import ceil_div, slot_bytes, staging
from hdgemm.planning.order import cut, sweep, taper, walk
from hdgemm.planning.reuse import Residence, fetch_always, keep_nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.plan import Operand, Problem
    from hdgemm.planning.case import Case
    from hdgemm.planning.order import CTile, Span
    from hdgemm.planning.shapes import Shape

_Row = TypeVar("_Row")
#: The index of each load of one operand among all loads.
Places: TypeAlias = "NDArray[np.int64]"


def build_plan(case: Case, shape: Shape) -> Plan:
    """Lay out a product in this shape, without checking that it fits the limits."""
    problem, overlap = case.problem, case.overlap
    c_tiles = _c_tiles(case, shape)
    chunks = cut(problem.k, shape.tile[2])
    # The order of the k-chunks in units with even and with odd numbers.
    sweeps = [sweep(chunks, unit, wriggled=overlap.loads) for unit in (0, 1)]
    a, b = (_residence(case, operand, shape, c_tiles, sweeps) for operand in ("A", "B"))
    loads, a_places, b_places = merge_loads(
        _loads(problem, "A", shape, a), _loads(problem, "B", shape, b)
    )
    steps = len(c_tiles) * len(chunks)
    slots = {operand: _slots(case, operand, shape) for operand in ("A", "B", "C")}
    rings = staging(case, shape.extents(problem), shape.slots[2])
    return Plan(
        problem=problem,
        device=case.device,
        strategy=case.strategy,
        overlap=overlap,
        tile=shape.tile,
        a_slots=slots["A"],
        b_slots=slots["B"],
        c_slots=slots["C"],
        up=rings.up.slots(),
        down=rings.down.slots(),
        loads=loads,
        units=_units(c_tiles, len(chunks), slots["C"].count),
        steps=_steps(
            [sweeps[number % 2] for number in range(len(c_tiles))],
            load_read_by_step(a, a_places, steps),
            load_read_by_step(b, b_places, steps),
        ),
        host_limit=case.limits.host,
        device_limit=case.limits.device,
    )


def in_place_plan(case: Case) -> Plan:
    """Return the plan of one BLAS call on the caller's arrays: no loads, no slots."""
    problem, machine = case.problem, case.machine
    m, n, k = problem.m, problem.n, problem.k
    seconds = problem.flops / machine.flop_rate(problem.dtype) / machine.efficiency(m, n, k)
    return Plan(
        problem=problem,
        device=case.device,
        strategy=case.strategy,
        overlap=case.overlap,
        tile=(m, n, k),
        a_slots=NO_SLOTS,
        b_slots=NO_SLOTS,
        c_slots=NO_SLOTS,
        up=NO_SLOTS,
        down=NO_SLOTS,
        loads=(),
        units=(WorkUnit(0, 0, Rect(0, 0, m, n), -1, 0, 0),),
        steps=(Step(0, 0, 0, k, -1, -1),),
        host_limit=case.limits.host,
        device_limit=case.limits.device,
        in_place=True,
        expected=Expectation(seconds, {"mult1": seconds}, "cores"),
    )


def _rows(kind: type[_Row], *columns: Iterable[Any]) -> tuple[_Row, ...]:
    """Make named tuples from columns, without a Python call for each."""
    make = partial(tuple.__new__, cast("Any", kind))
    return tuple(map(make, zip(*columns, strict=True)))


def _c_tiles(case: Case, shape: Shape) -> list[CTile]:
    """List the C tiles in order; with overlapped loads, bars are walked to and fro."""
    problem, (mb, nb, _) = case.problem, shape.tile
    rows, cols = cut(problem.m, mb), cut(problem.n, nb)
    c_tiles = walk(rows, cols, shape.bars, wriggled=case.overlap.loads)
    quantum = case.device.granularity[0]
    if problem.c.encoded and problem.c.chunk is not None:
        # Two stores into one chunk would encode it twice.
        quantum = math.lcm(quantum, problem.c.chunk[0])
    return taper(c_tiles, shape.halvings, quantum)


def _units(c_tiles: Sequence[CTile], chunks: int, slots: int) -> tuple[WorkUnit, ...]:
    numbers = range(len(c_tiles))
    places = (number % slots if slots else -1 for number in numbers)
    firsts = range(0, len(c_tiles) * chunks, chunks)
    lasts = range(chunks - 1, len(c_tiles) * chunks, chunks)
    bars, rects = zip(*c_tiles, strict=True)
    return _rows(WorkUnit, numbers, bars, rects, places, firsts, lasts)


def _slots(case: Case, operand: Operand, shape: Shape) -> Slots:
    if case.problem.spec(operand).path == "resident":
        return NO_SLOTS
    count = shape.slots["ABC".index(operand)]
    rows, cols = shape.extents(case.problem)[operand]
    return Slots(count, int(slot_bytes(case.problem, case.device, operand, rows, cols)))


def _residence(
    case: Case,
    operand: Operand,
    shape: Shape,
    c_tiles: Sequence[CTile],
    sweeps: Sequence[Sequence[Span]],
) -> Residence | None:
    """Decide which tile of one operand is loaded when; None for one that is used in place."""
    problem = case.problem
    if problem.spec(operand).path == "resident":
        return None
    mb, nb, _ = shape.tile
    across = mb * shape.blocks if operand == "A" else nb
    depth = shape.a_depth if operand == "A" else shape.b_depth
    per_panel = ceil_div(problem.k, depth)
    firsts = [(c.rect.row if operand == "A" else c.rect.col) // across * per_panel for c in c_tiles]
    offsets = [np.array([chunk.start // depth for chunk in chunks]) for chunks in sweeps]
    tiles = np.concatenate([first + offsets[number % 2] for number, first in enumerate(firsts)])
    slots = shape.slots[0 if operand == "A" else 1]
    if case.overlap.loads:
        return keep_nearest(tiles, slots)
    # Blocks of one work unit share its tiles; without blocks each C tile is a unit of its own.
    work = [(c.rect.row // (mb * shape.blocks), c.rect.col) for c in c_tiles]
    owners = [owner for owner in work for _ in sweeps[0]]
    return fetch_always(tiles.tolist(), owners, slots)


def _loads(
    problem: Problem, operand: Literal["A", "B"], shape: Shape, residence: Residence | None
) -> list[Load]:
    if residence is None or not residence.fetches:
        return []
    tiles, slots, steps = zip(*residence.fetches, strict=True)
    rects = {tile: _rect(problem, operand, shape, tile) for tile in set(tiles)}
    names = [operand] * len(tiles)
    return list(_rows(Load, names, map(rects.__getitem__, tiles), slots, steps))


def _rect(problem: Problem, operand: Operand, shape: Shape, tile: int) -> Rect:
    m, n, k = problem.m, problem.n, problem.k
    mb, nb, _ = shape.tile
    if operand == "A":
        rows, depth = mb * shape.blocks, shape.a_depth
        panel, part = divmod(tile, ceil_div(k, depth))
        row, col = panel * rows, part * depth
        return Rect(row, col, min(rows, m - row), min(depth, k - col))
    depth = shape.b_depth
    panel, part = divmod(tile, ceil_div(k, depth))
    row, col = part * depth, panel * nb
    return Rect(row, col, min(depth, k - row), min(nb, n - col))


def merge_loads(a: Sequence[Load], b: Sequence[Load]) -> tuple[tuple[Load, ...], Places, Places]:
    """Sort both operands' loads by their first readers; return each load's place too."""
    loads = [*a, *b]
    order = np.argsort(np.array([load.step for load in loads], np.int64), kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return tuple(map(loads.__getitem__, order.tolist())), places[: len(a)], places[len(a) :]


def _steps(
    sweeps: Sequence[Sequence[Span]], reads_a: Sequence[int], reads_b: Sequence[int]
) -> tuple[Step, ...]:
    units = chain.from_iterable([unit] * len(chunks) for unit, chunks in enumerate(sweeps))
    starts, lengths = zip(*chain.from_iterable(sweeps), strict=True)
    return _rows(Step, range(len(starts)), units, starts, lengths, reads_a, reads_b)


def load_read_by_step(residence: Residence | None, places: Places, steps: int) -> list[int]:
    """Return for each step the index of the load that it reads, -1 for an operand in place."""
    if residence is None:
        return [-1] * steps
    reads: list[int] = places[np.array(residence.reads, np.int64)].tolist()
    return reads
