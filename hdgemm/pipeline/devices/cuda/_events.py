"""Streams ordered by events, and the times of their work on the host's clock."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.pipeline.devices.cuda._driver import Driver
    from hdgemm.pipeline.devices.protocol import After

#: Seconds after which a new reference event is taken: CUDA gives elapsed times as float32
#: milliseconds, with a resolution of 4 microseconds after a minute.
_ANCHOR_SECONDS: Final = 60.0
_ANCHOR_TRIES: Final = 5


class EventPool:
    """Timing events that are made once and reused: making one can take as long as a small copy."""

    def __init__(self, driver: Driver, *, blocking: bool) -> None:
        self._driver = driver
        self._blocking = blocking
        self._idle: deque[int] = deque()
        self._made: list[int] = []

    def take(self) -> int:
        """Return an event that is not in use."""
        try:
            return self._idle.pop()
        except IndexError:
            event = self._driver.event(blocking=self._blocking)
            self._made.append(event)
            return event

    def give_back(self, event: int) -> None:
        """Let the event be reused; makes no driver call, so that a finaliser may call it."""
        self._idle.append(event)

    def close(self) -> None:
        """Destroy all events; no completion that holds one may be used any more."""
        self._idle.clear()
        with ExitStack() as events:  # goes on after an error
            while self._made:
                events.callback(self._driver.release, "eventDestroy", self._made.pop())


class Anchor(NamedTuple):
    """An event that fired at `seconds` on `time.perf_counter`'s clock."""

    event: int
    seconds: float


class Clock:
    """Reference events, recorded on a stream of their own, on which they never wait."""

    def __init__(self, driver: Driver, events: EventPool, stream: Any) -> None:
        self._driver = driver
        self._events = events
        self._stream = stream
        self._lock = threading.Lock()
        self._anchor = self._new_anchor()

    def anchor(self) -> Anchor:
        """Return a reference event that is at most `_ANCHOR_SECONDS` old."""
        with self._lock:
            if time.perf_counter() - self._anchor.seconds > _ANCHOR_SECONDS:
                self._anchor = self._new_anchor()
            return self._anchor

    def _new_anchor(self) -> Anchor:
        """Record a few events; keep the one with the shortest host interval around it."""
        tries = []
        for _ in range(_ANCHOR_TRIES):
            event = self._events.take()
            before = time.perf_counter()
            with self._driver.current():
                self._driver.record(event, self._stream)
            self._driver.synchronize_event(event)
            after = time.perf_counter()
            tries.append((after - before, Anchor(event, 0.5 * (before + after))))
        tries.sort()
        for _, anchor in tries[1:]:
            self._events.give_back(anchor.event)
        return tries[0][1]


class CudaCompletion:
    """Work on a stream between two events, which return to their pools with this object.

    Recording an event again does not disturb streams that wait for it: a stream waits for the
    record that was the last when its wait was enqueued.
    """

    def __init__(self, lane: Lane, start: int, end: int, keep: Any) -> None:
        self._lane = lane
        self._start = start
        self._end = end
        self._anchor = lane.clock.anchor()
        # DMA reads and writes host memory after the call that enqueued it has returned.
        self._keep = keep

    def wait(self) -> None:
        """Sleep until the work is done."""
        self._lane.driver.synchronize_event(self._end)
        self._keep = None

    def interval(self) -> tuple[float, float]:
        """Return when the work began and ended, on `time.perf_counter`'s clock."""
        elapsed = self._lane.driver.elapsed
        start = self._anchor.seconds + elapsed(self._anchor.event, self._start)
        return start, start + elapsed(self._start, self._end)

    def order_before(self, lane: Lane) -> None:
        """Let all work enqueued on `lane` from now on wait for this; call within `current`."""
        if lane is not self._lane:
            lane.driver.wait_event(lane.stream, self._end)

    def __del__(self) -> None:
        self._lane.starts.give_back(self._start)
        self._lane.ends.give_back(self._end)


class Lane:
    """One stream, and the pools that its operations' events come from."""

    def __init__(
        self, driver: Driver, clock: Clock, starts: EventPool, ends: EventPool, stream: Any
    ) -> None:
        self.driver = driver
        self.clock = clock
        self.starts = starts
        self.ends = ends
        self.stream = stream
        self._lock = threading.Lock()

    def enqueue(
        self, work: Callable[[Any], None], after: After, keep: Any = None
    ) -> CudaCompletion:
        """Enqueue `work` behind everything in `after`; `keep` lives until it is done.

        Completions of other kinds of devices are waited for on the host: no event orders their
        work before this stream's.
        """
        with self._lock, self.driver.current():
            for completion in after:
                if isinstance(completion, CudaCompletion):
                    completion.order_before(self)
                else:
                    completion.wait()
            start, end = self.starts.take(), self.ends.take()
            completion = CudaCompletion(self, start, end, keep)
            self.driver.record(start, self.stream)
            work(self.stream)
            self.driver.record(end, self.stream)
        return completion

    def synchronize(self) -> None:
        """Wait for everything enqueued so far."""
        self.driver.synchronize_stream(self.stream.ptr)
