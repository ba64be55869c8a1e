"""Reports of computations that consist of several runs: solves, and level-3 BLAS."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from hdgemm.machine.peak_memory import PeakMemory
from hdgemm.pipeline.timeline import Event, Timeline
from hdgemm.report import Report, stage_reports, versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.pipeline.timeline import Observer


class ObservedRun:
    """Context that collects the events of all runs inside it for one report.

    Parameters
    ----------
    summary
        The report's plan: kind, shape, dtype and the memory limit.
    observer
        Called with each event, too.
    """

    def __init__(self, summary: Mapping[str, Any], observer: Observer | None = None) -> None:
        self._summary = dict(summary)
        self._observer = observer
        self._events: list[Event] = []
        self._peak = PeakMemory()
        self._began = self._seconds = 0.0

    def __enter__(self) -> Self:
        self._peak.__enter__()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._seconds = time.perf_counter() - self._began
        self._peak.__exit__(None, None, None)

    def __call__(self, event: Event, /) -> None:
        """Take an event of any of the runs, in which time began later."""
        end = time.perf_counter() - self._began
        start = max(0.0, end - (event.end - event.start))
        self._events.append(event._replace(start=start, end=end))
        if self._observer is not None:
            self._observer(event)

    def report(self) -> Report:
        """Return the report, when the context was left; bytes are those that were moved."""
        timeline = Timeline(
            tuple(sorted(self._events, key=lambda event: event.start)), self._seconds
        )
        flops = sum(event.flops for event in self._events)
        return Report(
            seconds=self._seconds,
            gflops=flops / self._seconds / 1e9 if self._seconds > 0 else 0.0,
            stages=stage_reports(timeline, {}),
            peak_memory_bytes=self._peak.nbytes,
            plan=self._summary,
            devices=tuple(dict.fromkeys(event.device for event in self._events)) or ("host",),
            versions=dict(versions()),
            timeline=timeline,
        )
