"""Several runs in turn as one: their progress, their events and one report."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hdgemm.call.plans import joint_summary
from hdgemm.energy import Energy
from hdgemm.pipeline.timeline import EventBuffer, Timeline
from hdgemm.progress import Callbacks
from hdgemm.report import Report, Resumption, sum_stages, versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.pipeline.timeline import Event, Observer
    from hdgemm.progress import Progress, ProgressCallback


class RunSequence:
    """Progress, events and reports of several runs in turn, joined into one run's.

    Parameters
    ----------
    callbacks
        Told of the whole.
    flops
        Floating-point operations of all runs together.
    """

    def __init__(self, callbacks: Callbacks, flops: int) -> None:
        self._callbacks = callbacks
        self._flops = max(1, flops)
        self._done = 0
        self._earlier = self._present = 0.0  # 10⁹ operations of the runs that ended, of this one
        self._began = time.perf_counter()
        self._planned = 0
        self._reports: list[Report] = []
        self._events = EventBuffer()
        self._shown: Progress | None = None

    def start(self) -> None:
        """Count the seconds from now on: the first run is planned, and about to be executed."""
        self._began = time.perf_counter()

    def next(self, flops: int) -> Callbacks:
        """Return what the next run, of so many operations, is watched by.

        The first run may be planned, with its callbacks, before `start`.
        """
        progress, observer, cancel = (
            self._callbacks.progress,
            self._callbacks.observer,
            self._callbacks.cancel,
        )
        first, share = self._done / self._flops, flops / self._flops
        began = self._elapsed() if self._planned else 0.0
        self._planned += 1
        self._done += flops
        self._earlier, self._present = self._earlier + self._present, 0.0
        return Callbacks(
            None if progress is None else partial(self._show, progress, first, share),
            None if observer is None else partial(_shift, observer, began),
            cancel,
            None if self._callbacks.report is None else partial(self.add, began=began),
        )

    def add(self, report: Report, *, began: float | None = None) -> None:
        """Take the report of a run that began after some seconds, or that has just ended."""
        if self._callbacks.report is None:
            return
        first = self._elapsed() - report.seconds if began is None else began
        for event in report.timeline.events:
            self._events.append(event.shifted(first))
        self._reports.append(replace(report, timeline=Timeline((), report.seconds)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Report the end of all runs, of which there may be fewer than were counted beforehand.

        Parameters
        ----------
        summary
            Kind, shape and dtype of the whole; what the plans of the runs hold and expect is added.
        """
        if self._callbacks.progress is not None and self._shown and self._shown.percent < 100:
            self._callbacks.progress(replace(self._shown, percent=100.0, eta=0.0))
        if self._callbacks.report is not None:
            timeline = self._events.timeline(self._elapsed())
            self._callbacks.report(joined(self._reports, timeline, summary))

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began

    def _show(self, show: ProgressCallback, first: float, share: float, found: Progress) -> None:
        part, elapsed = min(1.0, first + share * found.percent / 100), self._elapsed()
        eta = elapsed * (1 - part) / part if part > 0 else None
        self._present = found.gflops * found.elapsed
        gflops = (self._earlier + self._present) / elapsed if elapsed > 0 else 0.0
        shown = replace(found, percent=100 * part, gflops=gflops, elapsed=elapsed, eta=eta)
        self._shown = shown
        show(shown)


def _shift(observer: Observer, seconds: float, event: Event) -> None:
    observer(event.shifted(seconds))


def joined(reports: list[Report], timeline: Timeline, summary: Mapping[str, Any]) -> Report:
    """Return one report of runs that were executed one after the other.

    Parameters
    ----------
    timeline
        The events of the whole, and its duration.
    summary
        See `RunSequence.finish`.
    """
    seconds = timeline.seconds
    flops = sum(report.gflops * report.seconds for report in reports)
    phases: Counter[str] = Counter()
    for report in reports:
        phases.update(report.phases)
    peaks = [r.peak_memory_bytes for r in reports if r.peak_memory_bytes is not None]
    return Report(
        seconds=seconds,
        gflops=flops / seconds if seconds > 0 else 0.0,
        stages=sum_stages(report.stages for report in reports),
        peak_memory_bytes=max(peaks, default=None),
        plan=joint_summary(summary, (report.plan for report in reports)),
        devices=tuple(dict.fromkeys(name for r in reports for name in r.devices)) or ("host",),
        versions=dict(versions()),
        timeline=timeline,
        resumption=_resumption([r.resumption for r in reports if r.resumption is not None]),
        phases=dict(phases),
        energy=Energy.of_runs(r.energy for r in reports if r.energy is not None),
    )


def _resumption(found: list[Resumption]) -> Resumption | None:
    """Return what durable runs found of earlier ones, as one."""
    if not found:
        return None
    return Resumption(
        found[-1].journal,
        sum(each.tiles for each in found),
        sum(each.kept for each in found),
        sum(each.damaged for each in found),
        all(each.finished for each in found),
    )
