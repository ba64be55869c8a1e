"""The machine of the HDGEMM paper, and runs of several plans at once on it, in virtual time.

HDGEMM, Table 3: a Radeon HD 5970 with two Cypress chips, and two Xeon X5650. The paper does not
give `depth_half`, `memory`, `copy` and the rates of the link: they are fitted, as
docs/explanation/papers.md says. In the paper a process of its own serves each chip.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from hdgemm.machine.rates import Machine
from hdgemm.pipeline.plan import DeviceSpec
from hdgemm.pipeline.schedule import build_schedule
from hdgemm.pipeline.timeline import Timeline
from hdgemm.planning.costs import Cost, op_cost
from hdgemm.planning.expectation import timeline_of
from hdgemm.planning.virtual_time import Activity, run_lanes

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.schedule import Op

SOURCE: Final = "HDGEMM, table 3 and section 4; fitted rates: docs/explanation/papers.md"
CHIPS: Final = 2
#: Peak flop/s of one chip and of all CPUs, and flop/s of DGEMM on all CPUs beside idle chips.
CHIP_PEAK: Final = 464e9
CPU_PEAK: Final = 128e9
CPU_RATE: Final = 0.9 * CPU_PEAK
#: Bytes of host memory that the chips reach by DMA.
STAGING: Final = 2288 << 20
CHIP: Final = DeviceSpec("cypress", unified=False, memory_bytes=1 << 30, max_buffer_bytes=1 << 30)
CPU: Final = DeviceSpec("cpu")
#: Rates with one chip at work.
MACHINE: Final = Machine(
    name="hd5970",
    cores=12,
    gemm={"float64": 0.94 * CHIP_PEAK},
    depth_half=80.0,
    side_half=0.0,
    memory=12.5e9,
    copy=3.75e9,
    pcie_up=2.6e9,
    pcie_down=1.2e9,
    disk_read=0.1e9,
    disk_write=0.1e9,
    source=SOURCE,
)
CPU_MACHINE: Final = replace(MACHINE, gemm={"float64": CPU_RATE})
#: Bytes/s at which a kernel writes C into staging, where C does not lie on the device.
REMOTE_WRITE: Final = 1.06e9
#: Bytes/s of both chips together on the link that they share.
LINK: Final = {"pcie_up": 2.6e9, "pcie_down": 1.3e9}
#: Part of `Machine.memory` that the CPUs' product takes.
CPU_BUS: Final = 4.8e9
#: Resources that each device has for itself, as a process each; the devices share all others.
_OWN: Final = ("device", "pcie_up", "pcie_down", "interpreter")


def rates(plan: Plan) -> Machine:
    """Return the rates of a plan that runs alone."""
    if plan.device.unified:
        return CPU_MACHINE
    return MACHINE if plan.overlap.c_on_device else replace(MACHINE, pcie_down=REMOTE_WRITE)


class Member(NamedTuple):
    """A plan, the name of its events, and the seconds after the first member at which it starts."""

    name: str
    plan: Plan
    start: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """A run on several devices: its members and one timeline of all."""

    members: tuple[Member, ...]
    timeline: Timeline

    @property
    def gflops(self) -> float:
        """10⁹ flop/s of all members together."""
        return sum(member.plan.flops for member in self.members) / self.timeline.seconds / 1e9

    @property
    def balance(self) -> float:
        """Time until the first member's end, relative to the last one's."""
        ends = [
            max(event.end for event in self.of_device(member.name).events)
            for member in self.members
        ]
        return min(ends) / max(ends)

    def of_device(self, device: str) -> Timeline:
        """Return the events of one device; the length is the whole run's."""
        events = (event for event in self.timeline.events if event.device == device)
        return Timeline(tuple(events), self.timeline.seconds)

    def busy_rate(self, device: str, stage: Stage) -> float:
        """Return 10⁹ bytes/s, or flop/s for mult1, of one stage while it was busy."""
        stats = self.of_device(device).stages().get(stage)
        if stats is None or stats.seconds == 0:
            return 0.0
        return (stats.flops if stage == "mult1" else stats.nbytes) / stats.seconds / 1e9


def run_at_once(members: Sequence[Member]) -> Run:
    """Run several plans at once.

    Each device has its kernel and its end of the link for itself. The link, host memory, disk and
    cores are divided among all.
    """
    schedules = [build_schedule(member.plan) for member in members]
    lanes: dict[Hashable, list[Activity]] = {}
    for number, (member, schedule) in enumerate(zip(members, schedules, strict=True)):
        lanes[number, "start"] = [Activity(Cost(member.start, ()), ())] if member.start > 0 else []
        for stage, ops in schedule.items():
            lanes[number, stage] = [_task(number, member, op) for op in ops]
    ran = run_lanes(lanes)
    timeline = timeline_of(
        (member.name, schedule, {stage: ran[number, stage] for stage in schedule})
        for number, (member, schedule) in enumerate(zip(members, schedules, strict=True))
    )
    return Run(tuple(members), timeline)


def _task(number: int, member: Member, op: Op) -> Activity:
    machine = rates(member.plan)
    cost = op_cost(member.plan, machine, op)
    demands: list[tuple[str, float]] = []
    for resource, seconds in cost.demands:
        demands.append((f"{resource} {number}" if resource in _OWN else resource, seconds))
        if resource in LINK:
            alone = getattr(machine, resource)
            demands.append((f"all {resource}", seconds * min(1.0, alone / LINK[resource])))
        if resource == "device" and member.plan.device.unified:
            demands.append(("host_memory", seconds * CPU_BUS / machine.memory))
    needs: list[tuple[Hashable, int]] = [((number, stage), count) for stage, count in op.needs]
    if member.start > 0:
        needs.append(((number, "start"), 1))
    return Activity(Cost(cost.seconds, tuple(demands)), needs)
