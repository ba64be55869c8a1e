"""From a product, its options, a device and a machine to a plan, or to the exact shortfall."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hdgemm.errors import DoesNotFitError
from hdgemm.pipeline.slots import piece_bytes
from hdgemm.pipeline.validate import validate
from hdgemm.planning._member_plan import member_plan
from hdgemm.planning._pricing import CAUTION, price
from hdgemm.planning._search import search, shapes_for
from hdgemm.planning.build import build_plan, in_place_plan
from hdgemm.planning.case import Case, Limits, case_for
from hdgemm.planning.expectation import expect
from hdgemm.planning.shapes import Shapes
from hdgemm.planning.slow_plan import MORE_MEMORY, warn_if_slow
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec, Operand, OperandSpec, Plan, Problem
    from hdgemm.planning.shapes import Shape

    TileExtents = tuple[int, int, int]

#: Bytes of tiles up to which the `host_memory` is found that has room for them.
_MOST_TILES: Final = 1 << 50
#: Simulations may take this part of the run that they shorten, and at most so many seconds, at
#: so many seconds for each operation of a plan that is built and simulated.
_WORTH: Final = 0.01
_MOST_SECONDS: Final = 0.15
#: The same for a forced tile: there is nothing to choose.
_FORCED_SECONDS: Final = 0.01
_OPERATION_SECONDS: Final = 25e-6
#: The plans used last that are kept, about 2 kB each.
_CACHED_PLANS: Final = 256


def plan_for(
    problem: Problem, options: Options, device: DeviceSpec, machine: Machine, *, members: int = 1
) -> Plan:
    """Plan a product for one device within the memory allowed: the only way to a plan.

    It reads no file and no clock, and the same arguments give the same plan.

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
        With `requested` for the smallest plan, `available` and `missing`, in bytes of `limit`.
    """
    if members == 1 and problem.in_place and device.unified and options.tile is None:
        # It takes no memory; to ask how much is free takes longer than a small product.
        host = options.host_bytes or 0
        limits = Limits(host, device.limit() or host)
        return in_place_plan(Case(problem, device, options.strategy, limits, machine))
    case = case_for(problem, options, device, machine, members)
    try:
        if members > 1:
            plan = member_plan(case, options.tile, members, plan_case)
        else:
            plan = plan_case(case, options.tile)
            _warn_if_slow(case, plan)
    except DoesNotFitError as error:
        if error.limit != "host_memory":
            raise

        def room(limit: int) -> int:
            raised = replace(options, host_memory=limit)
            return case_for(problem, raised, device, machine, members).limits.host

        given = options.host_bytes or machine.host_bytes
        raise _in_host_memory(error, given, room) from None
    return replace(plan, host_limit=case.machine.host_bytes)


def _in_host_memory(
    error: DoesNotFitError, given: int, room: Callable[[int], int]
) -> DoesNotFitError:
    """Return an error of tiles with the bytes of `host_memory`, of which tiles get some `room`."""
    if error.requested > _MOST_TILES:
        return error
    most = given
    while room(most) < error.requested:
        most *= 2
    least = bisect_left(range(most), error.requested, lo=given, key=room)
    enough = format_size(least + least // 100)
    numbers = error.numbers | {
        "requested": least,
        "available": given,
        "missing": least - given,
    }
    return DoesNotFitError(f"{error}: {enough} are enough", **numbers)


@lru_cache(maxsize=_CACHED_PLANS)
def plan_case(case: Case, tile: TileExtents | None = None) -> Plan:
    """Plan within exactly the limits of a case; a `tile` forces the shape."""
    reachable = replace(case, problem=_reachable(case))
    plan = _fastest(reachable, shapes_for(reachable, tile))
    validate(plan)
    return plan


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
    A single shape is simulated where it has few operations.
    """
    prices = price(case, Shapes.of(shapes[0]))
    first = replace(build_plan(case, shapes[0]), expected=prices.expectation(0))
    most = _MOST_SECONDS if len(shapes) > 1 else _FORCED_SECONDS
    left = min(most, _WORTH * float(prices.seconds[0]))
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


def _warn_if_slow(case: Case, plan: Plan) -> None:
    """Log where a little more memory and a free choice of tiles would save most of the time."""
    limits = case.limits

    def better() -> float:
        device = case.device.limit(MORE_MEMORY * limits.device) or MORE_MEMORY * limits.device
        return _least_seconds(replace(case, limits=Limits(MORE_MEMORY * limits.host, device)))

    on_device = "" if case.device.unified else f" and {format_size(limits.device)} on the device"
    warn_if_slow(
        "the product",
        f"the tile {'×'.join(map(str, plan.tile))}",
        f"{format_size(limits.host)} of host memory{on_device}",
        seconds=plan.expected.seconds if plan.expected is not None else 0.0,
        least=plan.problem.flops / case.machine.flop_rate(plan.problem.factor_dtype),
        better=better,
    )


@lru_cache(maxsize=64)
def _least_seconds(case: Case) -> float:
    """Return the seconds of the best shape in closed form."""
    shapes = search(case)
    return float(price(case, Shapes.of(shapes[0])).seconds[0]) if shapes else float("inf")


def _merit(plan: Plan) -> float:
    if plan.expected is None:
        return float("inf")
    stages = plan.expected.stage_seconds
    moving = sum(seconds for stage, seconds in stages.items() if stage != "mult1")
    return plan.expected.seconds + CAUTION * moving


def _operations(plan: Plan) -> int:
    """Estimate the operations of all stages: steps, and the pieces of loaded and stored tiles."""
    course, problem = plan.course, plan.problem
    a, b = course.loaded["A"], course.loaded["B"]
    moved: tuple[tuple[Operand, int, int], ...] = (
        ("A", *a),
        ("B", *b),
        ("C", course.units.length, plan.elements),
    )
    pieces = sum(
        max(tiles, elements * problem.tile_itemsize(operand) // piece_bytes(plan, operand))
        for operand, tiles, elements in moved
    )
    return plan.counts.steps + 2 * pieces
