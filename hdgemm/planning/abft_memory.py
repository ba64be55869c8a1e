"""What checks of C tiles take of a plan, where they are asked for: memory, and time at edges."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hdgemm.pipeline.abft import Tally
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from hdgemm.machine.rates import Machine
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec, Plan, Problem

#: Of the limit, and in bytes: sums, panels that are looked at, and inputs that are read again.
_PART: Final = 32
_MOST: Final = 32 << 20


def checking_bytes(limit: int) -> int:
    """Return what checks may take of a limit in bytes."""
    return min(_MOST, limit // _PART)


def machine_that_checks(machine: Machine, device: DeviceSpec, problem: Problem) -> Machine:
    """Return the machine's rates when the host's cores also compute ABFT checksums.

    Each step reads its A and its B once more. The model counts that as a cost of the tile's
    edges, so that flat tiles are priced as slow as they are.
    """
    if not device.unified:
        return machine
    flops = flops_per_multiply_add(problem.dtype) * machine.memory
    edge = problem.itemsize * machine.flop_rate(problem.dtype) / flops
    return replace(machine, side_half=machine.side_half + edge)


def tally_for(options: Options, plan: Plan) -> Tally | None:
    """Return what counts a run's checks, None where none are asked for."""
    if not options.checks_tiles:
        return None
    limits = [plan.host_limit] if plan.device.unified else [plan.host_limit, plan.device_limit]
    # A plan without slots may have no limit.
    room = min((checking_bytes(limit) for limit in limits if limit > 0), default=_MOST)
    return Tally(scratch_bytes=room // 4)
