"""Streams ordered by events, and what the events say on the host's clock of when work ran."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        self._made: list[int] = []

    def take(self) -> int:
        """Return an event that nobody else uses."""
        try:
            return self._idle.pop()
        except IndexError:
            event = self._driver.event(blocking=self._blocking)
            self._made.append(event)
            return event

    def give_back(self, event: int) -> None:
        """Let the event be used again; calls no driver, so a finaliser may do it."""
        self._idle.append(event)

    def close(self) -> None:
        """Destroy all events; no completion that holds one may be used any more."""
        self._idle.clear()
        while self._made:
            self._driver.destroy_event(self._made.pop())


class Anchor(NamedTuple):
    """An event that fired at `seconds` on `time.perf_counter`'s clock."""

    event: int
    seconds: float


class Clock:
    """Gives reference events, taken on a stream that nothing else uses, so that none waits."""

    def __init__(self, driver: Driver, events: EventPool) -> None:
        self._driver = driver
        self._events = events
        self._stream = driver.stream()
        self._lock = threading.Lock()
        self._anchor = self._new_anchor()

    def anchor(self) -> Anchor:
        """Return a recent reference, taking a new one when the last has become too old."""
        with self._lock:
            if time.perf_counter() - self._anchor.seconds > _ANCHOR_SECONDS:
                self._anchor = self._new_anchor()
            return self._anchor

    def _new_anchor(self) -> Anchor:
        """Of a few tries keep the one whose host times lie closest around the event."""
        tries = []
        for _ in range(_ANCHOR_TRIES):
            event = self._events.take()
            before = time.perf_counter()
            self._driver.record(event, self._stream)
            self._driver.synchronize_event(event)
            after = time.perf_counter()
            tries.append((after - before, Anchor(event, 0.5 * (before + after))))
        tries.sort()
        for _, anchor in tries[1:]:
            self._events.give_back(anchor.event)
        return tries[0][1]


class CudaCompletion:
    """Work on a stream between two events; they go back to their pools with this object.

    A later record of an event that streams wait for does not disturb them: CUDA waits for the
    record that was the last when the wait was enqueued.
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
        """Let everything enqueued on `lane` from now on come after this work."""
        if lane is not self._lane:
            lane.driver.wait_event(lane.stream, self._end)

    def __del__(self) -> None:
        self._lane.starts.give_back(self._start)
        self._lane.ends.give_back(self._end)


class Lane:
    """One stream, and the pools that its operations' events come from."""

    def __init__(self, driver: Driver, clock: Clock, starts: EventPool, ends: EventPool) -> None:
        self.driver = driver
        self.clock = clock
        self.starts = starts
        self.ends = ends
        self.stream = driver.stream()
        self._lock = threading.Lock()

    def enqueue(
        self, work: Callable[[Any], None], after: Sequence[Completion], keep: Any = None
    ) -> CudaCompletion:
        """Enqueue `work` behind everything in `after`; `keep` lives until it is done.

        Completions of other kinds of devices are waited for on the host: nothing else orders
        their work and this stream's.
        """
        with self._lock:
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
