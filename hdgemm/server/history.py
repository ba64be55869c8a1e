"""A job's progress over time and its last operations: bounded, kept beside its log."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from hdgemm.server.documents import finite

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hdgemm.pipeline.timeline import Event

#: Names of the files in the job's folder.
HISTORY: Final = "history.json"
OPERATIONS: Final = "operations.json"
_MOST_POINTS: Final = 400
_FIRST_SECONDS: Final = 0.1
#: Operations of one stage of one device that a live Gantt chart shows at most.
_MOST_OPERATIONS: Final = 150
_MEMBERS: Final = ("elapsed", "percent", "gflops", "phase", "busy")


class History:
    """Points of one attempt, at most `_MOST_POINTS`: every second one is dropped beyond that."""

    def __init__(self) -> None:
        self._points: list[dict[str, Any]] = []
        self._every = _FIRST_SECONDS
        self._next = 0.0
        self._lock = threading.Lock()

    def add(self, progress: Mapping[str, Any]) -> None:
        """Add a point where the last one is long enough ago; called from any thread."""
        now = time.monotonic()
        with self._lock:
            if now < self._next:
                return
            self._next = now + self._every
            self._points.append({name: progress[name] for name in _MEMBERS if name in progress})
            if len(self._points) > _MOST_POINTS:
                del self._points[1::2]
                self._every *= 2

    def save(self, folder: Path) -> None:
        """Write the points, where there are any."""
        with self._lock:
            if self._points:
                text = json.dumps({"points": finite(self._points)})
                (folder / HISTORY).write_text(text, encoding="utf-8")


class RecentOperations:
    """The last operations of each stage of a run, for a Gantt chart while it runs."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[tuple[float, float, int]]] = {}
        self._changed = False
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        """Keep one operation: start, end and work unit; called from any thread."""
        lane = f"{event.device} {event.stage}"
        operation = round(event.start, 4), round(event.end, 4), event.unit
        with self._lock:
            self._lanes.setdefault(lane, deque(maxlen=_MOST_OPERATIONS)).append(operation)
            self._changed = True

    def save(self, folder: Path) -> None:
        """Write the operations, where there are new ones."""
        with self._lock:
            if not self._changed:
                return
            self._changed = False
            lanes = {lane: list(operations) for lane, operations in self._lanes.items()}
        draft = folder / f"{OPERATIONS}.part"
        text = json.dumps({"most": _MOST_OPERATIONS, "lanes": lanes})
        draft.write_text(text, encoding="utf-8")
        draft.replace(folder / OPERATIONS)
