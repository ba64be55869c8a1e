"""Streams and events of all GPUs, ordered as CUDA orders them and no further.

Work on a stream runs in order; work on different streams runs in any order that the events
allow. The stand-in picks an unfavourable one, so that a missing dependency gives a wrong product.
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
    """A failed call, as CuPy reports it: by the name of the class and `status`."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class CUDARuntimeError(StandInError):
    """A `cudaError_t` that is not success."""


class CUBLASError(StandInError):
    """A `cublasStatus_t` that is not success."""


class CUSOLVERError(StandInError):
    """A `cusolverStatus_t` that is not success."""


class CUDADriverError(StandInError):
    """A `CUresult` that is not success."""


class Op:
    """One entry of a stream: work, or a wait for another entry."""

    __slots__ = ("done_at", "needs", "stream", "work")

    def __init__(self, stream: int, work: Callable[[], None] | None, needs: Op | None) -> None:
        self.stream = stream
        self.work = work
        self.needs = needs
        self.done_at: float | None = None


class Streams:
    """All streams of a stand-in, which run in an order of one of three kinds.

    ``"lazy"``: nothing runs before the host waits for it, and then only what that needs.
    ``"random"``: after every call a few entries of random streams run. ``"ahead:N"``: the N-th
    stream made runs as soon as it may, the others lazily.
    """

    def __init__(self, order: str, seed: int) -> None:
        self._order = order
        self._random = np.random.default_rng(seed)
        self._ahead = int(order.partition(":")[2]) if order.startswith("ahead:") else 0
        self._queues: dict[int, deque[Op]] = {}
        self._events: dict[int, Op | None] = {}
        #: The GPU that each stream and event belongs to.
        self._devices: dict[int, int] = {}
        # Like CUDA's, handles are large numbers.
        self._numbers = iter(range(0x5EED0000, 0x7FFF0000, 16))
        #: By GPU, the error of work that failed after its call returned; later calls repeat it.
        self.failed: dict[int, StandInError] = {}

    def handle_of(self, stream: int, device: int) -> int:
        """Return a stream's own handle; 0 and 1 are the legacy default stream of a GPU."""
        if stream not in (0, 1):
            if stream not in self._queues:
                raise CUDARuntimeError(INVALID_HANDLE, "no such stream")
            return stream
        handle = -1 - device
        self._queues.setdefault(handle, deque())
        self._devices[handle] = device
        return handle

    def new_stream(self, device: int) -> int:
        """Make a stream on a GPU and return its handle."""
        handle = next(self._numbers)
        self._queues[handle] = deque()
        self._devices[handle] = device
        return handle

    def drop_stream(self, stream: int) -> None:
        """Finish a stream's work and forget it."""
        if stream not in self._queues:
            raise CUDARuntimeError(INVALID_HANDLE, "no such stream")
        self.synchronize(stream)
        del self._queues[stream]

    def new_event(self, device: int) -> int:
        """Make an event on a GPU and return its handle."""
        handle = next(self._numbers)
        self._events[handle] = None
        self._devices[handle] = device
        return handle

    def drop_event(self, event: int) -> None:
        """Forget an event."""
        if self._events.pop(event, self) is self:
            raise CUDARuntimeError(INVALID_HANDLE, "no such event")

    def check_device(self, handle: int, device: int) -> None:
        """Refuse a stream or an event of another GPU."""
        if self._devices[handle] != device:
            raise CUDARuntimeError(
                INVALID_HANDLE, f"it belongs to GPU {self._devices[handle]}, not to GPU {device}"
            )

    def enqueue(
        self, stream: int, work: Callable[[], None] | None = None, needs: Op | None = None
    ) -> Op:
        """Add an entry to a stream, then let some entries run."""
        op = Op(stream, work, needs)
        self._queues[stream].append(op)
        self._run_some()
        return op

    def record(self, event: int, stream: int) -> None:
        """Let the event stand for all that the stream holds now."""
        self._event(event)
        self.check_device(event, self._devices[stream])
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
        while self._queues[stream]:
            self._require(self._queues[stream][-1])

    def drain(self, device: int) -> None:
        """Run everything on a GPU."""
        for stream in [one for one in self._queues if self._devices[one] == device]:
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
        return sum(handle >= 0 for handle in self._queues), len(self._events)

    def _event(self, handle: int) -> Op | None:
        try:
            return self._events[handle]
        except KeyError:
            raise CUDARuntimeError(INVALID_HANDLE, "no such event") from None

    def _run_some(self) -> None:
        if self._ahead:
            made = [handle for handle in self._queues if handle >= 0]
            if made:
                self.synchronize(made[min(self._ahead, len(made)) - 1])
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
        device = self._devices[op.stream]
        if op.work is not None and device not in self.failed:
            try:
                op.work()
            except StandInError as error:
                self.failed[device] = error
        op.work = None
        op.done_at = time.perf_counter()
