"""A simulated system at work: one device, several, and the CPUs beside them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Final

from hdgemm.options import Options
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem
from hdgemm.planning.build import Limits, build_plan
from hdgemm.planning.planner import plan_problem
from hdgemm.planning.shapes import Shape as Cut
from hdgemm.simulation.plans import Member, simulate_together

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.timeline import Timeline
    from hdgemm.simulation.systems import System

#: m, n and k.
Shape = tuple[int, int, int]

#: The strategy without the CPU that all others lead to.
BEST: Final = "data-placement"
CPU: Final = "cpu"
#: Shares of the CPU to try, in 64ths of the columns of C: widely first, then beside the best.
_SHARES: Final = (2, 4, 6, 8, 10, 12)
_BESIDE: Final = (-1, 1)


@dataclass(frozen=True, slots=True)
class Together:
    """A run on several units: its timeline, and who took part."""

    timeline: Timeline
    flops: int
    members: tuple[Member, ...]

    @property
    def gflops(self) -> float:
        """10⁹ flop/s of all together."""
        return self.flops / self.timeline.seconds / 1e9


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
            limits = Limits(system.staging, system.device.memory_bytes)
            shaped = work_unit_shape(system.work_unit, system.blocks, strategy, shape[2])
            return build_plan(problem, system.device, strategy, shaped, limits)
        options = self.options(strategy, self._tiles.get((strategy, shape[2])))
        plan = plan_problem(
            problem, options, system.device, system.machine, host_limit=system.staging
        )
        # The search takes its time; other extents of the same depth take the same tile.
        self._tiles[strategy, shape[2]] = plan.tile
        return plan

    def options(self, strategy: str, tile: Shape | None = None) -> Options:
        """Return the options of one strategy."""
        memory = self.system.device.memory_bytes
        return Options(
            strategy=strategy, tile=tile, host_memory=self.system.staging, device_memory=memory
        )

    def devices(self, shape: Shape, count: int) -> list[Together]:
        """Run the best strategy on bars of C, one for each device, in every phase."""
        m, n, k = shape
        return self._phases([self.plan(BEST, (m // count, n, k))] * count)

    def same_scale(self) -> list[Together]:
        """Run every device on a product of the full size (HDGEMM, section 4.3.2)."""
        return self._phases([self.plan(BEST, self.system.shape)] * self.system.devices)

    def _phases(self, plans: list[Plan], cpu: Plan | None = None) -> list[Together]:
        count = self.system.phases if len(plans) > 1 else 1
        return [self.run(plans, cpu, (number + 0.5) / count) for number in range(count)]

    def run(self, plans: list[Plan], cpu: Plan | None = None, phase: float = 0.5) -> Together:
        """Run plans at once, each device so much of a work unit behind the one before."""
        system = self.system
        behind = phase * self._unit_seconds(plans[0].problem.k)
        members = [
            Member(f"{system.device.name} {number}", plan, system.machine, behind * number)
            for number, plan in enumerate(plans)
        ]
        if cpu is not None:
            members.append(Member(CPU, cpu, system.cpu))
        flops = sum(member.plan.flops for member in members)
        return Together(simulate_together(members), flops, tuple(members))

    def _unit_seconds(self, k: int) -> float:
        rows, cols = self.system.work_unit or (0, 0)
        return 2 * rows * cols * k / self.system.machine.flop_rate("float64")

    def hybrid(self, shape: Shape) -> list[Together]:
        """Give the CPUs the columns that make the run shortest; that one in every phase."""
        runs = {share: self._shared(shape, share) for share in _SHARES}
        found = max(runs, key=lambda share: runs[share].gflops)
        best = max(
            [runs[found], *(self._shared(shape, found + step) for step in _BESIDE)],
            key=lambda run: run.gflops,
        )
        *plans, cpu = (member.plan for member in best.members)
        return self._phases(plans, cpu)

    def _shared(self, shape: Shape, share: int) -> Together:
        """Give the CPUs so many 64ths of the columns."""
        (m, n, k), devices = shape, self.system.devices
        cols = round(share * n / 64 / 64) * 64
        plan = self.plan(BEST, (m // devices, n - cols, k))
        return self.run([plan] * devices, self._cpu_plan((m, cols, k)))

    def _cpu_plan(self, shape: Shape) -> Plan:
        spec = OperandSpec(path="resident")
        problem = Problem(*shape, a=spec, b=spec, c=spec, reads_c=True)
        host = DeviceSpec(CPU)
        return plan_problem(problem, Options(), host, self.system.cpu, host_limit=1 << 40)


def work_unit_shape(unit: tuple[int, int], blocks: int, strategy: str, k: int) -> Cut:
    """Return the paper's work unit as a shape (HDGEMM, algorithms 1 to 4).

    A and B of a whole unit are loaded; all but the initial strategy compute it block by block.
    """
    rows, cols = unit
    if strategy == "initial":
        return Cut((rows, cols, k), k, k, (1, 1, 1))
    ahead = 1 if strategy == "double-buffering" else 2
    return Cut((rows // blocks, cols, k), k, k, (ahead, ahead, 2), blocks=blocks)


def mean_gflops(runs: list[Together]) -> float:
    """Return the mean speed over all phases."""
    return mean(run.gflops for run in runs)


def busy_rate(timeline: Timeline, device: str, stage: Stage) -> float:
    """Return 10⁹ bytes/s, or flop/s for mult1, of one stage while it was busy."""
    events = [e for e in timeline.events if e.device == device and e.stage == stage]
    seconds = sum(event.end - event.start for event in events)
    amount = sum(event.flops if stage == "mult1" else event.nbytes for event in events)
    return amount / seconds / 1e9 if seconds > 0 else 0.0
