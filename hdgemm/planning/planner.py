"""From a product, its options, a device and a machine to a plan, or to the exact shortfall."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.pipeline.validate import validate
from hdgemm.planning.build import build_plan, in_place_plan
from hdgemm.planning.byte_counts import PIECE_BYTES, does_not_fit, least_need, planned_bytes
from hdgemm.planning.case import case_for
from hdgemm.planning.expectation import expect
from hdgemm.planning.member_plan import member_plan
from hdgemm.planning.pricing import CAUTION, price
from hdgemm.planning.search import MOST_STEPS, search, smallest
from hdgemm.planning.shapes import BLOCKS, Shape, Shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Plan, Problem
    from hdgemm.planning.case import Case

    Tile = tuple[int, int, int]

#: Slots of A, B and C to try for a forced tile, best first.
_FORCED_SLOTS: Final = ((3, 3, 2), (2, 3, 2), (3, 2, 2), (2, 2, 2), (2, 2, 1), (1, 1, 1))
#: Simulations may take this part of the run that they shorten, and at most so many seconds, at
#: so many seconds for each operation of a plan that is built and simulated.
_WORTH: Final = 0.01
_MOST_SECONDS: Final = 0.3
_OPERATION_SECONDS: Final = 25e-6
#: Steps and loads of all cached plans, about 150 bytes each.
_CACHED_STEPS: Final = 400_000


def plan_for(
    problem: Problem, options: Options, device: DeviceSpec, machine: Machine, *, members: int = 1
) -> Plan:
    """Plan a product for one device within the memory allowed: the only way to a plan.

    It reads no file and no clock, and the same arguments give the same plan; it is cached where
    it is not too large.

    Parameters
    ----------
    problem
        m, n and k at least 1.
    machine
        Rates to price shapes with, and the bytes of host memory that the run takes where the
        options name no limit.
    members
        Devices that share the product. Each gets an equal part of the host memory, and its units
        are not executed: the devices draw C tiles while they run.

    Returns
    -------
    `Plan.host_limit` is the device's part of the host memory limit. The plan itself holds less
    where files are read through bounce buffers or C tiles are checked, which take memory too.

    Raises
    ------
    DoesNotFitError
        With `requested` for the smallest plan, `available` and `missing`, in bytes.
    InputError
        When a forced tile cuts the product into too many steps.
    """
    case = case_for(problem, options, device, machine, members)
    if members > 1:
        plan = member_plan(case, options.tile, members, plan_case)
    elif problem.in_place and device.unified and options.tile is None:
        plan = in_place_plan(case)
    else:
        plan = plan_case(case, options.tile)
    return replace(plan, host_limit=case.machine.host_bytes)


def plan_case(case: Case, tile: Tile | None = None) -> Plan:
    """Plan within exactly the limits of a case; a `tile` forces the shape."""
    plan = _cache.get((case, tile))
    if plan is None:
        reachable = replace(case, problem=_reachable(case))
        plan = _fastest(reachable, _shapes(reachable, tile))
        validate(plan)
        _cache.put((case, tile), plan)
    return plan


class _PlanCache:
    """Least-recently-used cache of plans, bounded by their steps and loads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._plans: OrderedDict[tuple[Case, Tile | None], Plan] = OrderedDict()
        self._steps = 0

    def get(self, key: tuple[Case, Tile | None]) -> Plan | None:
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
            return self._plans.get(key)

    def put(self, key: tuple[Case, Tile | None], plan: Plan) -> None:
        with self._lock:
            if key in self._plans or _entries(plan) > _CACHED_STEPS:
                return
            self._plans[key] = plan
            self._steps += _entries(plan)
            while self._steps > _CACHED_STEPS:
                self._steps -= _entries(self._plans.popitem(last=False)[1])


def _entries(plan: Plan) -> int:
    return len(plan.steps) + len(plan.loads)


_cache: Final = _PlanCache()


def _reachable(case: Case) -> Problem:
    """Stage what cannot move directly.

    store2 adds beta·C on the host; and where C's slots lie in staging, store2 alone stores C.
    """
    problem, unified = case.problem, case.device.unified
    if problem.reads_c or unified or not case.overlap.c_on_device:
        problem = replace(problem, c=_staged(problem.c))
    if unified:
        problem = replace(problem, a=_staged(problem.a), b=_staged(problem.b))
    return problem


def _staged(spec: OperandSpec) -> OperandSpec:
    return replace(spec, path="staged") if spec.path == "direct" else spec


def _fastest(case: Case, shapes: Sequence[Shape]) -> Plan:
    """Build the first shape, or simulate as many as the run is worth and take the fastest.

    The simulation finds what the closed form averages, above all stalls where a bar turns. How
    many shapes are simulated depends on counts only, so that the same call gives the same plan.
    """
    priced = price(case, Shapes.of(shapes[0])).expectation(0)
    first = replace(build_plan(case, shapes[0]), expected=priced)
    left = min(_MOST_SECONDS, _WORTH * priced.seconds)
    best: Plan | None = None
    for shape in shapes:
        plan = first if best is None else build_plan(case, shape)
        left -= _OPERATION_SECONDS * _operations(plan)
        if left < 0:
            break
        plan = replace(plan, expected=expect(plan, case.machine))
        if best is None or _merit(plan) < _merit(best):
            best = plan
    return best or first


def _merit(plan: Plan) -> float:
    if plan.expected is None:
        return float("inf")
    stages = plan.expected.stage_seconds
    moving = sum(seconds for stage, seconds in stages.items() if stage != "mult1")
    return plan.expected.seconds + CAUTION * moving


def _operations(plan: Plan) -> int:
    """Estimate the operations of all stages."""
    whole = len(plan.steps) + 2 * len(plan.loads) + 2 * len(plan.units)
    if whole * _OPERATION_SECONDS > _MOST_SECONDS:
        return whole
    return whole + sum(planned_bytes(plan).values()) // PIECE_BYTES


def _shapes(case: Case, tile: Tile | None) -> list[Shape]:
    """Return shapes that fit, best first; a forced tile has one."""
    if tile is not None:
        return [_forced(case, tile)]
    found = search(case)
    if not found:
        raise does_not_fit(case, least_need(case, smallest(case)), "the smallest plan", "")
    return [_blocked(case, shape) for shape in found]


def _forced(case: Case, tile: Tile) -> Shape:
    """Return the best shape that fits and has this tile."""
    problem = case.problem
    _check_steps(problem, tile)
    shapes = list(_forced_shapes(case, tile))
    for shape in shapes:
        if least_need(case, shape).fits(case):
            return _faster_bars(case, shape)
    need, advice = least_need(case, shapes[-1]), " or let the planner choose the tile"
    raise does_not_fit(case, need, f"the tile {tile}", advice)


def _check_steps(problem: Problem, tile: Tile) -> None:
    """Refuse a tile that cuts a product into more steps than are planned."""

    def steps(times: int) -> int:
        mb, nb, kb = (extent * times for extent in tile)
        return -(-problem.m // mb) * -(-problem.n // nb) * -(-problem.k // kb)

    if steps(1) <= MOST_STEPS:
        return
    times = 2
    while steps(times) > MOST_STEPS:
        times += 1 + times // 64
    enough = tuple(
        min(extent * times, whole)
        for extent, whole in zip(tile, (problem.m, problem.n, problem.k), strict=True)
    )
    raise InputError(
        f"the tile {tile} cuts the product into {steps(1)} steps, at most {MOST_STEPS} can be "
        f"planned; the tile {enough} needs {steps(times)}",
        steps=steps(1),
        most_steps=MOST_STEPS,
        tile=enough,
    )


def _forced_shapes(case: Case, tile: Tile) -> Iterator[Shape]:
    """Yield the shapes that a forced tile can have, best first."""
    problem, overlap = case.problem, case.overlap
    mb, nb, kb = (min(pair) for pair in zip(tile, (problem.m, problem.n, problem.k), strict=True))
    whole = Shapes.of(Shape((mb, nb, kb), kb, kb, (0, 0, 0)))
    a_all, b_all, c_all = (int(count[0]) for count in whole.tiles(problem))
    for a, b, c in _FORCED_SLOTS:
        if not overlap.loads and (a, b) != (1, 1):
            a, b, c = 1, 1, 2 if overlap.stores else 1  # noqa: PLW2901 - nothing to hold ahead
        shape = Shape((mb, nb, kb), kb, kb, (min(a, a_all), min(b, b_all), min(c, c_all)))
        if overlap.stores and not overlap.loads:
            blocked = replace(shape, blocks=BLOCKS)
            fits = least_need(case, blocked).fits(case)
            if kb >= problem.k and mb % case.device.granularity[0] == 0 and fits:
                shape = blocked
        yield shape


def _blocked(case: Case, shape: Shape) -> Shape:
    """Cut a searched work unit into blocks where the strategy stores blocks while it multiplies."""
    mb, nb, kb = shape.tile
    overlap, gm = case.overlap, case.device.granularity[0]
    block = -(-mb // (BLOCKS * gm)) * gm
    if overlap.loads or not overlap.stores or kb < case.problem.k or block >= mb:
        return shape
    blocked = replace(shape, tile=(block, nb, kb), blocks=BLOCKS, slots=(*shape.slots[:2], 2))
    return blocked if least_need(case, blocked).fits(case) else shape


def _faster_bars(case: Case, shape: Shape) -> Shape:
    """Return the shape with columns or rows as bars, whichever the closed form prices lower."""
    if not case.overlap.loads:
        return shape
    turned = replace(shape, bars="rows")
    both = Shapes.join([Shapes.of(shape), Shapes.of(turned)])
    columns, rows = price(case, both).seconds
    return turned if rows < columns else shape
