"""A device made of NumPy and threads that checks how it is used.

It has memory of its own and three asynchronous queues, as an accelerator has. It records every
call, and refuses orders that would be a race on real hardware even where they happen to come
out right: a slot written before its last reader is ordered, or read before its writer is. It
can fail on purpose at the n-th call, and can be given a pace, so that it stands in for machines
that are not at hand.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdgemm.errors import DeviceError, DoesNotFitError
from hdgemm.pipeline.devices.dense import view
from hdgemm.pipeline.devices.recording.corruption import Corrupter, Corruption
from hdgemm.pipeline.devices.recording.races import Access, Clock, RaceCheck, access, checksum_of
from hdgemm.pipeline.plan import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Block, Buffer, Completion, HostBuffer
    from hdgemm.pipeline.devices.recording.corruption import Corruption
    from hdgemm.pipeline.devices.recording.races import Kind
    from hdgemm.pipeline.plan import Operand

_PAGE = 4096
_QUEUES: tuple[Kind, ...] = ("upload", "gemm", "download")


@dataclass(frozen=True, slots=True)
class Fault:
    """Fail the `call`-th call (from 0): at once, or later, while the device executes it."""

    call: int
    late: bool = False


class Call(NamedTuple):
    """One recorded call: what was asked, and the amount (bytes, or flops for gemm)."""

    kind: Kind
    amount: int


class ArrayBuffer:
    """Memory of this device, or staging."""

    def __init__(self, nbytes: int) -> None:
        raw = np.full(nbytes + _PAGE, 0xFF, np.uint8)  # NaN, so that reading too early shows
        first = -raw.ctypes.data % _PAGE
        self.array: NDArray[np.uint8] = raw[first : first + nbytes]

    @property
    def nbytes(self) -> int:
        """Bytes that were asked for."""
        return self.array.nbytes


class Ticket:
    """The completion of one enqueued operation."""

    def __init__(self, device: RecordingDevice, kind: Kind, clock: Clock) -> None:
        self.clock = clock
        self._device = device
        self._kind = kind
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self._interval = (0.0, 0.0)

    def wait(self) -> None:
        """Block until it is done."""
        self._finished.wait()
        self._device.seen(self)
        if self._error is not None:
            raise DeviceError(f"recording device: {self._kind} failed") from self._error

    def interval(self) -> tuple[float, float]:
        """Return when it ran."""
        return self._interval

    def execute(self, work: Callable[[], None], after: Sequence[Completion]) -> None:
        """Run on the queue's own thread."""
        start = time.perf_counter()
        try:
            for completion in after:
                completion.wait()
            start = time.perf_counter()
            work()
        except BaseException as error:  # noqa: BLE001  (reaches the caller through wait)
            self._error = error
        self._interval = (start, time.perf_counter())
        self._finished.set()


class RecordingDevice:
    """See the module's docstring.

    Parameters
    ----------
    memory_bytes
        What it can hold.
    fault
        When to fail.
    pace
        ``pace(kind, amount)`` gives the seconds that an operation must at least take.
    corrupt
        ``corrupt(kind, number, block)`` may change what the n-th upload or gemm (from 0) wrote.
    """

    def __init__(
        self,
        memory_bytes: int = 1 << 40,
        *,
        name: str = "recording",
        fault: Fault | None = None,
        pace: Callable[[Kind, int], float] | None = None,
        corrupt: Corruption | None = None,
    ) -> None:
        self.spec = DeviceSpec(name, unified=False, memory_bytes=memory_bytes)
        self.calls: list[Call] = []
        self.held = 0
        self.peak_held = 0
        self._fault = fault
        self._pace = pace
        self._corrupt = Corrupter(corrupt)
        self._lock = threading.Lock()
        self._buffers: dict[int, Buffer] = {}
        self._races = RaceCheck()
        self._last: dict[Kind, Ticket] = {}
        self._queues: dict[Kind, SimpleQueue[Callable[[], None] | None]] = {
            kind: SimpleQueue() for kind in _QUEUES
        }
        self._threads = [
            threading.Thread(target=_serve, args=(queue,), name=f"{name}-{kind}", daemon=True)
            for kind, queue in self._queues.items()
        ]
        for thread in self._threads:
            thread.start()

    def slot_bytes(self, _operand: Operand, rows: int, cols: int, dtype: np.dtype[Any]) -> int:
        """Tiles are dense."""
        return rows * cols * dtype.itemsize

    def allocate(self, nbytes: int) -> Buffer:
        """Take device memory."""
        self._record("allocate", nbytes)
        with self._lock:
            if self.held + nbytes > self.spec.memory_bytes:
                raise DoesNotFitError(
                    f"{self.spec.name}: {nbytes:,} bytes asked for, "
                    f"{self.held:,} of {self.spec.memory_bytes:,} held",
                    requested=nbytes,
                    available=self.spec.memory_bytes - self.held,
                )
            self.held += nbytes
            self.peak_held = max(self.peak_held, self.held)
        return self._keep(ArrayBuffer(nbytes))

    def allocate_staging(self, nbytes: int) -> HostBuffer:
        """Take host memory."""
        self._record("allocate_staging", nbytes)
        return self._keep(ArrayBuffer(nbytes))

    def _keep(self, buffer: ArrayBuffer) -> ArrayBuffer:
        self._buffers[id(buffer)] = buffer
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give memory back; twice, or while work is enqueued, is an error."""
        if self._buffers.pop(id(buffer), None) is None:
            raise AssertionError("a buffer was freed twice")
        self.held = sum(kept.nbytes for kept in self._buffers.values())

    @property
    def buffers(self) -> int:
        """Buffers, staging included, that are not freed yet."""
        return len(self._buffers)

    def upload(
        self, source: NDArray[Any], target: Block, after: Sequence[Completion]
    ) -> Completion:
        """Copy into a tile, and check that the source is left alone meanwhile."""
        checksum = checksum_of(source)

        def work() -> None:
            np.copyto(view(target), source)
            if checksum_of(source) != checksum:
                raise AssertionError("staging was overwritten before its upload was done")
            self._corrupt("upload", target)

        return self._enqueue("upload", source.nbytes, [access(target, writes=True)], work, after)

    def gemm(
        self,
        alpha: complex,
        a: Block,
        b: Block,
        beta: complex,
        c: Block,
        after: Sequence[Completion],
    ) -> Completion:
        """Multiply with NumPy."""

        def work() -> None:
            out, dtype = view(c), c.tile.dtype
            with np.errstate(all="ignore"):  # NaN and Inf are results like others
                product = dtype.type(alpha) * (_op(a) @ _op(b))
                out[...] = product if beta == 0 else product + dtype.type(beta) * out
            self._corrupt("gemm", c)

        k = a.rows if a.tile.trans else a.cols
        accesses = [access(a, writes=False), access(b, writes=False), access(c, writes=True)]
        return self._enqueue("gemm", 2 * c.rows * c.cols * k, accesses, work, after)

    def download(
        self, source: Block, target: NDArray[Any], after: Sequence[Completion]
    ) -> Completion:
        """Copy out of a tile."""

        def work() -> None:
            np.copyto(target, view(source))

        return self._enqueue("download", target.nbytes, [access(source, writes=False)], work, after)

    def synchronize(self) -> None:
        """Wait for all queues, whatever came of it."""
        for ticket in list(self._last.values()):
            try:
                ticket.wait()
            except DeviceError:
                continue

    def close(self) -> None:
        """End the queues' threads."""
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            thread.join()

    def _record(self, kind: Kind, amount: int) -> bool:
        """Take note of a call; fail if it is the one to fail, or say that it is to fail late."""
        with self._lock:
            number = len(self.calls)
            self.calls.append(Call(kind, amount))
        due = self._fault is not None and self._fault.call == number
        if due and self._fault is not None and not (self._fault.late and kind in _QUEUES):
            raise DeviceError(f"{self.spec.name}: injected fault at call {number} ({kind})")
        return due

    def _enqueue(
        self,
        kind: Kind,
        amount: int,
        accesses: list[Access],
        work: Callable[[], None],
        after: Sequence[Completion],
    ) -> Completion:
        fails = self._record(kind, amount)
        with self._lock:
            clocks = [ticket.clock for ticket in after if isinstance(ticket, Ticket)]
            ticket = Ticket(self, kind, self._races.order(kind, clocks))
            self._races.enqueue(kind, accesses, ticket.clock)
            self._last[kind] = ticket

        def paced() -> None:
            start = time.perf_counter()
            if fails:
                raise RuntimeError(f"injected fault in {kind}")
            work()
            if self._pace is not None:
                rest = self._pace(kind, amount) - (time.perf_counter() - start)
                time.sleep(max(0.0, rest))

        self._queues[kind].put(lambda: ticket.execute(paced, after))
        return ticket

    def seen(self, ticket: Ticket) -> None:
        """Note that the host has waited for an operation: it precedes all that comes now."""
        with self._lock:
            self._races.seen(ticket.clock)


def _serve(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (run := queue.get()) is not None:
        run()


def _op(block: Block) -> NDArray[Any]:
    seen = view(block)
    return seen.T if block.tile.trans else seen
