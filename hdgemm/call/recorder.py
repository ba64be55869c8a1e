"""Events, progress and the report of a factorisation or a solve."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hdgemm.energy import EnergyMeter
from hdgemm.errors import CancelledRunError
from hdgemm.machine.peak_memory import PeakMemory
from hdgemm.pipeline.timeline import Event, EventBuffer, Timeline, busy_seconds
from hdgemm.progress import Progress
from hdgemm.report import Report, stage_reports, versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hdgemm.call.plans import Planned
    from hdgemm.pipeline.devices.protocol import Completion
    from hdgemm.pipeline.plan import Stage
    from hdgemm.progress import Callbacks
    from hdgemm.report import Resumption


class Recorder:
    """Reports operations to the observer, and progress by floating-point operations.

    Parameters
    ----------
    callbacks
        The caller's observer, progress callback, cancel event and report callback.
    flops
        Operations of the whole computation.
    done
        Operations that an earlier run has done.
    devices
        Names of the devices beside the host: the energy of GPUs is measured.

    Attributes
    ----------
    phase
        The phase that operations belong to; None derives it from the stage.
    """

    def __init__(
        self, callbacks: Callbacks, flops: int, *, done: int = 0, devices: Iterable[str] = ()
    ) -> None:
        self._callbacks = callbacks
        self._flops = flops
        self._before = self._done = done
        self.phase: str | None = None
        self._events = EventBuffer()
        self._counts: dict[str, int] = {}
        self._planned: Counter[Stage] = Counter()
        self._busy: dict[Stage, float] = {}
        self._lock = threading.Lock()
        self._peak = PeakMemory()
        self._energy: EnergyMeter | None = None
        if callbacks.report is not None:
            self._energy = EnergyMeter(devices)
            self._energy.start()
            weakref.finalize(self, self._energy.abandon)  # of a computation that fails
        self._began = time.perf_counter()
        self._next = self._began

    def check_cancel(self) -> None:
        """Raise `CancelledRunError` when the caller has asked to stop."""
        if self._callbacks.cancelled:
            raise CancelledRunError("the run was cancelled; nothing was published")

    @contextmanager
    def measuring_memory(self) -> Iterator[None]:
        """Measure the memory that is added meanwhile, where a report is asked for."""
        if self._callbacks.report is None:
            yield
            return
        with self._peak:
            yield

    @contextmanager
    def operation(
        self,
        stage: Stage,
        slab: int,
        *,
        nbytes: int = 0,
        flops: int = 0,
        block: int = 0,
        device: str = "host",
    ) -> Iterator[None]:
        """Time one operation; stages are load1 (reads), mult1 (computes) and store2 (writes)."""
        self.check_cancel()
        start = time.perf_counter()
        yield
        self.done_since(start, stage, slab, nbytes=nbytes, flops=flops, block=block, device=device)

    def done_since(
        self,
        start: float,
        stage: Stage,
        slab: int,
        *,
        nbytes: int = 0,
        flops: int = 0,
        block: int = 0,
        device: str = "host",
    ) -> None:
        """Record an operation that began at `start` and is done."""
        end, began = time.perf_counter(), self._began
        self.record(
            Event(device, stage, -1, slab, block, start - began, end - began, nbytes, flops),
            self.phase or _phase(stage, block),
        )

    @property
    def cancel(self) -> threading.Event | None:
        """The event that stops the computation."""
        return self._callbacks.cancel

    def record(self, event: Event, phase: str | None = None) -> None:
        """Report an operation of any device, its times relative to the start.

        Without `phase`, `unit` is the block column that a task writes and `step` its panel.
        """
        stage, snapshot = event.stage, None
        with self._lock:
            number = self._counts[stage] = self._counts.get(stage, -1) + 1
            if event.number < 0:
                event = event._replace(number=number)
            event = event._replace(phase=phase or _phase(stage, int(event.step != event.unit)))
            if self._callbacks.report is not None:
                self._events.append(event)
            self._done += event.flops
            self._busy[stage] = self._busy.get(stage, 0.0) + event.end - event.start
            now = time.perf_counter()
            if self._callbacks.progress is not None and now >= self._next:
                self._next = now + 0.1
                snapshot = self._snapshot(now)
        if self._callbacks.observer is not None:
            self._callbacks.observer(event)
        if snapshot is not None and self._callbacks.progress is not None:
            self._callbacks.progress(snapshot)

    def _snapshot(self, now: float) -> Progress:
        elapsed = now - self._began
        here, whole = self._done - self._before, self._flops - self._before
        part = min(1.0, here / whole) if whole else 1.0
        return Progress(
            percent=100.0 * min(1.0, self._done / self._flops) if self._flops else 100.0,
            gflops=here / elapsed / 1e9 if elapsed > 0 else 0.0,
            elapsed=elapsed,
            eta=elapsed * (1.0 - part) / part if part > 0 else None,
            limit=max(self._busy.items(), key=lambda item: item[1])[0] if self._busy else None,
            steps=self._counts.get("mult1", -1) + 1,
            total_steps=0,
            phase="computing",
        )

    def finish(
        self,
        plan: Planned | None = None,
        planned: Mapping[Stage, int] | None = None,
        resumption: Resumption | None = None,
    ) -> None:
        """Report the end of a computation that succeeded.

        Parameters
        ----------
        plan
            What was executed; without it there is no report.
        planned
            Bytes that each stage was to move; None for the whole plan's.
        resumption
            What a durable run found of an earlier one.
        """
        seconds = time.perf_counter() - self._began
        timeline = self._events.timeline(seconds)
        here = self._done - self._before if self._before else self._flops
        if self._callbacks.progress is not None:
            self._done = self._flops
            self._callbacks.progress(self._snapshot(time.perf_counter()))
        energy = None if self._energy is None else self._energy.finish()
        if self._callbacks.report is None or plan is None:
            return
        self._callbacks.report(
            Report(
                seconds=seconds,
                gflops=here / seconds / 1e9 if seconds > 0 else 0.0,
                stages=stage_reports(
                    timeline,
                    {**(plan.planned_bytes if planned is None else planned), **self._planned},
                ),
                peak_memory_bytes=self._peak.nbytes,
                plan=plan.summary(),
                devices=tuple(dict.fromkeys(("host", *(e.device for e in timeline.events)))),
                versions=dict(versions()),
                timeline=timeline,
                resumption=resumption,
                phases=self._phase_seconds(),
                energy=energy,
            )
        )

    def expect(self, stage: Stage, nbytes: int) -> None:
        """Add to the bytes that a stage is planned to move."""
        with self._lock:
            self._planned[stage] += nbytes

    def finished(
        self,
        completions: Sequence[Completion],
        enqueued: float,
        device: str,
        stage: Stage,
        slab: int,
        block: int,
        *,
        nbytes: int = 0,
        flops: int = 0,
    ) -> None:
        """Record operations of a device, which are done, as one of an update.

        `enqueued` is when the first began where the device does not tell.
        """
        first, last = completions[0].interval(), completions[-1].interval()
        start = enqueued if first is None else first[0]
        end = time.perf_counter() if last is None else last[1]
        times = start - self._began, max(start, end) - self._began
        self.record(Event(device, stage, -1, slab, block, *times, nbytes, flops), "update")

    def _phase_seconds(self) -> dict[str, float]:
        """Return for each phase the time in which at least one of its operations ran."""
        found: dict[str, list[Event]] = {}
        for event in self._events:
            found.setdefault(event.phase, []).append(event)
        return {phase: busy_seconds(events) for phase, events in found.items()}


def _phase(stage: Stage, block: int) -> str:
    if stage == "mult1":
        return "update" if block else "panel"
    return "load" if stage in ("load1", "load2") else "store"


def report_done(callbacks: Callbacks, plan: Planned | None, resumption: Resumption) -> None:
    """Report a run that an earlier one has finished, by its plan."""
    if callbacks.report is None or plan is None:
        return
    nothing: dict[Any, Any] = {}
    callbacks.report(
        Report(
            seconds=0.0,
            gflops=0.0,
            stages=nothing,
            peak_memory_bytes=0,
            plan=plan.summary(),
            devices=("host",),
            versions=dict(versions()),
            timeline=Timeline((), 0.0),
            resumption=resumption,
        )
    )
