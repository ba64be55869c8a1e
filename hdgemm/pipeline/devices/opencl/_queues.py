"""In-order command queues: ordered by the driver's events, or blocking."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyopencl as cl

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.opencl._driver import driver_errors, never_release

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.opencl._driver import OwnerProcess
    from hdgemm.pipeline.devices.protocol import After

#: Enqueues commands on a queue, the first of which waits for the events; returns the events of
#: these commands, or of the first and the last one.
Work: TypeAlias = Callable[[cl.CommandQueue, list[cl.Event]], list[cl.Event]]

_CLOCK_TRIES: Final = 7
_NANOSECOND: Final = 1e-9


def open_queues(
    context: cl.Context, device: cl.Device, owner: OwnerProcess, count: int, *, blocking: bool
) -> list[Queue]:
    """Create `count` queues of one device."""
    profiling = cl.command_queue_properties.PROFILING_ENABLE
    queues = [cl.CommandQueue(context, device, properties=profiling) for _ in range(count)]
    offset = _clock_offset(queues[0])
    return [Queue(queue, offset, owner, blocking=blocking) for queue in queues]


def _clock_offset(queue: cl.CommandQueue) -> float:
    """Return the seconds to add to the device's clock; the fastest answer is the most exact."""
    offsets = []
    for _ in range(_CLOCK_TRIES):
        event = cl.enqueue_marker(queue)
        event.wait()
        offsets.append(time.perf_counter() - event.profile.end * _NANOSECOND)
    return min(offsets)


class EventCompletion:
    """One or more commands of a queue, from the `first` to the `last`."""

    def __init__(self, what: str, first: cl.Event, last: cl.Event, queue: Queue) -> None:
        self.last = last
        self.queue = queue
        self._what = what
        self._first = first

    def __del__(self) -> None:
        # The driver locks an event to release it. A thread that the child lacks may have held
        # the lock at the time of the fork.
        if self.queue.owner.forked:
            never_release(self._first)
            never_release(self.last)

    def until(self, what: str, last: EventCompletion) -> EventCompletion:
        """Return all commands of the queue from these to `last` as one completion."""
        return EventCompletion(what, self._first, last.last, self.queue)

    def wait(self) -> None:
        """Block until the last command is done; PyOpenCL releases the interpreter's lock."""
        self.queue.owner.check()
        with driver_errors(self._what):
            self.last.wait()

    def interval(self) -> tuple[float, float]:
        """Return the first command's start and the last one's end as `time.perf_counter` times."""
        with driver_errors(self._what):
            start, end = self._first.profile.start, self.last.profile.end
        offset = self.queue.offset
        return offset + start * _NANOSECOND, offset + end * _NANOSECOND


class Queue:
    """An in-order queue; any thread may enqueue, one at a time.

    `offset` is in seconds from the device's clock to `time.perf_counter`. With `blocking`,
    `enqueue` waits until the work is done; otherwise the driver orders commands by events and
    `enqueue` returns at once. Intel's CPU runtime owns one thread fewer than there are cores and
    relies on the thread that waits for a command to execute a part of it: a command started by the
    event of another queue has no waiting thread, and one core stays idle.
    """

    def __init__(
        self, queue: cl.CommandQueue, offset: float, owner: OwnerProcess, *, blocking: bool
    ) -> None:
        self.queue = queue
        self.offset = offset
        self.owner = owner
        self._blocking = blocking
        self._lock = threading.Lock()
        self._pending: deque[tuple[cl.Event, Any]] = deque()
        self._closed = False

    def enqueue(self, what: str, work: Work, after: After, keep: Any = None) -> EventCompletion:
        """Enqueue `work` behind everything in `after`; `keep` lives until it is done.

        Completions of other devices have no event here: they are waited for.
        """
        self.owner.check()
        events = []
        for completion in after:
            if self._blocking or not isinstance(completion, EventCompletion):
                completion.wait()
            elif completion.queue is not self:
                events.append(completion.last)
        if self._closed:
            raise DeviceError(f"{what}: the device is closed")
        with self._lock, driver_errors(what):
            commands = work(self.queue, events)
            first, last = commands[0], commands[-1]
            if self._blocking:
                last.wait()
            else:
                self.queue.flush()
                self._drop_finished()
                # The driver uses host memory after the enqueuing call has returned.
                self._pending.append((last, keep))
        return EventCompletion(what, first, last, self)

    def mark(self, what: str, after: After) -> EventCompletion:
        """Enqueue nothing but the order: the completion of an operation without elements."""
        return self.enqueue(
            what, lambda queue, events: [cl.enqueue_marker(queue, wait_for=events)], after
        )

    def _drop_finished(self) -> None:
        done = cl.command_execution_status.COMPLETE
        while self._pending and self._pending[0][0].command_execution_status <= done:
            self._pending.popleft()

    def finish(self) -> None:
        """Wait for everything enqueued; an error belongs to the completion of its command."""
        self.owner.check()
        with contextlib.suppress(cl.Error):
            self.queue.finish()
        with self._lock:
            self._pending.clear()

    def close(self) -> None:
        """Finish; the driver's queue is released with its last reference."""
        self._closed = True
        self.finish()
