"""Runs of a profile: strategies by turns, several devices, the CPU, and a sweep over sizes."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Final

from hdgemm.errors import HdgemmError
from hdgemm.planning.expectation import expect
from hdgemm.profiling.results import Prediction, Profile, Rate, Rung, Sample, SizePoint
from hdgemm.profiling.workload import DEPTHS, cpu_gflops, first_touch_rate, scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import Plan
    from hdgemm.profiling.workload import Extents, Workload
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

    Parameters
    ----------
    device
        Open; plans are made for its spec. Every run opens it anew, as a caller's would.
    machine
        Measured rates, for plans and predictions.
    peers
        The device and all others of its kind.
    """

    def __init__(
        self, work: Workload, device: Device, machine: Machine, peers: Sequence[str]
    ) -> None:
        self.notes: list[str] = []
        self._work = work
        self._device = device
        self._machine = machine
        self._peers = tuple(peers)
        self._reports: dict[str, list[Report]] = defaultdict(list)
        self._speeds: dict[str, list[float]] = defaultdict(list)
        self._sizes: list[SizePoint] = []
        self._failed: set[str] = set()

    def climb(self, seconds: float, least: int, most: int, progress: StepProgress) -> None:
        """Run every configuration by turns, for about so many seconds.

        The first run of each does not count: it compiles kernels and touches pages.
        """
        names = [*STRATEGIES, CPU, *([ALL] if len(self._peers) > 1 else [])]
        if self._device.spec.unified:
            self.notes.append("no hybrid: the device is the CPU")
        else:
            names.insert(len(STRATEGIES), HYBRID)
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
        try:
            report = self._report(name)
            speed = cpu_gflops(self._work.extents) if report is None else report.gflops
        except HdgemmError as error:
            self._failed.add(name)
            self.notes.append(f"{name} did not run: {error}")
            return
        if keep:
            self._speeds[name].append(speed)
            if report is not None:
                self._reports[name].append(report)

    def _report(self, name: str) -> Report | None:
        work, extents = self._work, self._work.extents
        if name == CPU:
            return None
        if name == HYBRID:
            return work.run_on(tuple(dict.fromkeys([*self._peers, "host"])), HYBRID, extents)
        if name == ALL:
            return work.run_on(self._peers, BEST, extents)
        return work.run(self.plan(name), extents)

    def plan(self, strategy: str, extents: Extents | None = None) -> Plan:
        """Plan the ladder's product, or one of other extents."""
        extents = extents or self._work.extents
        return self._work.plan(extents, strategy, self._device.spec, self._machine)

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
            report = self._work.run(self.plan(BEST, extents), extents)
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
        predictions = () if name == HYBRID else self._predictions(name, report)
        return Rung(self._rate(name), report.seconds, busy, predictions)

    def _predictions(self, name: str, report: Report) -> tuple[Prediction, ...]:
        expected = expect(self.plan(name), self._machine, first_touch_rate())
        measured = {stage: each.seconds for stage, each in report.stages.items()}
        stages = [
            Prediction(name, stage, seconds, measured[stage])
            for stage, seconds in expected.stage_seconds.items()
            if stage in measured and seconds > 0
        ]
        return (Prediction(name, "whole run", expected.seconds, report.seconds), *stages)

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
