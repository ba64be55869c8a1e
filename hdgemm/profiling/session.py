"""Session of a profile on this machine: its steps within a time budget, until the end or Ctrl-C."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hdgemm.errors import CancelledRunError
from hdgemm.machine.limits import cores
from hdgemm.pipeline.devices.registry import open_device
from hdgemm.profiling._contention import Contention
from hdgemm.profiling._environment import Target, choose_target, describe_setting, measured_machine
from hdgemm.profiling._interference import (
    ROUND_SECONDS,
    Bus,
    Slice,
    find_interference,
    measure_bus,
    unsteady_load,
)
from hdgemm.profiling._ladder import Ladder
from hdgemm.profiling._probes import open_probes
from hdgemm.profiling._verdict import Findings, judge
from hdgemm.profiling._workload import extents_for, open_workload
from hdgemm.profiling.other_load import LoadMeter, OtherLoad
from hdgemm.profiling.results import Profile

if TYPE_CHECKING:
    import os
    import threading
    from collections.abc import Callable

    from hdgemm.pipeline.devices.protocol import Device

    #: Called with the finished part, and the name of the next step.
    ProfileProgress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Time budget of a profile; all times in seconds.

    Parameters
    ----------
    idle
        Of one sample of the others' load, in which this process is idle; then it reads memory
        for about as long.
    window, rounds
        Of one measurement of probes, and the number of rounds.
    run
        Of one product, as far as memory allows.
    ladder, repeats
        Of the ladder's runs together (the sweep over sizes takes a third of it), and the fewest
        and most repeats of each run.
    """

    idle: float
    window: float
    rounds: int
    run: float
    ladder: float
    repeats: tuple[int, int]


#: Within a minute on two cores.
QUICK: Final = Effort(idle=0.7, window=0.12, rounds=2, run=0.25, ladder=14.0, repeats=(2, 5))
#: Within ten minutes.
FULL: Final = Effort(idle=2.0, window=0.6, rounds=5, run=1.5, ladder=180.0, repeats=(3, 9))


def profile(
    device: str | None = None,
    *,
    quick: bool = False,
    folder: str | os.PathLike[str] | None = None,
    progress: ProfileProgress | None = None,
    cancel: threading.Event | None = None,
    effort: Effort | None = None,
) -> Profile:
    """Measure which shared resource limits products on this machine (HDGEMM, section 4).

    Parameters
    ----------
    device
        As in `Options.devices`; None for the first accelerator, else the first OpenCL device,
        else the host with its matrices in files.
    quick
        Within a minute instead of ten.
    folder
        Where matrices and the disk probe's file are written: the disk that is measured. None for
        the system's folder of temporary files.
    progress
        Called with the finished part, from 0 to 1, and the name of the next step.
    cancel
        Set it to stop the profile before its next step.
    effort
        Seconds; None for the budget of a quick or a full profile.

    Returns
    -------
    Profile
        After Ctrl-C it holds what was measured until then, and `complete` is false.

    Raises
    ------
    DeviceUnavailableError
        When there is no such device.
    CancelledRunError
        When `cancel` was set.
    """

    def show(part: float, what: str) -> None:
        if cancel is not None and cancel.is_set():
            raise CancelledRunError("the profile was cancelled")
        if progress is not None:
            progress(part, what)

    session = _Session(
        choose_target(device),
        effort or (QUICK if quick else FULL),
        Path(folder) if folder is not None else Path(tempfile.gettempdir()),
        show,
    )
    try:
        session.run()
    except KeyboardInterrupt:
        session.notes.append("interrupted: this is what was measured until then")
    else:
        session.complete = True
    return session.result()


@dataclass
class _Session:
    """The state of a profile: what was measured so far."""

    target: Target
    effort: Effort
    folder: Path
    progress: ProfileProgress
    complete: bool = False
    notes: list[str] = field(default_factory=list)
    loads: list[OtherLoad] = field(default_factory=list)
    bus: list[Slice] = field(default_factory=list)
    contention: Contention | None = None
    ladder: Ladder | None = None
    unified: bool = False
    findings: Findings = field(default_factory=Findings)

    def run(self) -> None:
        """Perform all steps."""
        began = time.perf_counter()
        self.progress(0.0, "load of other processes")
        self._sample_load()
        device = open_device(self.target.name)
        try:
            self._describe(device)
            self._probe(device)
            self._sample_load()
            self._multiply(device)
        finally:
            device.close()
        self.progress(0.95, "load of other processes")
        self._sample_load()
        self.notes.append(f"measured in {time.perf_counter() - began:.0f} s")
        self.progress(1.0, "done")

    def _sample_load(self) -> None:
        meter = LoadMeter(self.folder)
        time.sleep(self.effort.idle)
        self.loads.append(meter.read())
        self.bus += measure_bus(max(1, round(self.effort.idle / ROUND_SECONDS)))

    def _describe(self, device: Device) -> None:
        self.unified = device.spec.unified
        name, on_cores = self.target.name, self.target.on_host_cores
        self.findings = Findings(
            unified=self.unified, on_host_cores=on_cores, contenders=len(self.target.peers)
        )
        if self.unified:
            self.notes.append(
                f"{name} works in place on matrices in files: no PCIe link, no load2, no store1"
            )
        elif on_cores:
            self.notes.append(
                f"{name} is the host's own processor: kernel and copies share the cores"
            )

    def _probe(self, device: Device) -> None:
        with open_probes(device, self.folder) as probes:
            self.contention = Contention(probes, self.effort.window, self.effort.rounds)
            total = len(self.contention)
            for number, what in enumerate(self.contention.run()):
                self.progress(0.05 + 0.40 * number / total, f"alone and together: {what}")

    def _multiply(self, device: Device) -> None:
        assert self.contention is not None  # noqa: S101  (the step before)
        machine = measured_machine(device.spec, self.contention, self.target)
        extents = extents_for(machine.flop_rate("float64"), self.effort.run)
        self.progress(0.46, f"matrices of {extents.m} × {extents.n} × {extents.k}")
        effort = self.effort
        with (
            open_workload(extents, self.folder, files=self.unified) as work,
            closing(Ladder(work, self.target, machine, unified=self.unified)) as ladder,
        ):
            self.ladder = ladder
            ladder.climb(
                effort.ladder,
                *effort.repeats,
                lambda part, what: self.progress(0.47 + 0.30 * part, what),
            )
            ladder.sweep(
                effort.ladder / 3, lambda part, what: self.progress(0.77 + 0.10 * part, what)
            )
            self.progress(0.88, "predictions of the model")
            gains = ladder.analyse()
        self.findings = replace(self.findings, gains=gains)

    def result(self) -> Profile:
        """Return the profile of what was measured so far."""
        bus = Bus.of(self.bus)
        if bus is None and self.loads and cores() > 1:
            self.notes.append(
                "memory bandwidth taken by others: not measured (two threads of this process "
                "seldom had a core each, or too little memory was free)"
            )
        contention = self.contention
        disk_rate = 0.0 if contention is None else contention.alone("disk").median
        place = "file" if self.unified else "memory"
        found = Profile(
            complete=self.complete,
            setting=describe_setting(self.target.name, place),
            bandwidth={} if contention is None else contention.bandwidths(),
            matrix={} if contention is None else contention.matrix(),
            interference=find_interference(
                OtherLoad.typical(self.loads), bus, disk_rate, cores=cores()
            ),
            notes=tuple(self.notes),
        )
        if self.ladder is not None:
            found = self.ladder.added_to(found)
        unsteady = unsteady_load(self.loads, cores=cores())
        return replace(found, verdict=judge(found, replace(self.findings, unsteady=unsteady)))
