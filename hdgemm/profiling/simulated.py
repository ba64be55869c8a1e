"""Profile of a simulated system: the same figures, from runs in virtual time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from statistics import mean
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.pipeline.plan import STAGES
from hdgemm.planning.costs import Cost
from hdgemm.planning.expectation import simulate
from hdgemm.planning.virtual_time import speeds
from hdgemm.profiling.contention import Bandwidth
from hdgemm.profiling.environment import describe_setting
from hdgemm.profiling.ladder import STRATEGIES
from hdgemm.profiling.results import Profile, Rate, Reference, Rung, Sample, SizePoint
from hdgemm.profiling.simulated_factorisations import (
    NOTE,
    profile_cluster,
    profile_hybrid,
    profile_native,
)
from hdgemm.profiling.verdict import Findings, gains_from_twice, judge
from hdgemm.simulation.executor import BEST, CPU, Simulation, mean_gflops
from hdgemm.simulation.factorisations import HYBRID_SYSTEMS
from hdgemm.simulation.linpack import CLUSTERS
from hdgemm.simulation.machines import SYSTEMS
from hdgemm.simulation.native import P100

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hdgemm.pipeline.timeline import Timeline
    from hdgemm.simulation.executor import Run
    from hdgemm.simulation.machines import System

_ONE_DEVICE: Final = "one device: no device shares its link, so all bandwidths are kept"


def simulate_profile(name: str, *, progress: Callable[[float, str], None] | None = None) -> Profile:
    """Profile a simulated system.

    Parameters
    ----------
    name
        ``"hd5970"`` (the paper's machine), ``"h200"``, ``"gh200"``; ``"chundoong"``, a cluster
        that runs LINPACK; or a hybrid machine that factors matrices, such as ``"k20c-6"``.
    progress
        Called with the finished part, and the name of the next step.

    Raises
    ------
    InputError
        For an unknown name.
    """
    show = progress or (lambda _part, _what: None)
    if name in CLUSTERS:
        return profile_cluster(CLUSTERS[name], show)
    if name in HYBRID_SYSTEMS:
        return profile_hybrid(HYBRID_SYSTEMS[name], show)
    if name == P100.hybrid.name:
        return profile_native(P100, show)
    if name not in SYSTEMS:
        known = ", ".join([*SYSTEMS, *CLUSTERS, *HYBRID_SYSTEMS, P100.hybrid.name])
        raise InputError(f"there is no system {name!r} to simulate; there are {known}")
    return _Simulated(SYSTEMS[name], show).profile()


class _Simulated:
    """The parts of one system's profile."""

    def __init__(self, system: System, progress: Callable[[float, str], None]) -> None:
        self.system = system
        self.simulation = Simulation(system)
        self._progress = progress
        self._hybrid_peak = system.devices * system.device_peak + system.cpu_peak

    def profile(self) -> Profile:
        """Run everything and draw the conclusions."""
        system, simulation = self.system, self.simulation
        self._progress(0.0, "strategies")
        plans = {strategy: simulation.plan(strategy, system.shape) for strategy in STRATEGIES}
        timelines = {s: simulate(plan, system.machine) for s, plan in plans.items()}
        ladder = {
            s: _rung(timelines[s], _rate(plan.flops / timelines[s].seconds, system.device_peak))
            for s, plan in plans.items()
        }
        self._progress(0.2, "several devices, and the CPU")
        alone, together = simulation.devices(system.shape, 1), simulation.full_size()
        hybrid = simulation.hybrid(system.shape)
        timelines["hybrid"] = hybrid[0].timeline
        first_device = hybrid[0].of_device(hybrid[0].members[0].name)
        ladder["hybrid"] = _rung(first_device, _rate(mean_gflops(hybrid) * 1e9, self._hybrid_peak))
        within = mean(run.busy_rate(CPU, "mult1") for run in hybrid)
        self._progress(0.5, "sizes")
        sizes = self._sizes()
        self._progress(0.8, "conclusions")
        found = Profile(
            kind="simulated",
            complete=True,
            setting=describe_setting(system.name, "memory", system.source, system.shape),
            ladder=ladder,
            sizes=sizes,
            scaling=self._scaling(alone, hybrid),
            bandwidth=_bandwidths(alone, together),
            matrix=_matrix(system),
            cpu={"alone": system.cpu_rate / 1e9, "within": within},
            imbalance=mean(run.imbalance for run in hybrid),
            notes=(NOTE, *([_ONE_DEVICE] if system.devices == 1 else [])),
            timelines=timelines,
        )
        gains = gains_from_twice(plans[BEST], system.machine)
        findings = Findings(gains=gains, contenders=system.devices)
        return replace(found, verdict=judge(found, findings), paper=self._references(found))

    def _scaling(self, alone: Sequence[Run], hybrid: Sequence[Run]) -> dict[str, Rate]:
        system = self.system
        kernel = system.machine.flop_rate("float64")
        found = {
            "kernel": _rate(kernel, system.device_peak),
            "one device": _rate(mean_gflops(alone) * 1e9, system.device_peak),
        }
        if system.devices > 1:
            every = self.simulation.devices(system.shape, system.devices)
            peak = system.devices * system.device_peak
            found["all devices"] = _rate(mean_gflops(every) * 1e9, peak)
        found["devices + CPU"] = _rate(mean_gflops(hybrid) * 1e9, self._hybrid_peak)
        found["CPU alone"] = _rate(system.cpu_rate, system.cpu_peak)
        return found

    def _sizes(self) -> tuple[SizePoint, ...]:
        (m, _, k), devices = self.system.shape, self.system.devices
        points = []
        for side, depth in product((m, m * 3 // 2, 2 * m), (k * 3 // 4, k, 2 * k)):
            bar = self.simulation.plan(BEST, (side // devices, side, depth))
            run = self.simulation.run([bar] * devices)
            rate = _rate(run.gflops * 1e9, devices * self.system.device_peak)
            points.append(SizePoint(side, side, depth, rate, f"k = {depth}"))
        return tuple(points)

    def _references(self, found: Profile) -> tuple[Reference, ...]:
        """Return the published figures of the system with the simulated ones."""
        if not self.system.published:
            return ()
        m, n, k = self.system.shape
        deep = (m, n, 2 * k)
        speed = {name: rung.rate.gflops.median for name, rung in found.ladder.items()}
        figures = {
            **{new: speed[new] / speed[old] for old, new in pairwise(STRATEGIES)},
            "one chip": speed[BEST],
            "two chips": mean_gflops(self.simulation.devices(deep, 2)),
            "two chips and CPU": mean_gflops(self.simulation.hybrid(deep)),
            **{stage: each.kept for stage, each in found.bandwidth.items()},
            "CPU": found.cpu["within"] / found.cpu["alone"],
        }
        return tuple(
            Reference(label, value, figures[name])
            for name, (label, value) in self.system.published.items()
        )


def _rate(flop_rate: float, peak: float) -> Rate:
    return Rate(Sample((flop_rate / 1e9,)), peak / 1e9)


def _rung(timeline: Timeline, rate: Rate) -> Rung:
    busy: dict[str, float] = {s: stats.seconds for s, stats in timeline.stages().items()}
    return Rung(rate, timeline.seconds, busy)


def _bandwidths(alone: Sequence[Run], together: Sequence[Run]) -> dict[str, Bandwidth]:
    """Return the rate of each stage while busy, on one device alone and on all at once."""
    found: dict[str, Bandwidth] = {}
    for stage in STAGES:
        before, after = (
            mean(run.busy_rate(member.name, stage) for run in runs for member in run.members)
            for runs in (alone, together)
        )
        if before > 0:
            found[stage] = Bandwidth(stage, Sample((before,)), Sample((after,)))
    return found


def _matrix(system: System) -> dict[str, dict[str, Sample]]:
    """Return the rate of the row's stage beside the column's on another device, and the CPUs."""
    machine = system.machine
    copies = {"host_memory": min(1.0, 2 * machine.copy / machine.memory)}
    demands: dict[str, dict[str, float]] = {
        "load1": copies,
        "load2": _link_demand("pcie_up", machine.pcie_up, machine.link_up),
        "mult1": {"device": 1.0},
        "store1": _link_demand("pcie_down", machine.pcie_down, machine.link_down),
        "store2": copies,
        "cores": {"host_memory": machine.multiply_memory / machine.memory},
    }
    costs = {name: Cost(1.0, tuple(used.items())) for name, used in demands.items()}
    return {
        row: {
            column: Sample((speeds([own, other])[0],))
            for column, other in costs.items()
            if not row == column == "mult1"
        }
        for row, own in costs.items()
    }


def _link_demand(name: str, alone: float, whole: float | None) -> dict[str, float]:
    return {} if whole is None else {name: min(1.0, alone / whole)}
