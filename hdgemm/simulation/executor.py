"""Executor of plans in virtual time: one device, several devices, devices and CPUs of a system."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Final, NamedTuple

from hdgemm.options import Options, built_in_options
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem
from hdgemm.pipeline.schedule import build_schedule
from hdgemm.pipeline.timeline import Timeline
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import Case, Limits
from hdgemm.planning.costs import Cost, op_cost
from hdgemm.planning.expectation import timeline_of
from hdgemm.planning.planner import plan_for
from hdgemm.planning.shapes import Shape as Tiling
from hdgemm.planning.virtual_time import Task, run_lanes

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.schedule import Op
    from hdgemm.simulation.machines import System

#: m, n and k.
Shape = tuple[int, int, int]

#: The strategy for devices without the CPU.
BEST: Final = "data-placement"
CPU: Final = "cpu"
#: Resources that each device has for itself, as a process each; the devices share all others.
_OWN: Final = ("device", "pcie_up", "pcie_down", "interpreter")
#: Shares of the CPUs to try, in 64ths of the columns of C: first these, then the neighbours of
#: the best one.
_SHARES: Final = (2, 4, 6, 8, 10, 12)
_NEIGHBOURS: Final = (-1, 1)


class Member(NamedTuple):
    """One device and its plan: the name of its events, its rates alone with those of the resources
    that all devices share, and the seconds after the first member at which it starts.
    """

    name: str
    plan: Plan
    machine: Machine
    start: float = 0.0


def run_plans(members: Sequence[Member]) -> Timeline:
    """Run the plans of several devices at once; return one timeline of all.

    Each device has its kernel and its end of the link for itself. `Machine.link_up` and
    `link_down`, host memory, disk and cores are divided among all.
    """
    schedules = [build_schedule(member.plan) for member in members]
    lanes: dict[Hashable, list[Task]] = {}
    for number, (member, schedule) in enumerate(zip(members, schedules, strict=True)):
        lanes[number, "start"] = [Task(Cost(member.start, ()), ())] if member.start > 0 else []
        for stage, ops in schedule.items():
            lanes[number, stage] = [_task(number, member, op) for op in ops]
    ran = run_lanes(lanes)
    return timeline_of(
        (member.name, schedule, {stage: ran[number, stage] for stage in schedule})
        for number, (member, schedule) in enumerate(zip(members, schedules, strict=True))
    )


def _task(number: int, member: Member, op: Op) -> Task:
    machine, cost = member.machine, op_cost(member.plan, member.machine, op)
    links = {
        "pcie_up": (machine.pcie_up, machine.link_up),
        "pcie_down": (machine.pcie_down, machine.link_down),
    }
    demands: list[tuple[str, float]] = []
    for resource, seconds in cost.demands:
        demands.append((f"{resource} {number}" if resource in _OWN else resource, seconds))
        alone, shared = links.get(resource, (0.0, None))
        if shared is not None:
            demands.append((f"all {resource}", seconds * min(1.0, alone / shared)))
    needs: list[tuple[Hashable, int]] = [((number, stage), count) for stage, count in op.needs]
    if member.start > 0:
        needs.append(((number, "start"), 1))
    return Task(Cost(cost.seconds, tuple(demands)), needs)


@dataclass(frozen=True, slots=True)
class Run:
    """A run on several devices: its timeline and its members."""

    timeline: Timeline
    members: tuple[Member, ...]

    @property
    def gflops(self) -> float:
        """10⁹ flop/s of all members together."""
        return sum(member.plan.flops for member in self.members) / self.timeline.seconds / 1e9

    @property
    def imbalance(self) -> float:
        """Time from the first member's end to the last one's, relative to the run."""
        ends = [
            max(event.end for event in self.timeline.events if event.device == member.name)
            for member in self.members
        ]
        return (max(ends) - min(ends)) / max(ends)

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


class Simulation:
    """Plans and runs of one system."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._tiles: dict[tuple[str, int], Shape] = {}

    def plan(self, strategy: str, shape: Shape) -> Plan:
        """Plan C := A·B + beta·C on one device, all matrices in RAM."""
        system = self.system
        problem = Problem(*shape, reads_c=True)
        if system.work_unit is not None:
            limits = Limits(system.staging, system.device.limit() or system.staging)
            tiling = work_unit_tiling(system.work_unit, system.blocks, strategy, shape[2])
            return build_plan(Case(problem, system.device, strategy, limits), tiling)
        # A search takes a while: products of the same depth use the same tile.
        options = self.options(strategy, self._tiles.get((strategy, shape[2])))
        plan = plan_for(problem, options, system.device, system.machine)
        self._tiles[strategy, shape[2]] = plan.tile
        return plan

    def options(self, strategy: str, tile: Shape | None = None) -> Options:
        """Return the options of one strategy."""
        memory = self.system.device.memory_bytes
        return built_in_options(
            strategy=strategy, tile=tile, host_memory=self.system.staging, device_memory=memory
        )

    def devices(self, shape: Shape, count: int) -> list[Run]:
        """Run the best strategy on `count` equal bars of C, one a device, at every offset."""
        m, n, k = shape
        return self._at_offsets([self.plan(BEST, (m // count, n, k))] * count)

    def full_size(self) -> list[Run]:
        """Run a product of the full size on every device (HDGEMM, section 4.3.2)."""
        return self._at_offsets([self.plan(BEST, self.system.shape)] * self.system.devices)

    def hybrid(self, shape: Shape) -> list[Run]:
        """Run devices and CPUs at every offset, with the CPUs' share that is fastest."""
        runs = {share: self._with_cpu(shape, share) for share in _SHARES}
        first = max(runs, key=lambda share: runs[share].gflops)
        runs |= {first + step: self._with_cpu(shape, first + step) for step in _NEIGHBOURS}
        best = max(runs.values(), key=lambda run: run.gflops)
        *plans, cpu = (member.plan for member in best.members)
        return self._at_offsets(plans, cpu)

    def run(self, plans: Sequence[Plan], cpu: Plan | None = None, offset: float = 0.5) -> Run:
        """Run plans at once; each device starts `offset` work units after the one before."""
        system = self.system
        rows, cols = system.work_unit or (0, 0)
        unit_flops = 2 * rows * cols * plans[0].problem.k
        delay = offset * unit_flops / system.machine.flop_rate("float64")
        members = [
            Member(f"{system.device.name} {number}", plan, system.machine, delay * number)
            for number, plan in enumerate(plans)
        ]
        if cpu is not None:
            members.append(Member(CPU, cpu, system.cpu))
        return Run(run_plans(members), tuple(members))

    def _at_offsets(self, plans: Sequence[Plan], cpu: Plan | None = None) -> list[Run]:
        count = self.system.phases if len(plans) > 1 else 1
        return [self.run(plans, cpu, (number + 0.5) / count) for number in range(count)]

    def _with_cpu(self, shape: Shape, share: int) -> Run:
        """Run with so many 64ths of the columns on the CPUs."""
        (m, n, k), devices = shape, self.system.devices
        cols = round(share * n / 64 / 64) * 64
        plan = self.plan(BEST, (m // devices, n - cols, k))
        return self.run([plan] * devices, self._cpu_plan((m, cols, k)))

    def _cpu_plan(self, shape: Shape) -> Plan:
        spec = OperandSpec(path="resident")
        problem = Problem(*shape, a=spec, b=spec, c=spec, reads_c=True)
        host = DeviceSpec(CPU)
        return plan_for(problem, built_in_options(), host, self.system.cpu)


def work_unit_tiling(unit: tuple[int, int], blocks: int, strategy: str, k: int) -> Tiling:
    """Return the tiling of the paper's work unit (HDGEMM, algorithms 1 to 4).

    A and B of a whole unit are loaded; all strategies but the initial one compute C in blocks.
    """
    rows, cols = unit
    if strategy == "initial":
        return Tiling((rows, cols, k), k, k, (1, 1, 1))
    ahead = 1 if strategy == "double-buffering" else 2
    return Tiling((rows // blocks, cols, k), k, k, (ahead, ahead, 2), blocks=blocks)


def mean_gflops(runs: Sequence[Run]) -> float:
    """Return the mean speed over all offsets."""
    return mean(run.gflops for run in runs)
