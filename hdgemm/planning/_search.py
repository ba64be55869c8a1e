"""Shapes for a case: thousands that fit are priced and the fastest taken, or a tile is forced."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from hdgemm.planning._pricing import price
from hdgemm.planning.byte_counts import PIECE_BYTES, ceil_div, does_not_fit, slot_bytes
from hdgemm.planning.shapes import BLOCKS, Shape, Shapes, grid, least_need, load_depths, smallest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hdgemm.pipeline.plan import Operand, Problem
    from hdgemm.planning._tile_costs import Seconds
    from hdgemm.planning.case import Case

    TileExtents = tuple[int, int, int]

#: Tiles of A and of B to hold at once, for each try; None: as many as the memory left over takes.
SlotChoices: TypeAlias = tuple[tuple[int | None, int | None], ...]

#: Extents below which a dimension is cut only when nothing larger fits.
_LEAST_EXTENTS: Final = (256, 32, 1)
#: Steps of large tiles are at most this deep, so that the first can start early.
_DEEPEST_STEP: Final = 4096
_SLOTS: Final[SlotChoices] = ((2, None), (None, 2))
#: For the best shapes only: no more than two slots, and a third, in which a load can start earlier.
_MORE_SLOTS: Final[SlotChoices] = (
    (2, 2),
    *_SLOTS,
    (2, 3),
    (3, 2),
    (3, 3),
    (3, None),
    (None, 3),
)
_ALONE: Final[SlotChoices] = ((1, 1),)
#: Slots of A, B and C to try for a forced tile, best first.
_FORCED_SLOTS: Final = ((3, 3, 2), (2, 3, 2), (3, 2, 2), (2, 2, 2), (2, 2, 1), (1, 1, 1))
#: How often the last C tile may be halved.
_HALVINGS: Final = (0, 1, 2, 3, 4, 5)
#: Seconds of a product whose last C tile stays whole: five more steps hide less than they cost.
_SHORT: Final = 0.01
#: Shapes that are priced a second time, a third time, and that the simulation may choose from.
_BETTER: Final = 2_000
_SHORTLIST: Final = 200
_TRIALS: Final = 32
#: Shapes that are fitted and priced at once: some 5 MB.
_BATCH: Final = 4096
#: A step takes more than `_DEEPEST_STEP` of k where k would be cut into more steps than this.
_MANY_STEPS: Final = 500_000
#: Bytes from which on a tile is larger than any memory: its bytes may exceed 64 bits.
_TOO_LARGE: Final = 2.0**58


def shapes_for(case: Case, tile: TileExtents | None) -> list[Shape]:
    """Return shapes that fit, best first; only one where a `tile` is forced. `DoesNotFitError` when
    none fits.
    """
    if tile is not None:
        return [_forced(case, tile)]
    found = search(case)
    if not found:
        tiny = smallest(case.problem, case.device, 1, case.problem.k)
        raise does_not_fit(case, least_need(case, tiny.shape(0)), "the smallest plan", "")
    return [_blocked(case, shape) for shape in found]


def search(case: Case) -> list[Shape]:
    """Return shapes that fit, best first by the closed form; none where none fits.

    Of shapes that differ only in slots, or in how often they are halved, the fastest is returned.
    """
    overlap = case.overlap
    tries = [(_SLOTS, 2)] if overlap.loads else []
    tries += [(_ALONE, 2 if overlap.stores else 1), (_ALONE, 1)]
    for least in _LEAST_EXTENTS:
        tiny = smallest(case.problem, case.device, least, _deepest(case.problem, least))
        if not least_need(case, tiny).fits(case):
            continue
        for slots, c_slots in tries:
            best = _best(case, fitting(case, least, slots, c_slots))
            if best is not None and slots is _SLOTS:
                few = best[0].take(slice(_BETTER // len(_MORE_SLOTS)))
                best = _best(case, [_with_slots(case, few, _MORE_SLOTS, c_slots)])
            if best is not None:
                return _shortlist(case, *best)
    return []


def _best(case: Case, parts: Iterable[Shapes]) -> tuple[Shapes, Seconds] | None:
    """Return the `_BETTER` best shapes of all parts and their merits, None where there are none."""
    best: tuple[Shapes, Seconds] | None = None
    for part in parts:
        shapes, merits = part, _merits(case, part)
        if best is not None:
            shapes, merits = Shapes.join([best[0], part]), np.concatenate([best[1], merits])
        better = np.argsort(merits, kind="stable")[:_BETTER]
        best = shapes.take(better), merits[better]
    return best


def _merits(case: Case, shapes: Shapes) -> Seconds:
    """Return the merits of all shapes; the prices of a part of them are in memory at a time."""
    starts = range(0, len(shapes.mb), _BATCH)
    parts = (shapes.take(slice(start, start + _BATCH)) for start in starts)
    return np.concatenate([price(case, part).merits() for part in parts])


def _shortlist(case: Case, shapes: Shapes, bound: Seconds) -> list[Shape]:
    """Price good shapes also with their last C tile halved, and return the best few."""
    can_halve = case.overlap.loads and not case.whole_units and bound.min() > _SHORT
    halvings = _HALVINGS if can_halve else (0,)
    most = _merits(case, shapes.halved(halvings[-1]))
    order = np.argsort(np.minimum(bound, most), kind="stable")
    best = Shapes.join([shapes.take(order[:_SHORTLIST]).halved(times) for times in halvings])
    merits = _merits(case, best)
    found: dict[tuple[object, ...], Shape] = {}
    for shape in best.ordered(np.argsort(merits, kind="stable")):
        cut = (shape.tile, shape.a_depth, shape.b_depth, shape.bars, shape.halvings > 0)
        found.setdefault(cut, shape)
        if len(found) == _TRIALS:
            break
    return list(found.values())


def fitting(case: Case, least: int, slots: SlotChoices, c_slots: int) -> Iterator[Shapes]:
    """Yield all shapes with extents from `least` up that fit with these slots, in batches."""
    problem, found = case.problem, list[Shapes]()
    for base in grid(problem, case.device, least, _deepest(problem, least)):
        for start in range(0, len(base.mb), _BATCH):
            part = _possible(case, base.take(slice(start, start + _BATCH)))
            found.append(_with_slots(case, part, slots, c_slots))
            if sum(len(shapes.mb) for shapes in found) >= _BATCH:
                yield Shapes.join(found)
                found.clear()
    if any(len(shapes.mb) for shapes in found):
        yield Shapes.join(found)


def _possible(case: Case, shapes: Shapes) -> Shapes:
    """Return the shapes whose tiles are small enough to count their bytes in 64 bits."""
    sides = shapes.extents(case.problem).values()
    largest = max(int(rows.max()) * int(cols.max()) for rows, cols in sides)
    if largest * case.problem.itemsize < _TOO_LARGE:
        return shapes
    areas = [rows.astype(float) * cols for rows, cols in sides]
    return shapes.take(np.max(areas, axis=0) * case.problem.itemsize < _TOO_LARGE)


def _with_slots(case: Case, base: Shapes, slots: SlotChoices, c_slots: int) -> Shapes:
    """Return the shapes that fit with these slots."""
    problem = case.problem
    # With two slots a C tile is stored while the next is computed; a halved one counts as two.
    base = base._replace(c_slots=np.minimum(c_slots, 2 * base.tiles(problem)[2]))
    base = base.take(least_need(case, base).fits(case))
    if not len(base.mb):
        return base
    a_all, b_all, _ = base.tiles(problem)
    found = []
    for want_a, want_b in slots:
        shapes = base._replace(
            a_slots=np.minimum(want_a or 2, a_all), b_slots=np.minimum(want_b or 2, b_all)
        )
        shapes = shapes.take(least_need(case, shapes).fits(case))
        if want_a is None or want_b is None:
            shapes = _fill(case, shapes, grow_a=want_a is None)
        found.append(shapes)
    return Shapes.join(found)


def _deepest(problem: Problem, least: int) -> int:
    """Return the most that a step may take of k: more where its tiles of A and B are small."""
    row = (min(problem.m, least) + min(problem.n, least)) * problem.itemsize
    return max(_DEEPEST_STEP, PIECE_BYTES // row, 16 * problem.k // _MANY_STEPS)


def _fill(case: Case, shapes: Shapes, *, grow_a: bool) -> Shapes:
    """Give the memory left over to slots of one operand."""
    a_all, b_all, _ = shapes.tiles(case.problem)
    operand: Operand = "A" if grow_a else "B"
    held, most = (shapes.a_slots, a_all) if grow_a else (shapes.b_slots, b_all)
    need, extents = least_need(case, shapes), shapes.extents(case.problem)[operand]
    tile = np.maximum(1, slot_bytes(case.problem, case.device, operand, *extents))
    room = case.limits.device - need.device
    if case.device.unified:
        room = np.minimum(room, case.limits.host - need.host)
    slots = np.minimum(most, held + room // tile)
    return shapes._replace(**{"a_slots" if grow_a else "b_slots": slots})


def _forced(case: Case, tile: TileExtents) -> Shape:
    """Return the best shape that fits and has this tile."""
    shapes = list(_forced_shapes(case, tile))
    for shape in shapes:
        if least_need(case, shape).fits(case):
            return _fastest(case, shape)
    need, advice = least_need(case, shapes[-1]), " or let the planner choose the tile"
    raise does_not_fit(case, need, f"the tile {tile}", advice)


def _forced_shapes(case: Case, tile: TileExtents) -> Iterator[Shape]:
    """Yield the shapes that a forced tile can have, best first."""
    problem, overlap = case.problem, case.overlap
    mb, nb, kb = (min(pair) for pair in zip(tile, (problem.m, problem.n, problem.k), strict=True))
    whole = Shapes.of(Shape((mb, nb, kb), kb, kb, (0, 0, 0)))
    a_all, b_all, c_all = (int(count[0]) for count in whole.tiles(problem))
    for a, b, c in _FORCED_SLOTS:
        if not overlap.loads and (a, b) != (1, 1):
            a, b, c = 1, 1, 2 if overlap.stores else 1  # noqa: PLW2901 - nothing to hold ahead
        shape = Shape((mb, nb, kb), kb, kb, (min(a, a_all), min(b, b_all), min(c, c_all)))
        if overlap.stores and not overlap.loads and not case.whole_units:
            blocked = replace(shape, blocks=BLOCKS)
            fits = least_need(case, blocked).fits(case)
            if kb >= problem.k and mb % case.device.granularity[0] == 0 and fits:
                shape = blocked
        yield shape


def _blocked(case: Case, shape: Shape) -> Shape:
    """Cut a searched work unit into blocks where the strategy stores blocks while it multiplies."""
    mb, nb, kb = shape.tile
    overlap, gm = case.overlap, case.device.granularity[0]
    block = ceil_div(mb, BLOCKS * gm) * gm
    blocks = overlap.stores and not overlap.loads and not case.whole_units
    if not blocks or kb < case.problem.k or block >= mb:
        return shape
    blocked = replace(shape, tile=(block, nb, kb), blocks=BLOCKS, slots=(*shape.slots[:2], 2))
    return blocked if least_need(case, blocked).fits(case) else shape


def _fastest(case: Case, shape: Shape) -> Shape:
    """Return the shape with the bars and the depths of loads that the closed form prices lowest.

    From files, loads deeper than a step read whole rows; two slots of such are enough.
    """
    if not case.overlap.loads:
        return shape
    problem, (a, b, c) = case.problem, shape.slots
    few = min(2, a), min(2, b), c
    a_depths, b_depths = (load_depths(problem, x, shape.tile[2]) for x in ("A", "B"))
    shapes = Shapes.join(
        [
            Shapes.of(replace(shape, a_depth=a_depth, b_depth=b_depth, slots=slots, bars=bars))
            for slots in dict.fromkeys((shape.slots, few))
            for a_depth in a_depths
            for b_depth in b_depths
            for bars in ("columns", "rows")
        ]
    )
    a_all, b_all, _ = shapes.tiles(problem)
    shapes = shapes._replace(
        a_slots=np.minimum(shapes.a_slots, a_all), b_slots=np.minimum(shapes.b_slots, b_all)
    )
    shapes = shapes.take(least_need(case, shapes).fits(case))
    return shapes.shape(int(np.argmin(price(case, shapes).seconds)))
