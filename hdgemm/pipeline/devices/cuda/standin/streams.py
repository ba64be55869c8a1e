"""Streams and events as CUDA orders them, and no more than that.

Work on a stream runs in order; work on different streams runs in any order that the events
allow. The stand-in picks an unkind one, so that a dependency left out gives a wrong product.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

#: cudaErrorInvalidResourceHandle, cudaErrorNotReady.
INVALID_HANDLE: Final = 400
NOT_READY: Final = 600


class StandInError(RuntimeError):
    """A failed call, as CuPy reports it: the class's name and `status` tell the library."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class CUDARuntimeError(StandInError):
    """A `cudaError_t` that is not success."""


class CUBLASError(StandInError):
    """A `cublasStatus_t` that is not success."""


class Op:
    """One entry of a stream: work, or a wait for another entry."""

    __slots__ = ("done_at", "needs", "stream", "work")

    def __init__(self, stream: int, work: Callable[[], None] | None, needs: Op | None) -> None:
        self.stream = stream
        self.work = work
        self.needs = needs
        self.done_at: float | None = None


class Streams:
    """All streams of a stand-in.

    Parameters
    ----------
    order
        ``"lazy"``: nothing runs before the host waits for it, and then only what that needs.
        ``"random"``: after every call a few entries of random streams run.
        ``"ahead:N"``: the N-th stream made runs as soon as it may, the others lazily.
    """

    def __init__(self, order: str, seed: int) -> None:
        self._order = order
        self._random = np.random.default_rng(seed)
        self._ahead = int(order.partition(":")[2]) if order.startswith("ahead:") else 0
        # Like CUDA's, handles are no small numbers; 0 is the legacy default stream.
        self._queues: dict[int, deque[Op]] = {0: deque()}
        self._events: dict[int, Op | None] = {}
        self._numbers = iter(range(0x5EED0000, 0x7FFF0000, 16))
        #: The error of work that failed after its call returned; every later call repeats it.
        self.failed: StandInError | None = None

    def new_stream(self) -> int:
        """Make a stream and return its handle."""
        handle = next(self._numbers)
        self._queues[handle] = deque()
        return handle

    def drop_stream(self, handle: int) -> None:
        """Finish a stream's work and forget it."""
        self.synchronize(handle)
        del self._queues[handle]

    def new_event(self) -> int:
        """Make an event and return its handle."""
        handle = next(self._numbers)
        self._events[handle] = None
        return handle

    def drop_event(self, handle: int) -> None:
        """Forget an event."""
        if self._events.pop(handle, self) is self:
            raise CUDARuntimeError(INVALID_HANDLE, "no such event")

    def enqueue(
        self, stream: int, work: Callable[[], None] | None = None, needs: Op | None = None
    ) -> Op:
        """Add an entry to a stream, then let some entries run."""
        if stream not in self._queues:
            raise CUDARuntimeError(INVALID_HANDLE, "no such stream")
        op = Op(stream, work, needs)
        self._queues[stream].append(op)
        self._run_some()
        return op

    def record(self, event: int, stream: int) -> None:
        """Let the event stand for all that the stream holds now."""
        self._event(event)
        self._events[event] = self.enqueue(stream)

    def wait_event(self, stream: int, event: int) -> None:
        """Hold the stream until the event's last record so far; none is no wait."""
        self.enqueue(stream, needs=self._event(event))

    def synchronize_event(self, event: int) -> None:
        """Run what the event's last record needs."""
        op = self._event(event)
        if op is not None:
            self._require(op)

    def synchronize(self, stream: int) -> None:
        """Run everything on a stream."""
        if stream not in self._queues:
            raise CUDARuntimeError(INVALID_HANDLE, "no such stream")
        while self._queues[stream]:
            self._require(self._queues[stream][-1])

    def drain(self) -> None:
        """Run everything."""
        for stream in list(self._queues):
            self.synchronize(stream)

    def elapsed(self, start: int, end: int) -> float:
        """Return the milliseconds between two events that have fired."""
        ops = (self._event(start), self._event(end))
        times = [op.done_at for op in ops if op is not None and op.done_at is not None]
        if len(times) < 2:
            never = INVALID_HANDLE if None in ops else NOT_READY
            raise CUDARuntimeError(never, "an event was never recorded, or has not fired")
        return (times[1] - times[0]) * 1e3

    def unused(self) -> tuple[int, int]:
        """Return how many streams and events still exist."""
        return len(self._queues) - 1, len(self._events)

    def _event(self, handle: int) -> Op | None:
        try:
            return self._events[handle]
        except KeyError:
            raise CUDARuntimeError(INVALID_HANDLE, "no such event") from None

    def _run_some(self) -> None:
        if self._ahead:
            favoured = list(self._queues)[min(self._ahead, len(self._queues) - 1)]
            self.synchronize(favoured)
        elif self._order == "random":
            queues = list(self._queues.values())
            for _ in range(self._random.integers(4)):
                queue = queues[self._random.integers(len(queues))]
                if queue and (queue[0].needs is None or queue[0].needs.done_at is not None):
                    self._run(queue)

    def _require(self, op: Op) -> None:
        """Run what `op` needs and nothing else, however long the chain."""
        chain = [op]
        while chain:
            last = chain[-1]
            if last.done_at is not None:
                chain.pop()
                continue
            head = self._queues[last.stream][0]
            if head.needs is not None and head.needs.done_at is None:
                chain.append(head.needs)
            else:
                self._run(self._queues[last.stream])

    def _run(self, queue: deque[Op]) -> None:
        op = queue.popleft()
        if op.work is not None and self.failed is None:
            try:
                op.work()
            except StandInError as error:
                self.failed = error
        op.work = None
        op.done_at = time.perf_counter()
