"""From a shape to a plan: units in order, steps, and the loads that bring their tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from hdgemm.pipeline.plan import (
    NO_SLOTS,
    Expectation,
    Load,
    Overlap,
    Plan,
    Rect,
    Slots,
    Step,
    WorkUnit,
)
from hdgemm.planning.memory import ceil_div, scratch_bytes, slot_bytes, staging
from hdgemm.planning.order import cut, sweep, taper, walk
from hdgemm.planning.reuse import Residence, fetch_always, keep_nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import DeviceSpec, Operand, Problem
    from hdgemm.planning.order import Cell, Span
    from hdgemm.planning.shapes import Shape

#: What each strategy of the paper's ladder overlaps (HDGEMM, algorithms 1 to 4).
OVERLAPS: Final[Mapping[str, Overlap]] = {
    "initial": Overlap(loads=False, stores=False, c_on_device=False),
    "double-buffering": Overlap(loads=False, stores=True, c_on_device=False),
    "data-reuse": Overlap(loads=True, stores=True, c_on_device=False),
    "data-placement": Overlap(loads=True, stores=True, c_on_device=True),
    "hybrid": Overlap(loads=True, stores=True, c_on_device=True),
}


#: Where each load of one operand stands among all loads.
Places: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that a plan may hold in host memory and on its device."""

    host: int
    device: int


def build_plan(
    problem: Problem, device: DeviceSpec, strategy: str, shape: Shape, limits: Limits
) -> Plan:
    """Lay out a product cut into this shape; whether it fits is the caller's question."""
    overlap = OVERLAPS[strategy]
    tiles = shape.extents(problem)
    cells = _cells(problem, device, shape, wriggled=overlap.loads)
    chunks = cut(problem.k, shape.tile[2])
    sweeps = [sweep(chunks, unit, wriggled=overlap.loads) for unit in range(len(cells))]
    a, b = (
        _residence(problem, operand, shape, cells, sweeps, reuse=overlap.loads)
        for operand in ("A", "B")
    )
    loads, a_places, b_places = _merge(
        _loads(problem, "A", shape, a), _loads(problem, "B", shape, b)
    )
    steps = len(cells) * len(chunks)
    c_slots = _slots(problem, device, "C", tiles, shape.slots[2])
    room = limits.host - scratch_bytes(problem, c_slots.nbytes, shape.tile[1])
    if not overlap.c_on_device:
        room -= c_slots.total
    rings = staging(problem, device, tiles, room, drained=overlap.c_on_device)
    return Plan(
        problem=problem,
        device=device,
        strategy=strategy,
        overlap=overlap,
        tile=shape.tile,
        a_slots=_slots(problem, device, "A", tiles, shape.slots[0]),
        b_slots=_slots(problem, device, "B", tiles, shape.slots[1]),
        c_slots=c_slots,
        up=rings.up,
        down=rings.down,
        loads=loads,
        units=tuple(_units(cells, len(chunks), c_slots.count)),
        steps=_steps(sweeps, _reads(a, a_places, steps), _reads(b, b_places, steps)),
        host_limit=limits.host,
        device_limit=limits.device,
    )


def in_place_plan(
    problem: Problem, device: DeviceSpec, strategy: str, limits: Limits, machine: Machine
) -> Plan:
    """One BLAS call on the caller's arrays: no loads, no slots, nothing moved."""
    m, n, k = problem.m, problem.n, problem.k
    rate = machine.flop_rate(problem.dtype) * machine.efficiency(m, n, k)
    seconds = problem.flops / rate
    return Plan(
        problem=problem,
        device=device,
        strategy=strategy,
        overlap=OVERLAPS[strategy],
        tile=(m, n, k),
        a_slots=NO_SLOTS,
        b_slots=NO_SLOTS,
        c_slots=NO_SLOTS,
        up=NO_SLOTS,
        down=NO_SLOTS,
        loads=(),
        units=(WorkUnit(0, 0, Rect(0, 0, m, n), -1, 0, 0),),
        steps=(Step(0, 0, 0, k, -1, -1),),
        host_limit=limits.host,
        device_limit=limits.device,
        in_place=True,
        expected=Expectation(seconds, {"mult1": seconds}, "cores"),
    )


def _cells(problem: Problem, device: DeviceSpec, shape: Shape, *, wriggled: bool) -> list[Cell]:
    mb, nb, _ = shape.tile
    cells = walk(cut(problem.m, mb), cut(problem.n, nb), shape.bars, wriggled=wriggled)
    quantum = device.granularity[0]
    if problem.c.encoded and problem.c.chunk is not None:
        # Half a chunk would be encoded twice.
        quantum = math.lcm(quantum, problem.c.chunk[0])
    return taper(cells, shape.halvings, quantum)


def _units(cells: Sequence[Cell], chunks: int, slots: int) -> list[WorkUnit]:
    return [
        WorkUnit(
            number=number,
            bar=cell.bar,
            rect=cell.rect,
            slot=number % slots if slots else -1,
            first=number * chunks,
            last=(number + 1) * chunks - 1,
        )
        for number, cell in enumerate(cells)
    ]


def _slots(
    problem: Problem,
    device: DeviceSpec,
    operand: Operand,
    tiles: Mapping[Operand, tuple[int, int]],
    count: int,
) -> Slots:
    if problem.spec(operand).path == "resident":
        return NO_SLOTS
    return Slots(count, int(slot_bytes(problem, device, operand, *tiles[operand])))


def _residence(
    problem: Problem,
    operand: Operand,
    shape: Shape,
    cells: Sequence[Cell],
    sweeps: Sequence[Sequence[Span]],
    *,
    reuse: bool,
) -> Residence | None:
    """Decide which tile of one operand is fetched when; None for one that is used in place."""
    if problem.spec(operand).path == "resident":
        return None
    mb, nb, _ = shape.tile
    across = mb * shape.blocks if operand == "A" else nb
    depth = shape.a_depth if operand == "A" else shape.b_depth
    per_panel = ceil_div(problem.k, depth)
    firsts = [(c.rect.row if operand == "A" else c.rect.col) // across * per_panel for c in cells]
    tiles = [
        first + chunk.start // depth
        for first, chunks in zip(firsts, sweeps, strict=True)
        for chunk in chunks
    ]
    slots = shape.slots[0 if operand == "A" else 1]
    if reuse:
        return keep_nearest(tiles, slots)
    # Blocks of one work unit share its tiles; without them each C tile is a unit of its own.
    work = [(c.rect.row // (mb * shape.blocks), c.rect.col) for c in cells]
    owners = chain.from_iterable(
        [owner] * len(chunks) for owner, chunks in zip(work, sweeps, strict=True)
    )
    return fetch_always(tiles, list(owners), slots)


def _loads(
    problem: Problem, operand: Operand, shape: Shape, residence: Residence | None
) -> list[Load]:
    if residence is None:
        return []
    rects = {
        tile: _rect(problem, operand, shape, tile)
        for tile in {fetch.tile for fetch in residence.fetches}
    }
    name: Literal["A", "B"] = "A" if operand == "A" else "B"
    return [Load(name, rects[tile], slot, step) for tile, slot, step in residence.fetches]


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


def _merge(a: Sequence[Load], b: Sequence[Load]) -> tuple[tuple[Load, ...], Places, Places]:
    """Put both operands' loads in the order of their first readers, and say where each stands."""
    loads = [*a, *b]
    order = np.argsort(np.array([load.step for load in loads], np.int64), kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return tuple(loads[i] for i in order.tolist()), places[: len(a)], places[len(a) :]


def _steps(
    sweeps: Sequence[Sequence[Span]], reads_a: Sequence[int], reads_b: Sequence[int]
) -> tuple[Step, ...]:
    units = [unit for unit, chunks in enumerate(sweeps) for _ in chunks]
    chunks = list(chain.from_iterable(sweeps))
    starts, lengths = (list(column) for column in zip(*chunks, strict=True))
    return tuple(map(Step, range(len(chunks)), units, starts, lengths, reads_a, reads_b))


def _reads(residence: Residence | None, places: Places, steps: int) -> list[int]:
    """Return for each step the number of the load that it reads, -1 for an operand in place."""
    if residence is None:
        return [-1] * steps
    reads: list[int] = places[np.array(residence.reads)].tolist()
    return reads
