"""A device made of NumPy and threads that checks how it is used.

It has memory of its own and three asynchronous queues, as an accelerator has. It records every
call, and refuses an order that would be a race on real hardware: a slot written before its last
reader, or read before its writer. It can fail at the n-th call, corrupt results and be given a
pace, to stand in for machines that are not at hand.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import DeviceError, DoesNotFitError
from hdgemm.pipeline.devices.protocol import view
from hdgemm.pipeline.devices.recording._operation import (
    QUEUES,
    Call,
    Operation,
    RaceCheck,
    access,
    checksum_of,
)
from hdgemm.pipeline.plan import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.interchanges import Moves
    from hdgemm.pipeline.devices.protocol import (
        After,
        Block,
        Buffer,
        Completion,
        HostBuffer,
        Triangle,
    )
    from hdgemm.pipeline.devices.recording._operation import (
        Corruption,
        Fault,
        Kind,
        Pace,
        Queue,
        VectorClock,
    )
    from hdgemm.pipeline.plan import Operand


_PAGE = 4096


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


class RecordingDevice:
    """See the module's docstring.

    ``pace(kind, amount)`` gives the seconds that an operation takes at least;
    ``corrupt(kind, number, block)`` can change what the n-th upload or gemm (from 0) wrote.
    """

    host_cores = 0
    packs = True
    locks_pages = False

    def __init__(
        self,
        memory_bytes: int = 1 << 40,
        *,
        name: str = "recording",
        fault: Fault | None = None,
        pace: Pace | None = None,
        corrupt: Corruption | None = None,
    ) -> None:
        self._memory_bytes = memory_bytes
        self.spec = DeviceSpec(name, unified=False, memory_bytes=memory_bytes)
        self.calls: list[Call] = []
        self.held = 0
        self.peak_held = 0
        self._fault = fault
        self._pace = pace
        self._corruption = corrupt
        self._done: Counter[Queue] = Counter()
        self._lock = threading.Lock()
        self._buffers: dict[int, Buffer] = {}
        self._races = RaceCheck()
        self._last: dict[Queue, Operation] = {}
        self._queues: dict[Queue, SimpleQueue[tuple[Operation, Callable[[], object]] | None]] = {
            queue: SimpleQueue() for queue in QUEUES
        }
        self._threads = [
            threading.Thread(target=self._serve, args=(queue,), name=f"{name}-{queue}", daemon=True)
            for queue in QUEUES
        ]
        for thread in self._threads:
            thread.start()

    def slot_bytes(self, _operand: Operand, rows: int, cols: int, dtype: np.dtype[Any]) -> int:
        """Tiles are dense."""
        return rows * cols * dtype.itemsize

    def allocate(self, nbytes: int) -> Buffer:
        """Take device memory."""
        with self._lock:
            self._record(Call("allocate", nbytes))
            if self.held + nbytes > self._memory_bytes:
                raise DoesNotFitError(
                    f"{self.spec.name}: {nbytes:,} bytes asked for, "
                    f"{self.held:,} of {self._memory_bytes:,} held",
                    requested=nbytes,
                    available=self._memory_bytes - self.held,
                )
            self.held += nbytes
            self.peak_held = max(self.peak_held, self.held)
        return self._keep(ArrayBuffer(nbytes))

    def allocate_staging(self, nbytes: int) -> HostBuffer:
        """Take host memory."""
        with self._lock:
            self._record(Call("allocate_staging", nbytes))
        return self._keep(ArrayBuffer(nbytes))

    def _keep(self, buffer: ArrayBuffer) -> ArrayBuffer:
        self._buffers[id(buffer)] = buffer
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give memory back; to free a buffer twice is an error."""
        if self._buffers.pop(id(buffer), None) is None:
            raise AssertionError("a buffer was freed twice")
        self.held = sum(kept.nbytes for kept in self._buffers.values())

    @property
    def buffers(self) -> int:
        """Buffers, staging included, that are not freed yet."""
        return len(self._buffers)

    def upload(self, source: NDArray[Any], target: Block, after: After) -> Completion:
        """Copy into a tile, and check that the source does not change meanwhile."""
        checksum = checksum_of(source)

        def work() -> None:
            np.copyto(view(target), source)
            if checksum_of(source) != checksum:
                raise AssertionError("staging was overwritten before its upload was done")
            self._corrupt("upload", target)

        return self._enqueue("upload", source.nbytes, work, after, writes=target)

    def gemm(
        self, alpha: complex, a: Block, b: Block, beta: complex, c: Block, after: After
    ) -> Completion:
        """Multiply with NumPy."""

        def work() -> None:
            out, dtype = view(c), c.tile.dtype
            product = dtype.type(alpha) * (_op(a) @ _op(b))
            out[...] = product if beta == 0 else product + dtype.type(beta) * out
            self._corrupt("gemm", c)

        k = a.rows if a.tile.trans else a.cols
        flops = 2 * c.rows * c.cols * k
        return self._enqueue("gemm", flops, work, after, reads=(a, b), writes=c)

    def trsm(self, a: Block, b: Block, form: Triangle, after: After) -> Completion:
        """Solve with BLAS, to which a row-major block is its column-major transpose."""
        from hdgemm import fortran

        work = partial(fortran.trsm, view(a).T, view(b).T, **form.of_transposes()._asdict())
        flops = a.rows * b.rows * b.cols
        return self._enqueue("trsm", flops, work, after, reads=[a], writes=b)

    def permute(self, block: Block, moves: Moves, after: After, axis: int = 0) -> Completion:
        """Gather with NumPy, then scatter."""

        def work() -> None:
            rows = view(block) if axis == 0 else view(block).T
            rows[moves.places] = rows[moves.sources]

        nbytes = len(moves.places) * (block.cols, block.rows)[axis] * block.tile.dtype.itemsize
        return self._enqueue("permute", nbytes, work, after, writes=block)

    def copy(self, source: Block, target: Block, after: After) -> Completion:
        """Copy from tile to tile."""
        work = partial(np.copyto, view(target), view(source))
        return self._enqueue("copy", _nbytes(source), work, after, reads=[source], writes=target)

    def conjugate(self, block: Block, after: After) -> Completion:
        """Conjugate with NumPy."""
        work = partial(np.conjugate, view(block), out=view(block))
        return self._enqueue("conjugate", _nbytes(block), work, after, writes=block)

    def download(self, source: Block, target: NDArray[Any], after: After) -> Completion:
        """Copy out of a tile."""
        work = partial(np.copyto, target, view(source))
        return self._enqueue("download", target.nbytes, work, after, reads=[source])

    def synchronize(self) -> None:
        """Wait for all queues, whether their operations failed or not."""
        for operation in list(self._last.values()):
            with suppress(DeviceError):
                operation.wait()

    def close(self) -> None:
        """End the queues' threads."""
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            thread.join()

    def _record(self, call: Call) -> bool:
        """Record a call; fail if it is the one to fail, or say that it has to fail late."""
        number = len(self.calls)
        self.calls.append(call)
        if self._fault is None or self._fault.call != number:
            return False
        if self._fault.late and not call.kind.startswith("allocate"):
            return True
        raise DeviceError(f"{self.spec.name}: injected fault at call {number} ({call.kind})")

    def _enqueue(
        self,
        kind: Kind,
        amount: int,
        work: Callable[[], object],
        after: After,
        *,
        reads: Iterable[Block] = (),
        writes: Block | None = None,
    ) -> Completion:
        """Enqueue work on parts of tiles; all but transfers runs in the queue of products."""
        queue: Queue = (
            "upload" if kind == "upload" else "download" if kind == "download" else "gemm"
        )
        accesses = [access(block, writes=False) for block in reads]
        if writes is not None:
            accesses.append(access(writes, writes=True))
        call = Call(kind, amount)
        earlier = [completion for completion in after if isinstance(completion, Operation)]
        operation = Operation(call, earlier, self._note_seen)
        with self._lock:
            fails = self._record(call)
            clocks = [operation.clock for operation in earlier]
            operation.clock = self._races.enqueue(queue, accesses, clocks)
            self._last[queue] = operation
        self._queues[queue].put((operation, _fail if fails else work))
        return operation

    def _serve(self, queue: Queue) -> None:
        np.seterr(all="ignore")  # of this thread: BLAS raises no floating-point warnings
        while (item := self._queues[queue].get()) is not None:
            operation, work = item
            operation.execute(work, self._pace)
            # While the thread waits for the next, it keeps nothing of this one alive.
            del item, operation, work

    def _corrupt(self, queue: Queue, block: Block) -> None:
        """Pass what an operation wrote to the corruption; one thread for each queue."""
        if self._corruption is not None:
            self._corruption(queue, self._done[queue], block)
            self._done[queue] += 1

    def _note_seen(self, clock: VectorClock) -> None:
        """Note that the host has waited for an operation: it precedes all that comes now."""
        with self._lock:
            self._races.seen(clock)


def _fail() -> None:
    raise RuntimeError("injected fault")


def _nbytes(block: Block) -> int:
    return block.rows * block.cols * block.tile.dtype.itemsize


def _op(block: Block) -> NDArray[Any]:
    seen = view(block)
    return seen.T if block.tile.trans else seen
