"""From a problem, limits and a machine to a plan: forced or searched, or the exact shortfall."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hdgemm.machine.assumed import assumed
from hdgemm.pipeline.validate import validate
from hdgemm.planning.abft_memory import checking_bytes, machine_that_checks
from hdgemm.planning.build import OVERLAPS, Limits, build_plan, in_place_plan
from hdgemm.planning.expectation import expect
from hdgemm.planning.fit import does_not_fit, least_need
from hdgemm.planning.member_plan import member_plan
from hdgemm.planning.memory import PIECE_BYTES, bounce_bytes, planned_bytes
from hdgemm.planning.pricing import CAUTION, price
from hdgemm.planning.search import search, tile_counts
from hdgemm.planning.shapes import BLOCKS, Shape, Shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Overlap, Plan, Problem

#: Slots of A, B and C to try for a forced tile, best first.
_FORCED_SLOTS: Final = ((3, 3, 2), (2, 3, 2), (3, 2, 2), (2, 2, 2), (2, 2, 1), (1, 1, 1))
#: Simulations are worth this part of the run that they shorten, and this many seconds at most,
#: at so many seconds for each operation of a plan built and simulated.
_WORTH: Final = 0.01
_MOST_SECONDS: Final = 0.3
_OPERATION_SECONDS: Final = 25e-6
#: Products up to this many flop are often asked for again and again, and their search takes as
#: long as they do: the last plans are remembered.
_REMEMBERED: Final = 10**12


def plan_for(
    problem: Problem, options: Options, device: DeviceSpec, machine: Machine, *, members: int = 1
) -> Plan:
    """Plan a product for one device within the memory allowed: the only way to a plan.

    Pure: it reads no file and no clock, and the same arguments give the same plan.

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
    """
    share = (options.host_bytes or machine.host_bytes) // members
    allowed = min(options.device_bytes or device.memory_bytes, device.memory_bytes)
    if members == 1 and problem.in_place and device.unified and options.tile is None:
        limits = Limits(share, allowed)
        return in_place_plan(problem, device, options.strategy, limits, machine)
    room = share - bounce_bytes(problem, share * members) // members
    if options.checks_tiles:
        room -= checking_bytes(room)
        allowed -= 0 if device.unified else checking_bytes(allowed)
        machine = machine_that_checks(machine, device, problem)
    # What the machine has beyond the limit does not change the plan, nor the key of a cached one.
    machine = replace(machine, host_bytes=share)
    limits = Limits(room, allowed)

    def planner(part: Problem, tile: tuple[int, int, int] | None) -> Plan:
        return _plan_within(part, replace(options, tile=tile), device, limits, machine)

    if members == 1:
        plan = planner(problem, options.tile)
    else:
        plan = member_plan(problem, options.tile, members, planner)
    return replace(plan, host_limit=share)


def plan_problem(
    problem: Problem,
    options: Options,
    device: DeviceSpec,
    machine: Machine | None = None,
    *,
    host_limit: int,
) -> Plan:
    """Plan within exactly `host_limit` bytes; `plan_for` derives that limit."""
    allowed = min(options.device_bytes or device.memory_bytes, device.memory_bytes)
    limits, machine = Limits(host_limit, allowed), machine or assumed(device)
    if problem.in_place and device.unified and options.tile is None:
        return in_place_plan(problem, device, options.strategy, limits, machine)
    return _plan_within(problem, options, device, limits, machine)


def _plan_within(
    problem: Problem, options: Options, device: DeviceSpec, limits: Limits, machine: Machine
) -> Plan:
    problem = _reachable(problem, device, OVERLAPS[options.strategy])
    plan = _plan if problem.flops > _REMEMBERED or options.tile is not None else _remembered
    return plan(problem, options, device, limits, machine)


def _plan(
    problem: Problem, options: Options, device: DeviceSpec, limits: Limits, machine: Machine
) -> Plan:
    shapes = _shapes(problem, options, device, limits, machine)
    plan = _fastest(problem, device, options.strategy, shapes, limits, machine)
    validate(plan)
    return plan


@lru_cache(maxsize=32)
def _remembered(
    problem: Problem, options: Options, device: DeviceSpec, limits: Limits, machine: Machine
) -> Plan:
    return _plan(problem, options, device, limits, machine)


def _reachable(problem: Problem, device: DeviceSpec, overlap: Overlap) -> Problem:
    """Stage what cannot move directly.

    store2 adds beta·C on the host; and where C's slots lie in staging, store2 alone stores C.
    """
    if problem.reads_c or device.unified or not overlap.c_on_device:
        problem = replace(problem, c=_staged(problem.c))
    if device.unified:
        problem = replace(problem, a=_staged(problem.a), b=_staged(problem.b))
    return problem


def _staged(spec: OperandSpec) -> OperandSpec:
    return replace(spec, path="staged") if spec.path == "direct" else spec


def _fastest(
    problem: Problem,
    device: DeviceSpec,
    strategy: str,
    shapes: Sequence[Shape],
    limits: Limits,
    machine: Machine,
) -> Plan:
    """Build the first shape, or simulate as many as the run is worth and take the fastest.

    What the closed form averages, stalls at the turns above all, only the simulation sees. How
    many are tried depends on counts alone, so that the same call makes the same plan.
    """
    first = _price(problem, device, strategy, shapes[0], limits, machine)
    left = min(_MOST_SECONDS, _WORTH * _seconds(first))
    best: Plan | None = None
    for shape in shapes:
        plan = first if best is None else build_plan(problem, device, strategy, shape, limits)
        left -= _OPERATION_SECONDS * _operations(plan)
        if left < 0:
            break
        plan = replace(plan, expected=expect(plan, machine))
        if best is None or _merit(plan) < _merit(best):
            best = plan
    return best or first


def _price(
    problem: Problem,
    device: DeviceSpec,
    strategy: str,
    shape: Shape,
    limits: Limits,
    machine: Machine,
) -> Plan:
    """Build a plan that carries the closed form's price."""
    plan = build_plan(problem, device, strategy, shape, limits)
    prices = price(problem, device, plan.overlap, Shapes.of(shape), machine)
    return replace(plan, expected=prices.expectation(0))


def _seconds(plan: Plan) -> float:
    return plan.expected.seconds if plan.expected is not None else float("inf")


def _merit(plan: Plan) -> float:
    stages = plan.expected.stage_seconds if plan.expected is not None else {}
    moving = sum(seconds for stage, seconds in stages.items() if stage != "mult1")
    return _seconds(plan) + CAUTION * moving


def _operations(plan: Plan) -> int:
    """Estimate the operations of all stages."""
    whole = len(plan.steps) + 2 * len(plan.loads) + 2 * len(plan.units)
    if whole * _OPERATION_SECONDS > _MOST_SECONDS:
        return whole
    return whole + sum(planned_bytes(plan).values()) // PIECE_BYTES


def _shapes(
    problem: Problem, options: Options, device: DeviceSpec, limits: Limits, machine: Machine
) -> list[Shape]:
    overlap = OVERLAPS[options.strategy]
    if options.tile is None:
        found = search(problem, device, overlap, limits, machine)
        smallest = Shape((1, 1, 1), 1, 1, (1, 1, 1))
        if found:
            return [_blocked(problem, device, overlap, limits, shape) for shape in found]
    else:
        shapes = list(_forced(problem, options.tile, device, overlap, limits))
        fitting = [
            one for one in shapes
            if least_need(problem, device, overlap, one).fits(device, limits)
        ]  # fmt: skip
        if fitting:
            return [_faster_bars(problem, device, overlap, fitting[0], machine)]
        smallest = shapes[-1]
    need = least_need(problem, device, overlap, smallest)
    raise does_not_fit(device, need, limits, forced=options.tile)


def _forced(
    problem: Problem,
    tile: tuple[int, int, int],
    device: DeviceSpec,
    overlap: Overlap,
    limits: Limits,
) -> Iterator[Shape]:
    """Yield the shapes that a forced tile can have, best first."""
    mb, nb, kb = (min(pair) for pair in zip(tile, (problem.m, problem.n, problem.k), strict=True))
    a_all, b_all, c_all = (
        int(count[0])
        for count in tile_counts(problem, Shapes.of(Shape((mb, nb, kb), kb, kb, (0, 0, 0))))
    )
    for a, b, c in _FORCED_SLOTS:
        if not overlap.loads and (a, b) != (1, 1):
            a, b, c = 1, 1, 2 if overlap.stores else 1  # noqa: PLW2901 - nothing to hold ahead
        shape = Shape((mb, nb, kb), kb, kb, (min(a, a_all), min(b, b_all), min(c, c_all)))
        if overlap.stores and not overlap.loads:
            blocked = replace(shape, blocks=BLOCKS)
            fits = least_need(problem, device, overlap, blocked).fits(device, limits)
            if kb >= problem.k and mb % device.granularity[0] == 0 and fits:
                shape = blocked
        yield shape


def _blocked(
    problem: Problem, device: DeviceSpec, overlap: Overlap, limits: Limits, shape: Shape
) -> Shape:
    """Cut a searched work unit into blocks where the strategy stores blocks while it multiplies."""
    mb, nb, kb = shape.tile
    gm = device.granularity[0]
    block = -(-mb // (BLOCKS * gm)) * gm
    if overlap.loads or not overlap.stores or kb < problem.k or block >= mb:
        return shape
    blocked = replace(shape, tile=(block, nb, kb), blocks=BLOCKS, slots=(*shape.slots[:2], 2))
    fits = least_need(problem, device, overlap, blocked).fits(device, limits)
    return blocked if fits else shape


def _faster_bars(
    problem: Problem, device: DeviceSpec, overlap: Overlap, shape: Shape, machine: Machine
) -> Shape:
    if not overlap.loads:
        return shape
    turned = replace(shape, bars="rows")
    seconds = [
        float(price(problem, device, overlap, Shapes.of(one), machine).seconds[0])
        for one in (shape, turned)
    ]
    return turned if seconds[1] < seconds[0] else shape
