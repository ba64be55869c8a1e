"""In-order queues, ordered by the driver's events or driven by a thread of ours."""

from __future__ import annotations

import contextlib
import queue as queues
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyopencl as cl

from hdgemm.errors import DeviceError, HdgemmError
from hdgemm.pipeline.devices.opencl.driver import driver_errors

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.protocol import Completion

#: Given a queue and the events its first command must wait for, enqueues; returns the events of
#: its first and last command.
Work: TypeAlias = Callable[[cl.CommandQueue, list[cl.Event]], tuple[cl.Event, cl.Event]]

_CLOCK_TRIES: Final = 7
_NANOSECOND: Final = 1e-9


class Lane(Protocol):
    """One in-order queue; any thread may enqueue, one at a time."""

    @property
    def queue(self) -> cl.CommandQueue:
        """The driver's queue."""

    def enqueue(
        self, what: str, work: Work, after: Sequence[Completion], keep: Any = None
    ) -> Completion:
        """Let `work` follow everything in `after`; `keep` lives until it is done."""

    def finish(self) -> None:
        """Wait for everything enqueued; a failure is its own completion's to report."""

    def close(self) -> None:
        """Finish, and give up what the lane holds."""


class EventCompletion:
    """One or more commands of a queue, from the `first` to the `last`."""

    def __init__(
        self, what: str, first: cl.Event, last: cl.Event, queue: cl.CommandQueue, offset: float
    ) -> None:
        self.last = last
        self.queue = queue
        self._what = what
        self._first = first
        self._offset = offset

    def wait(self) -> None:
        """Block until the last command is done; PyOpenCL lets go of the interpreter's lock."""
        with driver_errors(self._what):
            self.last.wait()

    def interval(self) -> tuple[float, float]:
        """Return when the first command began and the last ended, as `time.perf_counter` has it."""
        with driver_errors(self._what):
            start, end = self._first.profile.start, self.last.profile.end
        return self._offset + start * _NANOSECOND, self._offset + end * _NANOSECOND


class EventLane:
    """A queue whose commands the driver orders by events; enqueuing returns at once."""

    def __init__(self, context: cl.Context, device: cl.Device) -> None:
        self.queue = _profiled_queue(context, device)
        self._offset = _clock_offset(self.queue)
        self._lock = threading.Lock()
        self._pending: deque[tuple[cl.Event, Any]] = deque()
        self._closed = False

    def enqueue(
        self, what: str, work: Work, after: Sequence[Completion], keep: Any = None
    ) -> EventCompletion:
        """Enqueue; completions of other devices, which no event of ours orders, are waited for."""
        events = []
        for completion in after:
            if not isinstance(completion, EventCompletion):
                completion.wait()
            elif completion.queue is not self.queue:
                events.append(completion.last)
        if self._closed:
            raise DeviceError(f"{what}: the device is closed")
        with self._lock, driver_errors(what):
            first, last = work(self.queue, events)
            self.queue.flush()
            self._forget_finished()
            # The driver reads and writes host memory after the call that enqueued it returned.
            self._pending.append((last, keep))
        return EventCompletion(what, first, last, self.queue, self._offset)

    def _forget_finished(self) -> None:
        done = cl.command_execution_status.COMPLETE
        while self._pending and self._pending[0][0].command_execution_status <= done:
            self._pending.popleft()

    def finish(self) -> None:
        """Wait for everything enqueued."""
        with contextlib.suppress(cl.Error):
            self.queue.finish()
        with self._lock:
            self._pending.clear()

    def close(self) -> None:
        """Finish; the queue goes with its last reference."""
        self._closed = True
        self.finish()


class DrivenCompletion:
    """Work that a driven lane was given; `keep` lives in it until it is done."""

    def __init__(self, what: str, work: Work, after: Sequence[Completion], keep: Any) -> None:
        self.what = what
        self.work: Work = work
        self.after = tuple(after)
        self.keep = keep
        self._done = threading.Event()
        self._inner: EventCompletion | None = None
        self._error: BaseException | None = None

    def run(self, queue: cl.CommandQueue, offset: float) -> None:
        """Wait for what comes before, then work and wait; called by the lane's thread."""
        try:
            for completion in self.after:
                completion.wait()
            with driver_errors(self.what):
                first, last = self.work(queue, [])
            self._inner = EventCompletion(self.what, first, last, queue, offset)
            self._inner.wait()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            self._error = error
        finally:
            self.work, self.keep, self.after = _marker, None, ()
            self._done.set()

    def wait(self) -> None:
        """Block until it is done; raise what it failed with."""
        self._done.wait()
        if self._error is not None:
            numbers = self._error.numbers if isinstance(self._error, HdgemmError) else {}
            raise DeviceError(f"{self.what}: {self._error}", **numbers) from self._error

    def interval(self) -> tuple[float, float] | None:
        """Return when it ran, as `EventCompletion.interval`."""
        return self._inner.interval() if self._inner is not None else None


class DrivenLane:
    """A queue driven by a thread that waits for each command before it enqueues the next.

    Intel's CPU runtime owns one thread fewer than there are cores and counts on the thread that
    waits for a command to work on it too. A command that is started by another one's event finds
    no such thread, and a core idles.
    """

    def __init__(self, context: cl.Context, device: cl.Device) -> None:
        self.queue = _profiled_queue(context, device)
        self._offset = _clock_offset(self.queue)
        self._todo: queues.SimpleQueue[DrivenCompletion | None] = queues.SimpleQueue()
        self._thread = threading.Thread(target=self._drive, name="hdgemm-opencl", daemon=True)
        self._thread.start()

    def _drive(self) -> None:
        while (completion := self._todo.get()) is not None:
            completion.run(self.queue, self._offset)
            # While waiting for the next, nothing of this one must stay alive.
            del completion

    def enqueue(
        self, what: str, work: Work, after: Sequence[Completion], keep: Any = None
    ) -> DrivenCompletion:
        """Put `work` behind what the thread has to do."""
        if not self._thread.is_alive():
            raise DeviceError(f"{what}: the device is closed")
        completion = DrivenCompletion(what, work, after, keep)
        self._todo.put(completion)
        return completion

    def finish(self) -> None:
        """Wait for everything enqueued."""
        with contextlib.suppress(DeviceError):
            self.enqueue("waiting", _marker, ()).wait()

    def close(self) -> None:
        """Finish, and end the thread."""
        self._todo.put(None)
        self._thread.join()


def _marker(queue: cl.CommandQueue, events: list[cl.Event]) -> tuple[cl.Event, cl.Event]:
    event = cl.enqueue_marker(queue, wait_for=events)
    return event, event


def _profiled_queue(context: cl.Context, device: cl.Device) -> cl.CommandQueue:
    profiling = cl.command_queue_properties.PROFILING_ENABLE
    return cl.CommandQueue(context, device, properties=profiling)


def _clock_offset(queue: cl.CommandQueue) -> float:
    """Seconds to add to the device's clock; the quickest answer is the truest."""
    offsets = []
    for _ in range(_CLOCK_TRIES):
        event = cl.enqueue_marker(queue)
        event.wait()
        offsets.append(time.perf_counter() - event.profile.end * _NANOSECOND)
    return min(offsets)
