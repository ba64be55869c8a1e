"""Each device of a run with its plan: memory, tile, and the speed it is expected to have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.limits import default_host_bytes
from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.planning.checking import room_for_checks
from hdgemm.planning.machines import assumed
from hdgemm.planning.planner import plan_problem
from hdgemm.planning.pool import Member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.hybrid.learning import Rates
    from hdgemm.multiplication import Multiplication
    from hdgemm.options import Options
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import DeviceSpec, Plan, Problem

#: Tiles along each side of C that a device's own share should have at least, so that there is
#: something to balance with.
_TILES: Final = 4
#: The smallest extent of a tile that this is worth.
_LEAST_TILE: Final = 256


@dataclass(frozen=True, slots=True)
class Seat:
    """A device that takes part.

    Parameters
    ----------
    plan
        Its slots, rings, paths and tile; the units of the plan play no part.
    member
        How it draws from the pool.
    """

    name: str
    device: Device
    plan: Plan
    member: Member


def seat_devices(
    product: Multiplication, devices: Sequence[Device], options: Options, rates: Rates
) -> list[Seat]:
    """Plan a product for each of several devices; the host memory limit is shared equally.

    Raises
    ------
    DoesNotFitError
        When one of them cannot hold a tile.
    InputError
        When a device is named twice.
    """
    names = [device.spec.name for device in devices]
    if len(set(names)) < len(names):
        raise InputError(f"each device once, got {', '.join(names)}")
    host_limit = (options.host_bytes or default_host_bytes()) // len(devices)
    seats = []
    for device in devices:
        problem = product.problem(device.spec)
        files = any(spec.place == "file" for spec in (problem.a, problem.b, problem.c))
        # What files bounce through is the run's as well, though no plan knows of it.
        bounce = min(BOUNCE_BYTES, host_limit // 8) // len(devices) if files else 0
        plan = _plan(problem, options, device.spec, host_limit - bounce, len(devices))
        plan = replace(plan, host_limit=host_limit)
        seats.append(Seat(device.spec.name, device, plan, _member(plan, device.spec, rates)))
    return seats


def _plan(
    problem: Problem, options: Options, device: DeviceSpec, host_limit: int, sharing: int
) -> Plan:
    """Plan for a part of C that leaves several tiles to each device, then take it for all of C."""
    part = replace(
        problem,
        m=_part(problem.m, _TILES * sharing),
        n=_part(problem.n, _TILES // 2),
    )
    if options.tile is None and _in_place(problem):
        # BLAS needs no slots; its tile only says how much is drawn at a time.
        options = replace(options, tile=(part.m, part.n, part.k))
    options, room = room_for_checks(options, device, host_limit)
    plan = plan_problem(part, options, device, host_limit=room)
    return replace(plan, problem=replace(plan.problem, m=problem.m, n=problem.n))


def _in_place(problem: Problem) -> bool:
    return all(spec.path == "resident" for spec in (problem.a, problem.b, problem.c))


def _part(extent: int, parts: int) -> int:
    return min(extent, max(_LEAST_TILE, -(-extent // parts)))


def _member(plan: Plan, spec: DeviceSpec, rates: Rates) -> Member:
    learned = rates.learned(spec.name)
    flops = learned.flop_rate if learned else assumed(spec).flop_rate(plan.problem.dtype)
    per_cell = plan.problem.k * flops_per_multiply_add(plan.problem.dtype)
    return Member(
        plan.tile[:2],
        flops / per_cell,
        measured=learned is not None and learned.known,
        side="bottom" if spec.name == "host" else "top",
        granularity=spec.granularity[:2],
    )
