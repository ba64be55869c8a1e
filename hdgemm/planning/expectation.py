"""The seconds expected of a plan: its schedule, as the executor runs it, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdgemm.machine.rates import RESOURCES
from hdgemm.pipeline.plan import Expectation
from hdgemm.pipeline.schedule import build_schedule
from hdgemm.pipeline.timeline import Event, Timeline
from hdgemm.planning.costs import op_cost
from hdgemm.planning.virtual_time import Activity, run_lanes

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.schedule import Schedule
    from hdgemm.planning.virtual_time import Interval


def simulate(plan: Plan, machine: Machine) -> Timeline:
    """Return the timeline of a plan on this machine.

    Each stage is a lane whose operations run in the schedule's order, each when the operations
    that it needs are done; operations that run at once share the machine's resources.
    """
    return _timeline(plan, build_schedule(plan), machine)[0]


def _timeline(
    plan: Plan, schedule: Schedule, machine: Machine
) -> tuple[Timeline, dict[Hashable, list[Activity]]]:
    lanes: dict[Hashable, list[Activity]] = {
        stage: [Activity(op_cost(plan, machine, op), op.needs) for op in ops]
        for stage, ops in schedule.items()
    }
    ran = run_lanes(lanes)
    own = {stage: ran[stage] for stage in schedule}
    return timeline_of([(plan.device.name, schedule, own)]), lanes


def timeline_of(
    runs: Iterable[tuple[str, Schedule, Mapping[Stage, Sequence[Interval]]]],
) -> Timeline:
    """Return the timeline of devices: the name, schedule and intervals by stage of each."""
    events = [
        Event(device, stage, op.number, op.unit, op.step, when.start, when.end, op.nbytes, op.flops)
        for device, schedule, ran in runs
        for stage, ops in schedule.items()
        for op, when in zip(ops, ran[stage], strict=True)
    ]
    events.sort(key=lambda event: event.start)
    return Timeline(tuple(events), max((event.end for event in events), default=0.0))


def expect(plan: Plan, machine: Machine) -> Expectation:
    """Return the total and each stage's busy seconds in virtual time, and the limiting resource.

    The limit is the resource whose operations would take longest one after the other.
    """
    timeline, lanes = _timeline(plan, build_schedule(plan), machine)
    busy: dict[str, float] = {stage: stats.seconds for stage, stats in timeline.stages().items()}
    used = dict.fromkeys(RESOURCES, 0.0)
    for task in (task for tasks in lanes.values() for task in tasks):
        for resource, seconds in task.cost.demands:
            used[resource] += seconds
    return Expectation(timeline.seconds, busy, max(used, key=used.__getitem__))
