"""A timeline as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdgemm.pipeline.plan import STAGES

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from hdgemm.pipeline.plan import Stage
    from hdgemm.pipeline.timeline import Event, Timeline

#: Rows that one stage of one device may take: operations that overlap cannot share a row.
_ROWS_PER_STAGE = 1000


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return the trace as plain values: a process per device, rows per stage, one slice per event.

    Times are in microseconds since the run began, as the format wants them.
    """
    entries: list[dict[str, Any]] = []
    for pid, (device, stages) in enumerate(_grouped(timeline.events).items(), start=1):
        entries.append(_name("process_name", device, pid=pid))
        for stage in STAGES:
            named: set[int] = set()
            for row, event in _rows(stages.get(stage, [])):
                tid = STAGES.index(stage) * _ROWS_PER_STAGE + row
                if tid not in named:
                    named.add(tid)
                    entries.append(_name("thread_name", stage, pid=pid, tid=tid))
                    entries.append(_sort_index(pid, tid))
                entries.append(_slice(event, pid, tid))
    return {"traceEvents": entries, "displayTimeUnit": "ms"}


def save_trace(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write the trace as JSON to `path`."""
    Path(path).write_text(
        json.dumps(chrome_trace(timeline), separators=(",", ":")), encoding="utf-8"
    )


def _grouped(events: Iterable[Event]) -> dict[str, dict[Stage, list[Event]]]:
    groups: dict[str, dict[Stage, list[Event]]] = {}
    for event in events:
        groups.setdefault(event.device, {}).setdefault(event.stage, []).append(event)
    return groups


def _rows(events: Iterable[Event]) -> Iterator[tuple[int, Event]]:
    """Give each event the first row that is free when it starts."""
    free_at: list[float] = []
    for event in sorted(events, key=lambda each: (each.start, each.end)):
        row = next((row for row, free in enumerate(free_at) if free <= event.start), len(free_at))
        if row == len(free_at):
            free_at.append(event.end)
        else:
            free_at[row] = event.end
        yield row, event


def _slice(event: Event, pid: int, tid: int) -> dict[str, Any]:
    seconds = event.end - event.start
    args: dict[str, Any] = {"unit": event.unit, "step": event.step}
    if event.nbytes:
        args["bytes"] = event.nbytes
        args["GB/s"] = round(event.nbytes / seconds / 1e9, 3) if seconds > 0 else None
    if event.flops:
        args["flops"] = event.flops
        args["GFLOP/s"] = round(event.flops / seconds / 1e9, 3) if seconds > 0 else None
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


def _name(kind: str, name: str, *, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _sort_index(pid: int, tid: int) -> dict[str, Any]:
    return {
        "name": "thread_sort_index",
        "ph": "M",
        "pid": pid,
        "tid": tid,
        "args": {"sort_index": tid},
    }
