"""A job's progress over time: few points, kept beside its log."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from hdgemm.server.documents import finite

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Name of the file in the job's folder.
HISTORY: Final = "history.json"
_MOST_POINTS: Final = 400
_FIRST_SECONDS: Final = 0.1
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
