"""The same profile without hardware: a system of data, its runs in virtual time."""

from __future__ import annotations

from itertools import pairwise, product
from statistics import mean
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.pipeline.timeline import Timeline
from hdgemm.planning.expectation import simulate
from hdgemm.profiling.advice import WhatIf
from hdgemm.profiling.results import Bandwidth, Profile, Rate, Rung, SizePoint
from hdgemm.profiling.sample import Sample
from hdgemm.profiling.setting import setting
from hdgemm.profiling.verdict import Findings, judge
from hdgemm.simulation.ladder import BEST, CPU, Simulation, busy_rate, mean_gflops
from hdgemm.simulation.paper import references
from hdgemm.simulation.sharing import simulated_bandwidths, simulated_imbalance, simulated_matrix
from hdgemm.simulation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdgemm.pipeline.plan import Plan
    from hdgemm.profiling.results import Reference
    from hdgemm.simulation.ladder import Together
    from hdgemm.simulation.systems import System

#: The paper's ladder without the CPU.
_RUNGS: Final = ("initial", "double-buffering", "data-reuse", "data-placement")


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
    return _Profiler(SYSTEMS[name], progress or _silent).profile()


def _silent(_part: float, _what: str, /) -> None:
    return


class _Profiler:
    """Puts the profile of one system together."""

    def __init__(self, system: System, progress: Callable[[float, str], None]) -> None:
        self.system = system
        self.simulation = Simulation(system)
        self._progress = progress

    def profile(self) -> Profile:
        """Run everything and draw the conclusions."""
        system = self.system
        self._progress(0.0, "the ladder")
        plans = {strategy: self.simulation.plan(strategy, system.shape) for strategy in _RUNGS}
        timelines = {s: simulate(plan, system.machine) for s, plan in plans.items()}
        ladder = {s: self._rung(plan, timelines[s]) for s, plan in plans.items()}
        self._progress(0.2, "several devices, and the CPU")
        alone, all_devices = self.simulation.devices(system.shape, 1), self.simulation.same_scale()
        hybrid = self.simulation.hybrid(system.shape)
        ladder["hybrid"] = self._hybrid_rung(hybrid)
        timelines["hybrid"] = hybrid[0].timeline
        self._progress(0.5, "sizes")
        sizes = self._sizes()
        self._progress(0.8, "what would help")
        bandwidth = simulated_bandwidths(alone, all_devices)
        what_if = WhatIf(plans[BEST], self.simulation.options(BEST), system.machine)
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
            matrix=simulated_matrix(system),
            cpu=cpu,
            imbalance=simulated_imbalance(hybrid),
            verdict=judge(findings),
            paper=self._paper(ladder, bandwidth, cpu),
            notes=_notes(system),
            timelines=timelines,
        )

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
        return Rung(_rate(mean_gflops(runs) * 1e9, self._whole_peak()), own.seconds, busy)

    def _whole_peak(self) -> float:
        return self.system.devices * self.system.device_peak + self.system.cpu_peak

    def _scaling(self, alone: list[Together], hybrid: list[Together]) -> dict[str, Rate]:
        system = self.system
        kernel = system.machine.flop_rate("float64")
        found = {
            "kernel": _rate(kernel, system.device_peak),
            "one device": _rate(mean_gflops(alone) * 1e9, system.device_peak),
        }
        if system.devices > 1:
            both = self.simulation.devices(system.shape, system.devices)
            peak = system.devices * system.device_peak
            found["all devices"] = _rate(mean_gflops(both) * 1e9, peak)
        found["devices + CPU"] = _rate(mean_gflops(hybrid) * 1e9, self._whole_peak())
        found["CPU alone"] = _rate(system.cpu_rate, system.cpu_peak)
        return found

    def _sizes(self) -> tuple[SizePoint, ...]:
        m, _, k = self.system.shape
        points = []
        for side, depth in product((m, m * 3 // 2, 2 * m), (k * 3 // 4, k, 2 * k)):
            bar = (side // self.system.devices, side, depth)
            run = self.simulation.run([self.simulation.plan(BEST, bar)] * self.system.devices)
            peak = self.system.devices * self.system.device_peak
            rate = _rate(run.gflops * 1e9, peak)
            points.append(SizePoint(side, side, depth, rate, f"k = {depth}"))
        return tuple(points)

    def _cpu(self, hybrid: list[Together]) -> dict[str, float]:
        within = [busy_rate(run.timeline, CPU, "mult1") for run in hybrid]
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
            "one chip": speed[BEST],
            "two chips": mean_gflops(self.simulation.devices(deep, 2)),
            "two chips and CPU": mean_gflops(self.simulation.hybrid(deep)),
            **{stage: each.kept for stage, each in bandwidth.items() if stage != "mult1"},
            "CPU": cpu["within"] / cpu["alone"],
        }
        return references(figures)


def _rate(flop_rate: float, peak: float) -> Rate:
    return Rate(Sample((flop_rate / 1e9,)), peak / 1e9)


def _notes(system: System) -> tuple[str, ...]:
    notes = ["simulated: nothing was measured on this machine"]
    if system.devices == 1:
        notes.append("one device: nothing to share a link with; bandwidths equal those alone")
    return tuple(notes)
