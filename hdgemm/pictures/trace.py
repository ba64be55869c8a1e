"""Chrome trace of a timeline, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hdgemm.pipeline.plan import STAGES

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from hdgemm.pipeline.plan import Stage
    from hdgemm.pipeline.timeline import Event, Timeline

#: Most rows of one stage of one device; operations that overlap in time need rows of their own.
_ROWS_PER_STAGE: Final = 1000


def chrome_trace(timeline: Timeline, *, most: int | None = None) -> dict[str, Any]:
    """Return the trace as plain values: a process per device, rows per stage, a slice per event.

    Times are in microseconds since the run began, as the format defines. Of more than `most` events
    it has the first and the last ones; ``otherData`` says how many are left out.
    """
    by_device: dict[str, dict[Stage, list[Event]]] = {}
    shown = _first_and_last(timeline.events, most)
    for event in shown:
        by_device.setdefault(event.device, {}).setdefault(event.stage, []).append(event)
    entries: list[dict[str, Any]] = []
    for pid, (device, stages) in enumerate(by_device.items(), start=1):
        entries.append(_metadata("process_name", pid, 0, name=device))
        for stage, events in stages.items():
            rows = set()
            for row, event in _rows(events):
                tid = STAGES.index(stage) * _ROWS_PER_STAGE + row
                rows.add(tid)
                entries.append(_slice(event, pid, tid))
            for tid in sorted(rows):
                entries.append(_metadata("thread_name", pid, tid, name=stage))
                entries.append(_metadata("thread_sort_index", pid, tid, sort_index=tid))
    trace: dict[str, Any] = {"traceEvents": entries, "displayTimeUnit": "ms"}
    if left_out := len(timeline.events) - len(shown):
        trace["otherData"] = {"events": len(timeline.events), "left_out": left_out}
    return trace


def _first_and_last(events: Sequence[Event], most: int | None) -> Sequence[Event]:
    if most is None or len(events) <= most:
        return events
    ordered, head = sorted(events, key=lambda each: each.start), (most + 1) // 2
    return [*ordered[:head], *ordered[len(ordered) - most + head :]]


def save_trace(
    timeline: Timeline, path: str | os.PathLike[str], *, most: int | None = None
) -> None:
    """Write the trace as JSON to `path`, of at most `most` events."""
    Path(path).write_text(
        json.dumps(chrome_trace(timeline, most=most), separators=(",", ":")), encoding="utf-8"
    )


def _rows(events: Iterable[Event]) -> Iterator[tuple[int, Event]]:
    """Yield each event with the first row that is free at its start."""
    free_at: list[float] = []
    for event in sorted(events, key=lambda each: (each.start, each.end)):
        row = next((row for row, free in enumerate(free_at) if free <= event.start), len(free_at))
        free_at[row : row + 1] = [event.end]
        yield row, event


def _slice(event: Event, pid: int, tid: int) -> dict[str, Any]:
    seconds = event.end - event.start
    busy = seconds - event.idle
    args: dict[str, Any] = {"unit": event.unit, "step": event.step}
    if event.operations > 1:
        args |= {"operations": event.operations, "busy_seconds": busy}
    for amount, name, rate in (
        (event.nbytes, "bytes", "GB/s"),
        (event.flops, "flops", "GFLOP/s"),
    ):
        if amount:
            args[name] = amount
            args[rate] = round(amount / busy / 1e9, 3) if busy > 0 else None
    return {
        "name": f"{event.stage} {event.number}",
        "cat": event.stage,
        "ph": "X",
        "ts": event.start * 1e6,
        "dur": seconds * 1e6,
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def _metadata(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}
