"""The same profile without hardware: a system of data, its runs in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from statistics import mean
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.options import Options
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem
from hdgemm.pipeline.timeline import Timeline
from hdgemm.planning.build import Limits, build_plan
from hdgemm.planning.costs import Cost
from hdgemm.planning.lanes import speeds
from hdgemm.planning.model import simulate
from hdgemm.planning.partition import Shape as Cut
from hdgemm.planning.planner import plan_problem
from hdgemm.planning.systems import SYSTEMS
from hdgemm.planning.together import Member, simulate_together
from hdgemm.profiling.advice import WhatIf
from hdgemm.profiling.paper import references
from hdgemm.profiling.results import Bandwidth, Profile, Rate, Rung, SizePoint
from hdgemm.profiling.sample import Sample
from hdgemm.profiling.setting import setting
from hdgemm.profiling.verdict import Findings, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.planning.systems import System
    from hdgemm.profiling.results import Reference

Shape = tuple[int, int, int]

#: The paper's ladder without the CPU.
_RUNGS: Final = ("initial", "double-buffering", "data-reuse", "data-placement")
_BEST: Final = "data-placement"
_CPU: Final = "cpu"
#: Shares of the CPU to try, in 64ths of the columns of C: widely first, then beside the best.
_SHARES: Final = (2, 4, 6, 8, 10, 12)
_BESIDE: Final = (-1, 1)


def simulate_profile(name: str, *, progress: Callable[[float, str], None] | None = None) -> Profile:
    """Profile a simulated system.

    Parameters
    ----------
    name
        ``"hd5970"`` (the paper's machine), ``"h200"`` or ``"gh200"``.
    progress
        Called with the part that is done, and what comes next.

    Raises
    ------
    InputError
        For a name that is no system.
    """
    if name not in SYSTEMS:
        raise InputError(f"there is no system {name!r} to simulate; there are {', '.join(SYSTEMS)}")
    return _Simulation(SYSTEMS[name], progress or _silent).profile()


def _silent(_part: float, _what: str, /) -> None:
    return


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


class _Simulation:
    """The runs that a profile of one system takes."""

    def __init__(self, system: System, progress: Callable[[float, str], None]) -> None:
        self.system = system
        self._progress = progress
        self._tiles: dict[tuple[str, int], Shape] = {}

    def profile(self) -> Profile:
        system = self.system
        self._progress(0.0, "the ladder")
        plans = {strategy: self.plan(strategy, system.shape) for strategy in _RUNGS}
        timelines = {s: simulate(plan, system.machine) for s, plan in plans.items()}
        ladder = {s: self._rung(plan, timelines[s]) for s, plan in plans.items()}
        self._progress(0.2, "several devices, and the CPU")
        alone, all_devices = self.devices(system.shape, 1), self._same_scale()
        hybrid = self.hybrid(system.shape)
        ladder["hybrid"] = self._hybrid_rung(hybrid)
        timelines["hybrid"] = hybrid[0].timeline
        self._progress(0.5, "sizes")
        sizes = self._sizes()
        self._progress(0.8, "what would help")
        bandwidth = _bandwidths(alone, all_devices)
        what_if = WhatIf(plans[_BEST], self.options(_BEST), system.machine)
        cpu = self._cpu(hybrid)
        findings = Findings(
            ladder=ladder,
            bandwidth=bandwidth,
            doubled=what_if.doubled(),
            advice=what_if.advice(),
            cpu_kept=cpu["within"] / cpu["alone"],
            contenders=system.devices,
        )
        return Profile(
            kind="simulated",
            complete=True,
            setting=setting(
                device=system.name, shape=system.shape, place="memory", source=system.source
            ),
            ladder=ladder,
            sizes=sizes,
            scaling=self._scaling(alone, hybrid),
            bandwidth=bandwidth,
            matrix=_matrix(plans[_BEST], system),
            cpu=cpu,
            imbalance=_imbalance(hybrid),
            verdict=judge(findings),
            paper=self._paper(ladder, bandwidth, cpu),
            notes=_notes(system),
            timelines=timelines,
        )

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
        return self._phases([self.plan(_BEST, (m // count, n, k))] * count)

    def _same_scale(self) -> list[Together]:
        """Run every device on a product of the full size (HDGEMM, section 4.3.2)."""
        return self._phases([self.plan(_BEST, self.system.shape)] * self.system.devices)

    def _phases(self, plans: list[Plan], cpu: Plan | None = None) -> list[Together]:
        count = self.system.phases if len(plans) > 1 else 1
        return [self._run(plans, cpu, (number + 0.5) / count) for number in range(count)]

    def _run(self, plans: list[Plan], cpu: Plan | None = None, phase: float = 0.5) -> Together:
        system = self.system
        behind = phase * self._unit_seconds(plans[0].problem.k)
        members = [
            Member(f"{system.device.name} {number}", plan, system.machine, behind * number)
            for number, plan in enumerate(plans)
        ]
        if cpu is not None:
            members.append(Member(_CPU, cpu, system.cpu))
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
        plan = self.plan(_BEST, (m // devices, n - cols, k))
        return self._run([plan] * devices, self._cpu_plan((m, cols, k)))

    def _cpu_plan(self, shape: Shape) -> Plan:
        spec = OperandSpec(path="resident")
        problem = Problem(*shape, a=spec, b=spec, c=spec, reads_c=True)
        host = DeviceSpec(_CPU)
        return plan_problem(problem, Options(), host, self.system.cpu, host_limit=1 << 40)

    def _rung(self, plan: Plan, timeline: Timeline) -> Rung:
        rate = _rate(plan.flops / timeline.seconds, self.system.device_peak)
        busy: dict[str, float] = {s: stats.seconds for s, stats in timeline.stages().items()}
        return Rung(rate, timeline.seconds, busy)

    def _hybrid_rung(self, runs: list[Together]) -> Rung:
        run, first = runs[0], runs[0].members[0].name
        own = Timeline(
            tuple(event for event in run.timeline.events if event.device == first),
            run.timeline.seconds,
        )
        busy: dict[str, float] = {s: stats.seconds for s, stats in own.stages().items()}
        return Rung(_rate(_mean_gflops(runs) * 1e9, self._whole_peak()), own.seconds, busy)

    def _whole_peak(self) -> float:
        return self.system.devices * self.system.device_peak + self.system.cpu_peak

    def _scaling(self, alone: list[Together], hybrid: list[Together]) -> dict[str, Rate]:
        system = self.system
        kernel = system.machine.flop_rate("float64")
        found = {
            "kernel": _rate(kernel, system.device_peak),
            "one device": _rate(_mean_gflops(alone) * 1e9, system.device_peak),
        }
        if system.devices > 1:
            both = self.devices(system.shape, system.devices)
            peak = system.devices * system.device_peak
            found["all devices"] = _rate(_mean_gflops(both) * 1e9, peak)
        found["devices + CPU"] = _rate(_mean_gflops(hybrid) * 1e9, self._whole_peak())
        found["CPU alone"] = _rate(system.cpu_rate, system.cpu_peak)
        return found

    def _sizes(self) -> tuple[SizePoint, ...]:
        m, _, k = self.system.shape
        points = []
        for side, depth in product((m, m * 3 // 2, 2 * m), (k * 3 // 4, k, 2 * k)):
            bar = (side // self.system.devices, side, depth)
            run = self._run([self.plan(_BEST, bar)] * self.system.devices)
            peak = self.system.devices * self.system.device_peak
            rate = _rate(run.gflops * 1e9, peak)
            points.append(SizePoint(side, side, depth, rate, f"k = {depth}"))
        return tuple(points)

    def _cpu(self, hybrid: list[Together]) -> dict[str, float]:
        within = [_busy_rate(run.timeline, _CPU, "mult1") for run in hybrid]
        return {"alone": self.system.cpu_rate / 1e9, "within": mean(within)}

    def _paper(
        self,
        ladder: Mapping[str, Rung],
        bandwidth: Mapping[str, Bandwidth],
        cpu: Mapping[str, float],
    ) -> tuple[Reference, ...]:
        if self.system.name != "hd5970":
            return ()
        m, n, k = self.system.shape
        deep = (m, n, 2 * k)
        speed = {name: rung.rate.gflops.median for name, rung in ladder.items()}
        figures = {
            **{new: speed[new] / speed[old] for old, new in pairwise(_RUNGS)},
            "one chip": speed[_BEST],
            "two chips": _mean_gflops(self.devices(deep, 2)),
            "two chips and CPU": _mean_gflops(self.hybrid(deep)),
            **{stage: each.kept for stage, each in bandwidth.items() if stage != "mult1"},
            "CPU": cpu["within"] / cpu["alone"],
        }
        return references(figures)


def work_unit_shape(unit: tuple[int, int], blocks: int, strategy: str, k: int) -> Cut:
    """Return the paper's work unit as a shape (HDGEMM, algorithms 1 to 4).

    A and B of a whole unit are loaded; all but the initial strategy compute it block by block.
    """
    rows, cols = unit
    if strategy == "initial":
        return Cut((rows, cols, k), k, k, (1, 1, 1))
    ahead = 1 if strategy == "double-buffering" else 2
    return Cut((rows // blocks, cols, k), k, k, (ahead, ahead, 2), blocks=blocks)


def _rate(flop_rate: float, peak: float) -> Rate:
    return Rate(Sample((flop_rate / 1e9,)), peak / 1e9)


def _mean_gflops(runs: list[Together]) -> float:
    return mean(run.gflops for run in runs)


def _bandwidths(alone: list[Together], together: list[Together]) -> dict[str, Bandwidth]:
    """Return each stage's rate while busy, of one device alone and of all at once."""
    stages: tuple[Stage, ...] = ("load1", "load2", "mult1", "store1", "store2")
    found: dict[str, Bandwidth] = {}
    for stage in stages:
        unit = "GFLOP/s" if stage == "mult1" else "GB/s"
        before, after = (
            Sample(
                (
                    mean(
                        _busy_rate(run.timeline, member.name, stage)
                        for run in runs
                        for member in run.members
                    ),
                )
            )
            for runs in (alone, together)
        )
        if before.median > 0:
            found[stage] = Bandwidth(before, after, unit)
    return found


def _busy_rate(timeline: Timeline, device: str, stage: Stage) -> float:
    events = [e for e in timeline.events if e.device == device and e.stage == stage]
    seconds = sum(event.end - event.start for event in events)
    amount = sum(event.flops if stage == "mult1" else event.nbytes for event in events)
    return amount / seconds / 1e9 if seconds > 0 else 0.0


def _imbalance(runs: list[Together]) -> float:
    """Return how far apart the units end, as a part of the run (HDGEMM, Figure 12)."""
    gaps = []
    for run in runs:
        ends = [
            max(event.end for event in run.timeline.events if event.device == member.name)
            for member in run.members
        ]
        gaps.append((max(ends) - min(ends)) / max(ends))
    return mean(gaps)


def _matrix(plan: Plan, system: System) -> dict[str, dict[str, Sample]]:
    """Return what row's stage keeps while column's stage of another device runs beside it."""
    machine = system.machine
    whole = {
        "pcie_up": (machine.pcie_up, machine.link_up),
        "pcie_down": (machine.pcie_down, machine.link_down),
    }
    demands = {
        "load1": {"host_memory": min(1.0, 2 * machine.copy / machine.memory)},
        "load2": _link_demand(*whole["pcie_up"], "pcie_up"),
        "mult1": {"device": 1.0},
        "store1": _link_demand(*whole["pcie_down"], "pcie_down"),
        "store2": {"host_memory": min(1.0, 2 * machine.copy / machine.memory)},
        "cores": {"host_memory": machine.multiply_memory / machine.memory},
    }
    if plan.device.unified:
        demands = {name: demands[name] for name in ("load1", "mult1", "store2", "cores")}
    costs = {name: Cost(1.0, tuple(used.items())) for name, used in demands.items()}
    return {
        row: {
            column: Sample((speeds([own, other])[0],))
            for column, other in costs.items()
            if column != "mult1" or row != "mult1"
        }
        for row, own in costs.items()
    }


def _link_demand(alone: float, whole: float | None, name: str) -> dict[str, float]:
    return {} if whole is None else {name: min(1.0, alone / whole)}


def _notes(system: System) -> tuple[str, ...]:
    notes = ["simulated: nothing was measured on this machine"]
    if system.devices == 1:
        notes.append("one device: nothing to share a link with; bandwidths equal those alone")
    return tuple(notes)
