"""Each device of a run with its plan: memory, tile, and the speed it is expected to have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.machine.assumed import assumed
from hdgemm.machine.limits import default_host_bytes
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.planning.abft_memory import room_for_checks
from hdgemm.planning.memory import bounce_bytes, ceil_div, in_files, in_place
from hdgemm.planning.planner import plan_problem
from hdgemm.run.balance import Member
from hdgemm.run.reach import reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.options import Options
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import DeviceSpec, Plan, Problem
    from hdgemm.product.product import Multiplication
    from hdgemm.run.learned_rates import Rates

#: Tiles along each side of C that a device's own share should have at least, so that there is
#: something to balance with.
_TILES: Final = 2
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
        # C is staged: what store2 has written is what a device is known to have finished.
        problem = reach(product, device, direct="AB")
        bounce = bounce_bytes(problem, host_limit) // len(devices)
        plan = _plan(problem, options, device.spec, host_limit - bounce, len(devices))
        plan = replace(plan, host_limit=host_limit)
        seats.append(Seat(device.spec.name, device, plan, _member(plan, device.spec, rates)))
    return seats


def _plan(
    problem: Problem, options: Options, device: DeviceSpec, host_limit: int, sharing: int
) -> Plan:
    """Plan for a part of C that leaves several tiles to each device, then take it for all of C.

    A device that the others have left alone has nothing to balance.
    """
    shared = sharing > 1
    parts = _TILES if shared else 1
    part = replace(problem, m=_part(problem.m, parts * sharing), n=_part(problem.n, parts))
    options, room = room_for_checks(options, device, host_limit)
    if shared and options.tile is None and in_place(problem):
        # BLAS needs no slots; its tile only says how much is drawn at a time.
        options = replace(options, tile=(part.m, part.n, part.k))
    elif shared and options.tile is None and not in_files(problem):
        # A part alone is all beginning and end, for which short steps are best; the run is not.
        # Files are read in whole rows instead, which a forced tile would not do.
        whole = plan_problem(problem, options, device, host_limit=room).tile
        options = replace(options, tile=_lower(whole, part, device.granularity))
    plan = plan_problem(part, options, device, host_limit=room)
    return _hold_bar(replace(plan, problem=replace(plan.problem, m=problem.m, n=problem.n)))


def _lower(
    tile: tuple[int, int, int], part: Problem, granularity: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Cut a tile for all of C to a part's rows; steps get deeper, so that they stay as large.

    No slot takes more memory than that tile's.
    """
    mb, nb, kb = tile
    rows = _whole(min(mb, part.m), granularity[0])
    times = max(1, min(mb // rows, nb // granularity[1]))
    return rows, min(_whole(nb // times, granularity[1]), part.n), min(kb * times, part.k)


def _whole(extent: int, quantum: int) -> int:
    return extent - extent % quantum if extent > quantum else extent


def _hold_bar(plan: Plan) -> Plan:
    """Let A's slots take a whole bar, as far as memory is left: its pieces then load only B.

    No plan foresees this, as none knows how small the pieces of a bar will be.
    """
    slots = plan.a_slots
    deep = next((load.rect.cols for load in plan.loads if load.operand == "A"), 0)
    if not deep:
        return plan
    room = plan.device_limit - plan.device_bytes
    if plan.device.unified:
        room = min(room, plan.host_limit - plan.host_bytes)
    # One more than the bar has tiles lets the next bar's first be loaded while this one ends.
    count = min(ceil_div(plan.problem.k, deep) + 1, slots.count + max(0, room) // slots.nbytes)
    return replace(plan, a_slots=replace(slots, count=max(slots.count, count)))


def _part(extent: int, parts: int) -> int:
    size: int = max(_LEAST_TILE, ceil_div(extent, parts))
    return min(extent, size)


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
