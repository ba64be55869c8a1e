"""Each device of a run with its plan: memory, tile, and the speed it is expected to have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hdgemm.errors import InputError
from hdgemm.machine.assumed import assumed
from hdgemm.machine.calibration import machine_for
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.planning.planner import plan_for
from hdgemm.run.balance import Member
from hdgemm.run.reach import reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.options import Options
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import DeviceSpec, Plan
    from hdgemm.product.product import Multiplication
    from hdgemm.run.learned_rates import Rates


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
    seats = []
    for device in devices:
        # C is staged: what store2 has written is what a device is known to have finished.
        problem = reach(product, device, direct="AB")
        machine = machine_for(problem, device.spec, product.folder)
        plan = plan_for(problem, options, device.spec, machine, members=len(devices))
        seats.append(Seat(device.spec.name, device, plan, _member(plan, device.spec, rates)))
    return seats


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
