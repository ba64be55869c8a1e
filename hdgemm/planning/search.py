"""The search for a shape: thousands that fit the limits are priced, the fastest come first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from hdgemm.planning.byte_counts import least_need
from hdgemm.planning.pricing import price
from hdgemm.planning.shapes import Shapes, grid

if TYPE_CHECKING:
    from hdgemm.planning.case import Case
    from hdgemm.planning.shapes import Shape

#: Tiles of A and of B to hold at once, for each try; None: as many as the memory left over takes.
SlotChoices: TypeAlias = tuple[tuple[int | None, int | None], ...]

#: Extents below which a dimension is cut only when nothing larger fits.
_LEAST_EXTENTS: Final = (256, 32, 1)
#: Steps are at most this deep, so that the first can start early.
_DEEPEST_STEP: Final = 4096
_SLOTS: Final[SlotChoices] = (
    (2, 2),
    (2, 3),
    (3, 2),
    (3, 3),
    (2, None),
    (None, 2),
    (3, None),
    (None, 3),
)
_ALONE: Final[SlotChoices] = ((1, 1),)
#: How often the last C tile may be halved.
_HALVINGS: Final = (0, 1, 2, 3, 4, 5)
#: Shapes that are priced a second time, a third time, and that the simulation may choose from.
_BETTER: Final = 10_000
_SHORTLIST: Final = 200
_TRIALS: Final = 32
#: The most steps of a plan. Planning takes about 10 µs and 800 bytes for each.
MOST_STEPS: Final = 500_000


def search(case: Case) -> list[Shape]:
    """Return shapes that fit, best first by the closed form; none where none fits.

    Of shapes that differ only in slots, or in how often they are halved, the fastest is returned.
    """
    overlap = case.overlap
    tries = [(_SLOTS, 2)] if overlap.loads else []
    tries += [(_ALONE, 2 if overlap.stores else 1), (_ALONE, 1)]
    for least in _LEAST_EXTENTS:
        for slots, c_slots in tries:
            shapes = fitting(case, least, slots, c_slots)
            if len(shapes.mb):
                return _shortlist(case, shapes)
    return []


def smallest(case: Case) -> Shape:
    """Return the shape of at most `MOST_STEPS` steps that exceeds the limits by the least."""
    problem = case.problem
    shapes = grid(problem, case.device, 1, problem.k)
    one = np.ones_like(shapes.mb)
    shapes = shapes._replace(a_slots=one, b_slots=one, c_slots=one)
    steps = shapes.steps(problem)
    shapes = shapes.take(steps <= max(MOST_STEPS, int(steps.min())))
    return shapes.shape(int(np.argmin(least_need(case, shapes).missing(case))))


def _shortlist(case: Case, shapes: Shapes) -> list[Shape]:
    """Price all shapes, the better ones also halved, the best with each number of halvings."""
    halvings = _HALVINGS if case.overlap.loads else (0,)
    bound = price(case, shapes.halved(0)).merits()
    better = np.argsort(bound, kind="stable")[:_BETTER]
    shapes, bound = shapes.take(better), bound[better]
    most = price(case, shapes.halved(halvings[-1])).merits()
    order = np.argsort(np.minimum(bound, most), kind="stable")
    best = Shapes.join([shapes.take(order[:_SHORTLIST]).halved(times) for times in halvings])
    merits = price(case, best).merits()
    found: dict[tuple[object, ...], Shape] = {}
    for index in np.argsort(merits, kind="stable"):
        shape = best.shape(int(index))
        cut = (shape.tile, shape.a_depth, shape.b_depth, shape.bars, shape.halvings > 0)
        found.setdefault(cut, shape)
        if len(found) == _TRIALS:
            break
    return list(found.values())


def fitting(case: Case, least: int, slots: SlotChoices, c_slots: int) -> Shapes:
    """Return every shape with extents from `least` up that fits with these slots."""
    problem = case.problem
    base = grid(problem, case.device, least, max(_DEEPEST_STEP, 16 * problem.k // MOST_STEPS))
    base = base.take(base.steps(problem) <= MOST_STEPS)
    # With two slots a C tile is stored while the next is computed; a halved one counts as two.
    base = base._replace(c_slots=np.minimum(c_slots, 2 * base.tiles(problem)[2]))
    base = base.take(least_need(case, base).fits(case))
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


def _fill(case: Case, shapes: Shapes, *, grow_a: bool) -> Shapes:
    """Give the memory left over to slots of one operand."""
    a_all, b_all, _ = shapes.tiles(case.problem)
    need = least_need(case, shapes)
    one_more = shapes._replace(
        a_slots=shapes.a_slots + (1 if grow_a else 0), b_slots=shapes.b_slots + (0 if grow_a else 1)
    )
    tile = np.maximum(1, least_need(case, one_more).device - need.device)
    room = case.limits.device - need.device
    if case.device.unified:
        room = np.minimum(room, case.limits.host - need.host)
    more = room // tile
    if grow_a:
        return shapes._replace(a_slots=np.minimum(a_all, shapes.a_slots + more))
    return shapes._replace(b_slots=np.minimum(b_all, shapes.b_slots + more))
