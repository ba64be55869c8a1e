"""The search for a shape: thousands that fit, each priced, the fastest taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from hdgemm.planning.fit import least_need
from hdgemm.planning.memory import ceil_div
from hdgemm.planning.pricing import price
from hdgemm.planning.shapes import Shapes, grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import DeviceSpec, Overlap, Problem
    from hdgemm.planning.build import Limits
    from hdgemm.planning.memory import Count
    from hdgemm.planning.shapes import Shape

#: Tiles of A and of B to hold at once, for each try; None stands for as many as the memory left
#: over takes.
SlotChoices: TypeAlias = tuple[tuple[int | None, int | None], ...]

#: Extents below which a dimension is cut only when nothing larger fits.
_LEAST_EXTENTS: Final = (256, 32, 1)
#: Steps no deeper than this, so that the first can start early.
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


def search(
    problem: Problem, device: DeviceSpec, overlap: Overlap, limits: Limits, machine: Machine
) -> list[Shape]:
    """Return shapes that fit, best first by the closed form; none where none fits.

    Shapes that differ in slots alone, or in how often they are halved, are represented by their
    fastest.
    """
    tries = [(_SLOTS, 2)] if overlap.loads else []
    tries += [(_ALONE, 2 if overlap.stores else 1), (_ALONE, 1)]
    for least in _LEAST_EXTENTS:
        for slots, c_slots in tries:
            shapes = fitting(problem, device, overlap, limits, least, slots, c_slots)
            if len(shapes.mb):
                return _shortlist(problem, device, overlap, shapes, machine)
    return []


def _shortlist(
    problem: Problem, device: DeviceSpec, overlap: Overlap, shapes: Shapes, machine: Machine
) -> list[Shape]:
    halvings = _HALVINGS if overlap.loads else (0,)
    # The first pass prices all, the second asks of the better whether halving helps, the third
    # of the best how often.
    bound = price(problem, device, overlap, shapes.halved(0), machine).merits()
    better = np.argsort(bound, kind="stable")[:_BETTER]
    shapes, bound = shapes.take(better), bound[better]
    most = price(problem, device, overlap, shapes.halved(halvings[-1]), machine).merits()
    order = np.argsort(np.minimum(bound, most), kind="stable")
    best = join([shapes.take(order[:_SHORTLIST]).halved(times) for times in halvings])
    merits = price(problem, device, overlap, best, machine).merits()
    found: dict[tuple[object, ...], Shape] = {}
    for place in np.argsort(merits, kind="stable"):
        shape = best.shape(int(place))
        cut = (shape.tile, shape.a_depth, shape.b_depth, shape.bars, shape.halvings > 0)
        found.setdefault(cut, shape)
        if len(found) == _TRIALS:
            break
    return list(found.values())


def fitting(
    problem: Problem,
    device: DeviceSpec,
    overlap: Overlap,
    limits: Limits,
    least: int,
    slots: SlotChoices,
    c_slots: int,
) -> Shapes:
    """Return every shape with extents from `least` up that fits with these slots."""
    base = grid(problem, device, least, _DEEPEST_STEP)
    a_all, b_all, c_all = tile_counts(problem, base)
    # C tiles drain while the next is computed, were it a part of the only one.
    base = base._replace(c_slots=np.minimum(c_slots, 2 * c_all))
    base = base.take(_fit(problem, device, overlap, limits, base))
    a_all, b_all, _ = tile_counts(problem, base)
    found = []
    for want_a, want_b in slots:
        shapes = base._replace(
            a_slots=np.minimum(want_a or 2, a_all), b_slots=np.minimum(want_b or 2, b_all)
        )
        shapes = shapes.take(_fit(problem, device, overlap, limits, shapes))
        if want_a is None or want_b is None:
            shapes = _fill(problem, device, overlap, limits, shapes, grow_a=want_a is None)
        found.append(shapes)
    return join(found)


def join(parts: Sequence[Shapes]) -> Shapes:
    """Return the shapes of all parts, one after the other."""
    return Shapes(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))


def tile_counts(problem: Problem, shapes: Shapes) -> tuple[Count, Count, Count]:
    """Return how many different tiles A, B and C have; none for operands used in place."""
    p, q = ceil_div(problem.m, shapes.mb), ceil_div(problem.n, shapes.nb)
    counts = (
        p * ceil_div(problem.k, shapes.a_depth),
        q * ceil_div(problem.k, shapes.b_depth),
        p * q,
    )
    specs = (problem.a, problem.b, problem.c)
    a, b, c = (
        0 * count if spec.path == "resident" else count
        for count, spec in zip(counts, specs, strict=True)
    )
    return a, b, c


def _fit(
    problem: Problem, device: DeviceSpec, overlap: Overlap, limits: Limits, shapes: Shapes
) -> Count:
    return least_need(problem, device, overlap, shapes).fits(device, limits)


def _fill(
    problem: Problem,
    device: DeviceSpec,
    overlap: Overlap,
    limits: Limits,
    shapes: Shapes,
    *,
    grow_a: bool,
) -> Shapes:
    """Give the memory left over to slots of one operand."""
    a_all, b_all, _ = tile_counts(problem, shapes)
    need = least_need(problem, device, overlap, shapes)
    one_more = least_need(
        problem,
        device,
        overlap,
        shapes._replace(
            a_slots=shapes.a_slots + (1 if grow_a else 0),
            b_slots=shapes.b_slots + (0 if grow_a else 1),
        ),
    )
    tile = np.maximum(1, one_more.device - need.device)
    room = limits.device - need.device
    if device.unified:
        room = np.minimum(room, limits.host - need.host)
    more = room // tile
    if grow_a:
        return shapes._replace(a_slots=np.minimum(a_all, shapes.a_slots + more))
    return shapes._replace(b_slots=np.minimum(b_all, shapes.b_slots + more))
