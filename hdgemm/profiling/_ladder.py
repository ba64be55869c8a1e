"""Runs of a profile: strategies by turns, several devices, the CPU, and a sweep over sizes."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Final

from hdgemm.errors import HdgemmError
from hdgemm.planning.expectation import expect
from hdgemm.profiling._samples import Sample
from hdgemm.profiling._verdict import gains_from_twice
from hdgemm.profiling._workload import DEPTHS, cpu_gflops, scaled
from hdgemm.profiling.results import Prediction, Profile, Rate, Rung, SizePoint
from hdgemm.run.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import Expectation, Plan
    from hdgemm.profiling._environment import Target
    from hdgemm.profiling._workload import Workload
    from hdgemm.report import Report

    #: Called with the finished part of a step, and the name of the next measurement.
    StepProgress = Callable[[float, str], None]

STRATEGIES: Final = ("initial", "double-buffering", "data-reuse", "data-placement")
BEST: Final = "data-placement"
HYBRID: Final = "hybrid"
CPU: Final = "CPU alone"
ALL: Final = "all devices"
#: Parts of the largest side in the sweep (HDGEMM, Table 4: 16384 to 32768).
_PARTS: Final = (0.5, 0.75, 1.0)


class Ladder:
    """Runs of one workload on one device, on all of its kind, and with the CPU.

    Each configuration has a session: its device stays open and its slots stay allocated from its
    first run on. The measured rates of `machine` give predictions and peaks.
    """

    def __init__(self, work: Workload, target: Target, machine: Machine, *, unified: bool) -> None:
        self.notes: list[str] = []
        self._work = work
        self._machine = machine
        self._peers = target.peers
        one = target.peers[:1]
        self._options = {name: work.options(name, one, work.extents) for name in STRATEGIES}
        if unified:
            self.notes.append("no hybrid: the device is the CPU")
        else:
            self._options[HYBRID] = work.options(HYBRID, target.peers, work.extents)
        if len(target.peers) > 1:
            self._options[ALL] = work.options(BEST, target.peers, work.extents)
        self._sessions = {name: Session(options) for name, options in self._options.items()}
        self._predicted: dict[str, Expectation] = {}
        self._reports: dict[str, list[Report]] = defaultdict(list)
        self._speeds: dict[str, list[float]] = defaultdict(list)
        self._sizes: list[SizePoint] = []
        self._failed: set[str] = set()

    def close(self) -> None:
        """Close all sessions."""
        for session in self._sessions.values():
            session.close()

    def climb(self, seconds: float, least: int, most: int, progress: StepProgress) -> None:
        """Run every configuration by turns, for about so many seconds.

        The first run of each does not count: it compiles kernels and touches pages.
        """
        names = [*self._options, CPU]
        for name in names:
            progress(0.0, f"{name}, warming up")
            self._run(name, keep=False)
        began = time.perf_counter()
        for turn in range(most):
            for number, name in enumerate(names):
                spent = (time.perf_counter() - began) / seconds
                if turn >= least and spent >= 1:
                    return
                done = (turn * len(names) + number) / (most * len(names))
                progress(min(1.0, max(done, spent)), name)
                self._run(name, keep=True)

    def _run(self, name: str, *, keep: bool) -> None:
        if name in self._failed:
            return
        if name == CPU:
            speed = cpu_gflops(self._work.extents)
        else:
            options = self._options[name]
            try:
                report = self._work.run(self._sessions[name], options, self._work.extents)
            except HdgemmError as error:
                self._failed.add(name)
                self.notes.append(f"{name} did not run: {error}")
                return
            speed = report.gflops
            if keep:
                self._reports[name].append(report)
        if keep:
            self._speeds[name].append(speed)

    def analyse(self) -> dict[str, float]:
        """Predict the time of every strategy that ran; return the gains of the best one."""
        for name in STRATEGIES:
            if self._reports[name]:
                self._predicted[name] = expect(self._plan(name), self._machine)
        return gains_from_twice(self._plan(BEST), self._machine)

    def _plan(self, strategy: str) -> Plan:
        return self._work.plan(self._sessions[strategy], self._options[strategy])

    def sweep(self, seconds: float, progress: StepProgress) -> None:
        """Run the best strategy once for each size and depth, for about so many seconds."""
        began = time.perf_counter()
        cases = list(product(DEPTHS.items(), _PARTS))
        for number, ((series, depth), part) in enumerate(cases):
            if time.perf_counter() - began >= seconds:
                self.notes.append(f"the sweep over sizes stopped after {number} of {len(cases)}")
                return
            extents = scaled(self._work.extents, part, depth)
            progress(number / len(cases), f"{extents.m} × {extents.n} × {extents.k}")
            options = self._work.options(BEST, self._peers[:1], extents)
            report = self._work.run(None, options, extents)
            rate = Rate(Sample((report.gflops,)), self._kernel)
            self._sizes.append(SizePoint(extents.m, extents.n, extents.k, rate, series))

    @property
    def _kernel(self) -> float:
        """10⁹ flop/s of the device's kernel on resident tiles."""
        return self._machine.flop_rate("float64") / 1e9

    def _rate(self, name: str) -> Rate:
        """Return the speeds of a configuration, with the sum of its devices' own rates."""
        speeds = Sample.of(self._speeds[name])
        if name == CPU:
            return Rate(speeds, speeds.median)
        peak = self._kernel * (len(self._peers) if name in {ALL, HYBRID} else 1)
        # A device that is the host's own processor shares its cores with the CPU's part.
        if name == HYBRID and not self._machine.on_host_cores:
            peak += Sample.of(self._speeds[CPU]).median
        return Rate(speeds, peak)

    def added_to(self, profile: Profile) -> Profile:
        """Return the profile with all that the runs gave."""
        extents = self._work.extents
        described = {**profile.setting["product"], "m": extents.m, "n": extents.n, "k": extents.k}
        names = [name for name in (*STRATEGIES, HYBRID) if self._reports[name]]
        typical = {name: _of_median_speed(self._reports[name]) for name in names}
        labels = {BEST: "one device", ALL: ALL, HYBRID: "devices + CPU", CPU: CPU}
        rates = {label: self._rate(name) for name, label in labels.items() if self._speeds[name]}
        splits = [report.split for report in self._reports[HYBRID] if report.split is not None]
        return replace(
            profile,
            setting={**profile.setting, "product": described},
            ladder={name: self._rung(name, report) for name, report in typical.items()},
            scaling={"kernel": Rate(Sample((self._kernel,)), self._kernel), **rates},
            sizes=tuple(self._sizes),
            cpu=self._cpu(),
            imbalance=Sample.of(split.imbalance for split in splits).median if splits else None,
            timelines={name: report.timeline for name, report in typical.items()},
            notes=(*profile.notes, *self.notes),
        )

    def _rung(self, name: str, report: Report) -> Rung:
        busy: dict[str, float] = {s: stage.seconds for s, stage in report.stages.items()}
        rows = []
        if (expected := self._predicted.get(name)) is not None:
            rows.append(Prediction(name, "whole run", expected.seconds, report.seconds))
            rows += [
                Prediction(name, stage, seconds, busy[stage])
                for stage, seconds in expected.stage_seconds.items()
                if stage in busy and seconds > 0
            ]
        return Rung(self._rate(name), report.seconds, busy, tuple(rows))

    def _cpu(self) -> dict[str, float]:
        found = {}
        if self._speeds[CPU]:
            found["alone"] = Sample.of(self._speeds[CPU]).median
        splits = [report.split for report in self._reports[HYBRID] if report.split is not None]
        within = [split.shares["host"].kernel_rate for split in splits if "host" in split.shares]
        if within and max(within) > 0:
            found["within"] = Sample.of(within).median / 1e9
        return found


def _of_median_speed(reports: Sequence[Report]) -> Report:
    return sorted(reports, key=lambda report: report.seconds)[len(reports) // 2]
