"""In-order command queues, ordered by the driver's events or driven by a thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyopencl as cl

from hdgemm.errors import DeviceError, HdgemmError
from hdgemm.pipeline.devices.opencl.driver import driver_errors

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.opencl.driver import OwnerProcess
    from hdgemm.pipeline.devices.protocol import Completion

#: Enqueues commands on a queue, the first of which waits for the events; returns the events of the
#: first and the last command.
Work: TypeAlias = Callable[[cl.CommandQueue, list[cl.Event]], tuple[cl.Event, cl.Event]]

_CLOCK_TRIES: Final = 7
_NANOSECOND: Final = 1e-9


def open_queues(
    context: cl.Context, device: cl.Device, owner: OwnerProcess, count: int, *, threads: bool
) -> Sequence[EventQueue | ThreadQueue]:
    """Create `count` queues of one device, each driven by its own thread where `threads` is set."""
    profiling = cl.command_queue_properties.PROFILING_ENABLE
    queues = [cl.CommandQueue(context, device, properties=profiling) for _ in range(count)]
    offset = _clock_offset(queues[0])
    if not threads:
        return [EventQueue(queue, offset, owner) for queue in queues]
    driven: list[ThreadQueue] = []
    try:
        driven.extend(ThreadQueue(queue, offset, owner) for queue in queues)
    except RuntimeError as error:
        for each in driven:
            each.close()
        raise DeviceError(f"the system refused a thread for an OpenCL queue: {error}") from error
    return driven


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

    def __init__(self, what: str, first: cl.Event, last: cl.Event, queue: EventQueue | ThreadQueue):
        self.last = last
        self.queue = queue
        self._what = what
        self._first = first

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


class EventQueue:
    """A queue whose commands the driver orders by events; enqueuing returns at once.

    Any thread may enqueue, one at a time.
    """

    def __init__(self, queue: cl.CommandQueue, offset: float, owner: OwnerProcess) -> None:
        self.queue = queue
        self.offset = offset
        self.owner = owner
        self._lock = threading.Lock()
        self._pending: deque[tuple[cl.Event, Any]] = deque()
        self._closed = False

    def enqueue(
        self, what: str, work: Work, after: Sequence[Completion], keep: Any = None
    ) -> EventCompletion:
        """Enqueue `work` behind everything in `after`; `keep` lives until it is done.

        Completions of other devices have no event here: they are waited for.
        """
        events = []
        for completion in after:
            if not isinstance(completion, EventCompletion):
                completion.wait()
            elif completion.queue is not self:
                events.append(completion.last)
        if self._closed:
            raise DeviceError(f"{what}: the device is closed")
        with self._lock, driver_errors(what):
            first, last = work(self.queue, events)
            self.queue.flush()
            self._drop_finished()
            # The driver reads and writes host memory after the enqueuing call has returned.
            self._pending.append((last, keep))
        return EventCompletion(what, first, last, self)

    def _drop_finished(self) -> None:
        done = cl.command_execution_status.COMPLETE
        while self._pending and self._pending[0][0].command_execution_status <= done:
            self._pending.popleft()

    def finish(self) -> None:
        """Wait for everything enqueued; an error belongs to the completion of its command."""
        with contextlib.suppress(cl.Error):
            self.queue.finish()
        with self._lock:
            self._pending.clear()

    def close(self) -> None:
        """Finish; the driver's queue is released with its last reference."""
        self._closed = True
        self.finish()


class ThreadCompletion:
    """Work given to a `ThreadQueue`; `keep` lives until it is done."""

    def __init__(
        self, what: str, work: Work, after: Sequence[Completion], keep: Any, queue: ThreadQueue
    ) -> None:
        self._what = what
        self._work: Work = work
        self._after = tuple(after)
        self._keep = keep
        self._queue = queue
        self._done = threading.Event()
        self._inner: EventCompletion | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Wait for `after`, do the work and wait for it; called by the queue's thread."""
        try:
            for completion in self._after:
                completion.wait()
            with driver_errors(self._what):
                first, last = self._work(self._queue.queue, [])
            self._inner = EventCompletion(self._what, first, last, self._queue)
            self._inner.wait()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it in the waiting thread
            self._error = error
        finally:
            self._work, self._keep, self._after = _marker, None, ()
            self._done.set()

    def wait(self) -> None:
        """Block until the work is done; raise its error."""
        self._queue.owner.check()
        self._done.wait()
        if self._error is not None:
            numbers = self._error.numbers if isinstance(self._error, HdgemmError) else {}
            raise DeviceError(f"{self._what}: {self._error}", **numbers) from self._error

    def interval(self) -> tuple[float, float] | None:
        """Return start and end, as `EventCompletion.interval`."""
        return self._inner.interval() if self._inner is not None else None


class ThreadQueue:
    """A queue driven by a thread that waits for each command before it enqueues the next.

    Intel's CPU runtime owns one thread fewer than there are cores and relies on the thread that
    waits for a command to execute a part of it. A command started by the event of another queue
    has no waiting thread, so that one core stays idle.
    """

    def __init__(self, queue: cl.CommandQueue, offset: float, owner: OwnerProcess) -> None:
        self.queue = queue
        self.offset = offset
        self.owner = owner
        self._todo: SimpleQueue[ThreadCompletion | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._drive, name="hdgemm-opencl", daemon=True)
        self._thread.start()

    def _drive(self) -> None:
        while (completion := self._todo.get()) is not None:
            completion.run()
            # While the thread waits for more work, this one must not stay alive.
            del completion

    def enqueue(
        self, what: str, work: Work, after: Sequence[Completion], keep: Any = None
    ) -> ThreadCompletion:
        """Enqueue `work` behind everything in `after`; `keep` lives until it is done."""
        if not self._thread.is_alive():
            raise DeviceError(f"{what}: the device is closed")
        completion = ThreadCompletion(what, work, after, keep, self)
        self._todo.put(completion)
        return completion

    def finish(self) -> None:
        """Wait for everything enqueued; an error belongs to the completion of its work."""
        with contextlib.suppress(DeviceError):
            self.enqueue("waiting", _marker, ()).wait()

    def close(self) -> None:
        """Finish, and end the thread."""
        self._todo.put(None)
        self._thread.join()


def _marker(queue: cl.CommandQueue, events: list[cl.Event]) -> tuple[cl.Event, cl.Event]:
    event = cl.enqueue_marker(queue, wait_for=events)
    return event, event
