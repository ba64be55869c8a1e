"""The runs of a profile: strategies in turn, several devices, sizes; each planned and predicted."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import HdgemmError
from hdgemm.planning.expectation import expect
from hdgemm.profiling.advice import WhatIf
from hdgemm.profiling.conclusions import Advice
from hdgemm.profiling.copy_rates import copy_rates, fresh_rate
from hdgemm.profiling.host import host_speed
from hdgemm.profiling.results import Prediction, Rate, Rung, SizePoint
from hdgemm.profiling.sample import Sample
from hdgemm.profiling.workload import DEPTHS, scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.profiling.workload import Extents, Workload
    from hdgemm.report import Report

    #: Called with the part of a step that is done, and what comes next.
    StepProgress = Callable[[float, str], None]

RUNGS: Final = ("initial", "double-buffering", "data-reuse", "data-placement")
BEST: Final = "data-placement"
_KERNEL: Final = "kernel"
_CPU: Final = "CPU alone"
_ALL: Final = "all devices"
_HYBRID: Final = "hybrid"
#: Parts of the largest side in the sweep over sizes (HDGEMM, Table 4: 16384 to 32768).
_PARTS: Final = (0.5, 0.75, 1.0)
#: Bytes copied to find what more threads would bring.
_COPY_BYTES: Final = 64 << 20


class Ladder:
    """Runs of one workload on one device, on all of its kind, and with the CPU.

    Parameters
    ----------
    device
        Open; its spec is planned for. Runs open it again, as any caller's would.
    machine
        Measured rates: what plans are priced with, and predictions made from.
    peers
        The device and others like it.
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
        self._doubled: dict[str, float] = {}
        self._advice: list[Advice] = []
        self._broken: set[str] = set()

    @property
    def shape(self) -> tuple[int, int, int]:
        """m, n and k of the ladder's product."""
        extents = self._work.extents
        return extents.m, extents.n, extents.k

    def climb(self, seconds: float, least: int, most: int, progress: StepProgress) -> None:
        """Run every configuration in turn, again and again, for about so many seconds.

        Each runs once more before the first that counts: kernels are compiled, pages touched.
        """
        names = [*RUNGS, _CPU, *([_ALL] if len(self._peers) > 1 else [])]
        if self._device.spec.unified:
            self.notes.append("no hybrid: the device is the CPU")
        else:
            names.insert(len(RUNGS), _HYBRID)
        for name in names:
            progress(0.0, f"{name}, warming up")
            self._once(name, keep=False)
        began = time.perf_counter()
        for turn in range(most):
            for number, name in enumerate(names):
                spent = (time.perf_counter() - began) / seconds
                if turn >= least and spent >= 1:
                    return
                done = (turn * len(names) + number) / (most * len(names))
                progress(min(1.0, max(done, spent)), name)
                self._once(name, keep=True)

    def _once(self, name: str, *, keep: bool) -> None:
        if name in self._broken:
            return
        try:
            speed, report = self._measure(name)
        except HdgemmError as error:
            self._broken.add(name)
            self.notes.append(f"{name} did not run: {error}")
            return
        if keep:
            self._speeds[name].append(speed)
            if report is not None:
                self._reports[name].append(report)

    def _measure(self, name: str) -> tuple[float, Report | None]:
        work, extents = self._work, self._work.extents
        if name == _CPU:
            return host_speed(extents), None
        if name == _HYBRID:
            report = work.run_on(_with_host(self._peers), _HYBRID, extents)
        elif name == _ALL:
            report = work.run_on(self._peers, BEST, extents)
        else:
            report = work.run(self._plan(name, extents), extents)
        return report.gflops, report

    def _plan(self, strategy: str, extents: Extents) -> Any:
        return self._work.plan(extents, strategy, self._device.spec, self._machine)

    def sweep(self, seconds: float, progress: StepProgress) -> None:
        """Run the best strategy over sizes and depths, each once, for about so many seconds."""
        began = time.perf_counter()
        cases = list(product(DEPTHS.items(), _PARTS))
        for number, ((series, depth), part) in enumerate(cases):
            spent = (time.perf_counter() - began) / seconds
            if spent >= 1:
                self.notes.append(f"the sweep over sizes stopped after {number} of {len(cases)}")
                return
            extents = scaled(self._work.extents, part, depth)
            progress(number / len(cases), f"{extents.m} × {extents.n} × {extents.k}")
            report = self._work.run(self._plan(BEST, extents), extents)
            rate = Rate(Sample((report.gflops,)), self._kernel)
            self._sizes.append(SizePoint(extents.m, extents.n, extents.k, rate, series))

    def think(self) -> None:
        """Ask the model what would help."""
        extents = self._work.extents
        what_if = WhatIf(self._plan(BEST, extents), self._work.options(BEST, extents),
                         self._machine)  # fmt: skip
        self._doubled = what_if.doubled()
        more = max(copy_rates(_COPY_BYTES).values()) if not self._work.files else None
        self._advice = what_if.advice(more)
        best, hybrid = (Sample.of(self._speeds[name]).median for name in (BEST, _HYBRID))
        if 0 < hybrid < best:
            self._advice.append(Advice("dropping the CPU", best / hybrid - 1, "measured"))

    @property
    def _kernel(self) -> float:
        """10⁹ flop/s of the device's kernel alone, on resident tiles."""
        return self._machine.flop_rate("float64") / 1e9

    def _peak(self, name: str) -> float:
        """10⁹ flop/s of the units that take part, each alone."""
        host = Sample.of(self._speeds[_CPU]).median
        if name == _CPU:
            return host
        devices = len(self._peers) if name in {_ALL, _HYBRID} else 1
        # Where the device is the host's own processor, both are the same cores.
        both = name == _HYBRID and not self._same_cores()
        return devices * self._kernel + (host if both else 0.0)

    def _same_cores(self) -> bool:
        return self._device.spec.unified or self._machine.on_host_cores

    def found(self) -> dict[str, Any]:
        """Return the fields of a `Profile` that the runs fill."""
        ladder = {name: self._rung(name) for name in (*RUNGS, _HYBRID) if self._reports[name]}
        scaling = {_KERNEL: Rate(Sample((self._kernel,)), self._kernel)}
        labels = {BEST: "one device", _ALL: _ALL, _HYBRID: "devices + CPU", _CPU: _CPU}
        for name, label in labels.items():
            if self._speeds[name]:
                scaling[label] = Rate(Sample.of(self._speeds[name]), self._peak(name))
        return {
            "ladder": ladder,
            "scaling": scaling,
            "sizes": tuple(self._sizes),
            "cpu": self._cpu(),
            "imbalance": self._imbalance(),
            "timelines": {name: self._typical(name).timeline for name in ladder},
        }

    def verdict_parts(self) -> dict[str, Any]:
        """Return the fields of `Findings` that the runs fill."""
        cpu = self._cpu()
        kept = cpu["within"] / cpu["alone"] if len(cpu) == 2 else None
        names = [name for name in (*RUNGS, _HYBRID) if self._reports[name]]
        rows = tuple(row for name in names for row in self._predict(name))
        return {
            "doubled": self._doubled, "advice": tuple(self._advice), "predictions": rows,
            "cpu_kept": kept, "contenders": len(self._peers),
            "on_host_cores": self._machine.on_host_cores,
        }  # fmt: skip

    def _typical(self, name: str) -> Report:
        """Return the run of median speed."""
        reports = sorted(self._reports[name], key=lambda report: report.seconds)
        return reports[len(reports) // 2]

    def _rung(self, name: str) -> Rung:
        report = self._typical(name)
        busy: dict[str, float] = {s: stage.seconds for s, stage in report.stages.items()}
        rate = Rate(Sample.of(self._speeds[name]), self._peak(name))
        return Rung(rate, report.seconds, busy, self._predict(name))

    def _predict(self, name: str) -> tuple[Prediction, ...]:
        report = self._typical(name)
        if name == _HYBRID:
            return (Prediction(name, "whole run", self._hybrid_seconds(), report.seconds),)
        plan = self._plan(name, self._work.extents)
        expected = expect(plan, self._machine, fresh_rate())
        stages = [
            Prediction(name, stage, seconds, report.stages[stage].seconds)  # type: ignore[index]
            for stage, seconds in expected.stage_seconds.items()
            if stage in report.stages and seconds > 0
        ]
        return (Prediction(name, "whole run", expected.seconds, report.seconds), *stages)

    def _hybrid_seconds(self) -> float:
        """Expect that each unit takes the share that its speed alone makes it fit for."""
        extents = self._work.extents
        device = expect(self._plan(BEST, extents), self._machine, fresh_rate())
        rates = [extents.flops / device.seconds] * len(self._peers)
        host = 1e9 * Sample.of(self._speeds[_CPU]).median
        if not self._same_cores():
            return extents.flops / (sum(rates) + host)
        # Units that take turns on the same cores.
        return extents.flops * (len(rates) + 1) / (sum(rates) + host)

    def _cpu(self) -> dict[str, float]:
        """Return the CPU's 10⁹ flop/s alone and within a hybrid run (HDGEMM, Figure 11)."""
        found = {}
        if self._speeds[_CPU]:
            found["alone"] = Sample.of(self._speeds[_CPU]).median
        splits = [report.split for report in self._reports[_HYBRID] if report.split is not None]
        within = [s.shares["host"].kernel_rate for s in splits if "host" in s.shares]
        if within and max(within) > 0:
            found["within"] = Sample.of(within).median / 1e9
        return found

    def _imbalance(self) -> float | None:
        splits = [report.split for report in self._reports[_HYBRID] if report.split is not None]
        return Sample.of(split.imbalance for split in splits).median if splits else None


def _with_host(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*names, "host"]))
