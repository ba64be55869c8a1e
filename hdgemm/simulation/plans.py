"""Several plans in one virtual time: devices that share a link, the host's memory and its cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hdgemm.pipeline.schedule import build_schedule
from hdgemm.pipeline.timeline import Event, Timeline
from hdgemm.planning.costs import Cost, op_cost
from hdgemm.planning.virtual_time import Task, run_lanes

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.schedule import Op, Schedule
    from hdgemm.planning.virtual_time import Interval

#: What each device has for itself; all else is the machine's.
_OWN: Final = ("device", "pcie_up", "pcie_down")


class Member(NamedTuple):
    """One device's plan.

    Parameters
    ----------
    name
        What its events are called by.
    machine
        Rates of this device alone, and of what all share.
    start
        Seconds after the first member at which it begins.
    """

    name: str
    plan: Plan
    machine: Machine
    start: float = 0.0


def simulate_together(members: Sequence[Member]) -> Timeline:
    """Run the members' plans at once and return one timeline of all.

    Each has its device and its end of the link; `Machine.link_up` and `link_down`, host memory,
    disk and cores are divided among all.
    """
    schedules = [build_schedule(member.plan) for member in members]
    lanes: dict[Hashable, list[Task]] = {}
    for number, (member, schedule) in enumerate(zip(members, schedules, strict=True)):
        lanes[number, "start"] = [Task(Cost(member.start, ()), ())] if member.start > 0 else []
        for stage, ops in schedule.items():
            lanes[number, stage] = [_task(number, member, op) for op in ops]
    ran = run_lanes(lanes)
    events = [
        Event(member.name, stage, op.number, op.unit, op.step, when.start, when.end, op.nbytes,
              op.flops)
        for number, (member, schedule) in enumerate(zip(members, schedules, strict=True))
        for stage, op, when in _timed(number, schedule, ran)
    ]  # fmt: skip
    events.sort(key=lambda event: event.start)
    return Timeline(tuple(events), max((event.end for event in events), default=0.0))


def _timed(
    number: int, schedule: Schedule, ran: dict[Hashable, list[Interval]]
) -> list[tuple[Stage, Op, Interval]]:
    return [
        (stage, op, when)
        for stage, ops in schedule.items()
        for op, when in zip(ops, ran[number, stage], strict=True)
    ]


def _task(number: int, member: Member, op: Op) -> Task:
    cost = op_cost(member.plan, member.machine, op)
    machine = member.machine
    demands: list[tuple[str, float]] = []
    for resource, seconds in cost.demands:
        demands.append((f"{resource} {number}" if resource in _OWN else resource, seconds))
        whole = {"pcie_up": machine.link_up, "pcie_down": machine.link_down}.get(resource)
        if whole is not None:
            alone = machine.pcie_up if resource == "pcie_up" else machine.pcie_down
            demands.append((f"all {resource}", seconds * min(1.0, alone / whole)))
    needs: list[tuple[Hashable, int]] = [((number, stage), count) for stage, count in op.needs]
    if member.start > 0:
        needs.append(((number, "start"), 1))
    return Task(Cost(cost.seconds, tuple(demands)), needs)
