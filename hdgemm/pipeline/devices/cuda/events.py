"""Events: what orders the streams, and what says on the host's clock when an operation ran."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hdgemm.pipeline.devices.cuda.driver import Driver
    from hdgemm.pipeline.devices.protocol import Completion

#: Seconds after which a new reference event is taken: CUDA gives elapsed times as float32
#: milliseconds, whose last bit is 4 microseconds after a minute.
_ANCHOR_SECONDS: Final = 60.0
_ANCHOR_TRIES: Final = 5


class EventPool:
    """Timing events, made once and used again; making one can take as long as a small copy."""

    def __init__(self, driver: Driver, *, blocking: bool) -> None:
        self._driver = driver
        self._blocking = blocking
        self._idle: deque[int] = deque()
        self._closed = False

    def take(self) -> int:
        """Return an event that nobody else uses."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._driver.event(blocking=self._blocking)

    def give_back(self, event: int) -> None:
        """Let the event be used again; safe from a finaliser, on any thread."""
        if not self._closed:
            self._idle.append(event)

    def close(self) -> None:
        """Destroy the events that are not in use; the driver keeps track of the others."""
        self._closed = True
        while self._idle:
            self._driver.destroy_event(self._idle.pop())


@dataclass(frozen=True, slots=True)
class Anchor:
    """An event that fired at `seconds` on `time.perf_counter`'s clock."""

    event: int
    seconds: float


class Clock:
    """Turns event times into `time.perf_counter` times, on a stream that nothing else uses."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stream = driver.stream()
        self._lock = threading.Lock()
        self._events: list[int] = []
        self._anchor = self._new_anchor()

    def anchor(self) -> Anchor:
        """Return a recent reference, taking a new one when the last has become too old."""
        with self._lock:
            if time.perf_counter() - self._anchor.seconds > _ANCHOR_SECONDS:
                self._anchor = self._new_anchor()
            return self._anchor

    def _new_anchor(self) -> Anchor:
        """Of a few tries keep the one with the tightest bracket around the event."""
        event, best = self._driver.event(blocking=False), (float("inf"), 0.0)
        self._events.append(event)
        for _ in range(_ANCHOR_TRIES):
            before = time.perf_counter()
            self._driver.record(event, self._stream)
            self._driver.synchronize_event(event)
            after = time.perf_counter()
            best = min(best, (after - before, 0.5 * (before + after)))
        # The event holds its last record, so the tightest bracket's error bounds this one's too
        # only if this one is as tight; the last try is therefore its own reference.
        return Anchor(event, 0.5 * (before + after))

    def close(self) -> None:
        """Give the reference events back."""
        while self._events:
            self._driver.destroy_event(self._events.pop())
