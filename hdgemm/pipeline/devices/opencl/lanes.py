"""In-order queues ordered by events, and what the events say on the host's clock."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import pyopencl as cl

from hdgemm.pipeline.devices.opencl.driver import driver_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hdgemm.pipeline.devices.protocol import Completion

_CLOCK_TRIES: Final = 7
_NANOSECOND: Final = 1e-9


class EventCompletion:
    """One or more commands of a lane, from the `first` to the `last`."""

    def __init__(self, lane: Lane, what: str, first: cl.Event, last: cl.Event) -> None:
        self.lane = lane
        self.last = last
        self._what = what
        self._first = first

    def wait(self) -> None:
        """Block until the last command is done; PyOpenCL lets go of the interpreter's lock."""
        with driver_errors(self._what):
            self.last.wait()

    def interval(self) -> tuple[float, float]:
        """Return when the first command began and the last ended, as `time.perf_counter` has it."""
        with driver_errors(self._what):
            start, end = self._first.profile.start, self.last.profile.end
        return self.lane.clock_offset + start * _NANOSECOND, (
            self.lane.clock_offset + end * _NANOSECOND
        )


class Lane:
    """One in-order queue; any thread may enqueue, one at a time."""

    def __init__(self, context: cl.Context, device: cl.Device) -> None:
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(context, device, properties=profiling)
        self._lock = threading.Lock()
        self._pending: deque[tuple[cl.Event, Any]] = deque()
        self.clock_offset = self._measure_clock()

    def _measure_clock(self) -> float:
        """Seconds to add to the device's clock; the quickest answer is the truest."""
        offsets = []
        for _ in range(_CLOCK_TRIES):
            event = cl.enqueue_marker(self.queue)
            event.wait()
            offsets.append(time.perf_counter() - event.profile.end * _NANOSECOND)
        return min(offsets)

    def enqueue(
        self,
        what: str,
        work: Callable[[cl.CommandQueue, list[cl.Event]], tuple[cl.Event, cl.Event]],
        after: Sequence[Completion],
        keep: Any = None,
    ) -> EventCompletion:
        """Enqueue `work` behind everything in `after`; `keep` lives until it is done.

        `work` is given the queue and the events that its first command must wait for, and returns
        the events of its first and last command. Completions of other devices are waited for
        here: nothing else orders their work and this queue's.
        """
        events = []
        for completion in after:
            if not isinstance(completion, EventCompletion):
                completion.wait()
            elif completion.lane is not self:
                events.append(completion.last)
        with self._lock, driver_errors(what):
            first, last = work(self.queue, events)
            self.queue.flush()
            self._forget_finished()
            # The driver reads and writes host memory after the call that enqueued it returned.
            self._pending.append((last, keep))
        return EventCompletion(self, what, first, last)

    def _forget_finished(self) -> None:
        done = cl.command_execution_status.COMPLETE
        while self._pending and self._pending[0][0].command_execution_status <= done:
            self._pending.popleft()

    def finish(self) -> None:
        """Wait for everything enqueued; a failure is its own completion's to report."""
        with contextlib.suppress(cl.Error):
            self.queue.finish()
        with self._lock:
            self._pending.clear()
