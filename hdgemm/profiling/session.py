"""One profile of this machine, step by step, until its end or until somebody stops it."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdgemm.machine.limits import cores
from hdgemm.pipeline.devices.registry import open_device
from hdgemm.profiling.best import BestKnown
from hdgemm.profiling.bus import Bus, Slice, watch_bus
from hdgemm.profiling.choice import choose, on_host_cores, peers_of
from hdgemm.profiling.effort import FULL, QUICK, Effort
from hdgemm.profiling.interference import bus_figures, find_interference, noise
from hdgemm.profiling.ladder import Ladder
from hdgemm.profiling.machine import measured_machine
from hdgemm.profiling.other_load import Others, Watch
from hdgemm.profiling.paired_runs import WindowPlan, Windows
from hdgemm.profiling.probes import ProbeSet
from hdgemm.profiling.results import Bandwidth, Profile
from hdgemm.profiling.sample import Sample
from hdgemm.profiling.setting import setting
from hdgemm.profiling.verdict import Findings, judge
from hdgemm.profiling.workload import Workload, extents_for

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.profiling.conclusions import Interference

    #: Called with the part that is done, and what comes next.
    ProfileProgress = Callable[[float, str], None]


def profile(
    device: str | None = None,
    *,
    quick: bool = False,
    folder: str | os.PathLike[str] | None = None,
    progress: ProfileProgress | None = None,
    effort: Effort | None = None,
) -> Profile:
    """Measure which shared resource holds this machine back (HDGEMM, section 4).

    Parameters
    ----------
    device
        As in `Options.devices`; None for the first accelerator, else the first OpenCL device,
        else the host with its matrices in files.
    quick
        Within a minute instead of ten.
    folder
        Where matrices and the disk probe's file are written meanwhile: the disk that is
        measured. None for the system's folder of temporary files.
    progress
        Called with the part that is done, from 0 to 1, and what comes next.
    effort
        Other times than those of `quick` or of a full profile.

    Returns
    -------
    Profile
        What was found. After Ctrl-C it holds what was done until then, and `complete` is false.

    Raises
    ------
    DeviceUnavailableError
        When there is no such device.
    """
    chosen = choose(device)
    where = Path(folder) if folder is not None else Path(tempfile.gettempdir())
    session = _Session(chosen, effort or (QUICK if quick else FULL), where, progress or _silent)
    try:
        session.run()
    except KeyboardInterrupt:
        session.notes.append("interrupted: this is what was done until then")
    else:
        session.complete = True
    return session.result()


def _silent(_part: float, _what: str, /) -> None:
    return


@dataclass
class _Session:
    """What is known so far."""

    device_name: str
    effort: Effort
    folder: Path
    progress: ProfileProgress
    complete: bool = False
    notes: list[str] = field(default_factory=list)
    seen: list[Others] = field(default_factory=list)
    bus: list[Slice] = field(default_factory=list)
    windows: Windows | None = None
    ladder: Ladder | None = None
    copy_rate: float | None = None
    unified: bool = False

    def run(self) -> None:
        """Go through all steps."""
        began = time.perf_counter()
        with ExitStack() as stack:
            self.progress(0.0, "what others do on this machine")
            self._look()
            device = open_device(self.device_name)
            stack.callback(device.close)
            self.unified = device.spec.unified
            self._note_device()
            self._probe(device)
            self._look()
            self._multiply(device)
            self.progress(0.9, "what would help")
            self._look()
        self.notes.append(f"measured in {time.perf_counter() - began:.0f} s")
        self.progress(1.0, "done")

    def _look(self) -> None:
        watch = Watch(self.folder)
        time.sleep(self.effort.idle)
        self.seen.append(watch.read())
        self.bus += watch_bus(self.effort.bus_rounds, self.effort.bus)

    def _note_device(self) -> None:
        if self.unified:
            self.notes.append(
                f"{self.device_name} works where the matrices lie: it has no PCIe link, and "
                "load2 and store1 do not exist; its matrices are kept in files"
            )
        elif on_host_cores(self.device_name):
            self.notes.append(
                f"{self.device_name} is the host's own processor: its kernel shares the cores, and "
                "its link is a copy in host memory"
            )

    def _probe(self, device: Device) -> None:
        with ProbeSet(device, self.folder) as probes:
            plan = WindowPlan(probes.probes, self.effort.window, self.effort.rounds)
            try:
                for number, what in enumerate(plan.run()):
                    self.progress(0.05 + 0.40 * number / len(plan), f"alone and together: {what}")
            finally:
                self.windows = plan.result()

    def _multiply(self, device: Device) -> None:
        assert self.windows is not None  # noqa: S101  (the step before)
        machine = measured_machine(device.spec, self.windows, cores())
        extents = extents_for(machine.flop_rate("float64"), self.effort.run)
        self.progress(0.46, f"matrices of {extents.m} × {extents.n} × {extents.k}")
        with Workload(extents, self.folder, files=self.unified) as work:
            self.ladder = Ladder(work, device, machine, peers_of(self.device_name))
            effort = self.effort
            self.ladder.climb(
                effort.ladder, *effort.repeats,
                lambda part, what: self.progress(0.47 + 0.30 * part, what),
            )  # fmt: skip
            self.ladder.sweep(
                effort.sweep, lambda part, what: self.progress(0.77 + 0.10 * part, what)
            )
            self.progress(0.88, "what would help")
            self.ladder.think()

    def _interference(self, bus: Bus | None) -> tuple[Interference, ...]:
        """Hold what was seen against the best ever seen here, and remember what is better."""
        works = self.windows.alone.get("disk", ()) if self.windows is not None else ()
        rate = Sample.of(work.rate for work in works).median
        best = BestKnown(self.folder)
        found = find_interference(Others.median(self.seen), bus, rate, best.figures, cores=cores())
        best.keep({"disk": rate, **bus_figures(bus)})
        return found

    def result(self) -> Profile:
        """Put together what there is."""
        bus = Bus.of(self.bus)
        interference = self._interference(bus)
        bandwidth = _bandwidths(self.windows)
        found: dict[str, Any] = {} if self.ladder is None else self.ladder.found()
        advice = {} if self.ladder is None else self.ladder.verdict_parts()
        verdict = judge(
            Findings(
                bandwidth=bandwidth,
                interference=interference,
                noise=noise(self.seen, bus, cores=cores()),
                unified=self.unified,
                ladder=found.get("ladder", {}),
                **advice,
            )
        )
        shape = (0, 0, 0) if self.ladder is None else self.ladder.shape
        return Profile(
            kind="measured",
            complete=self.complete,
            setting=setting(
                device=self.device_name,
                shape=shape,
                place="file" if self.unified else "memory",
                source="probes of this profile",
            ),
            bandwidth=bandwidth,
            matrix=self.windows.matrix() if self.windows is not None else {},
            interference=interference,
            verdict=verdict,
            notes=(*self.notes, *(self.ladder.notes if self.ladder is not None else ())),
            **found,
        )


def _bandwidths(windows: Windows | None) -> dict[str, Bandwidth]:
    """Return each stage's rate alone, and with all stages running."""
    if windows is None:
        return {}
    return {
        name: Bandwidth(
            Sample.of(work.rate / 1e9 for work in windows.alone[name]),
            Sample.of(work.rate / 1e9 for work in works),
            "GFLOP/s" if name == "mult1" else "GB/s",
        )
        for name, works in windows.stages.items()
    }
