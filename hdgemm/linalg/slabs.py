"""Slabs of a matrix in memory: loaded, updated by streamed earlier columns, stored.

Input and output run in threads of their own. A slab buffer is loaded as soon as the slab that it
held is stored; a stream block is read while the block before it is multiplied.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from hdgemm.linalg.core_team import CoreTeam
from hdgemm.linalg.planning import STREAM_BUFFERS
from hdgemm.linalg.resident import resident_columns
from hdgemm.linalg.slab_buffers import SlabBuffers
from hdgemm.linalg.slab_copies import SlabCopies
from hdgemm.linalg.slab_plan import Columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from hdgemm.linalg.checkpoint import SlabCheckpoint
    from hdgemm.linalg.recorder import Recorder
    from hdgemm.linalg.resident import ResidentColumns
    from hdgemm.linalg.slab_plan import SlabPlan
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.pipeline.devices.protocol import NativeDevice

#: Columns of a strip that is read while others are used.
_STRIP: Final = 512


@dataclass(frozen=True, slots=True)
class Slab:
    """A slab in memory: `array` has the rows from ``place.top`` on, column-major.

    What the factorisation puts in `notes` (pivots, tau) a checkpoint records with the slab, which
    is stored when its `tasks` are done. `reads` are strips of its columns that are being read.
    """

    number: int
    place: Columns
    array: NDArray[Any]
    notes: dict[str, NDArray[Any]] = field(default_factory=dict)
    tasks: list[Future[None]] = field(default_factory=list)
    reads: list[tuple[Columns, Future[Slab]]] = field(default_factory=list)

    def read(self, first: int, last: int) -> tuple[Future[Slab], ...]:
        """Return the reads of some columns."""
        return tuple(read for x, read in self.reads if x.first < last and first < x.last)


@dataclass(frozen=True, slots=True)
class Block:
    """Earlier columns in memory, a part of slab `slab`; `array` has the rows from ``place.top`` on.

    Its memory is used again when its `tasks` are done.
    """

    slab: int
    place: Columns
    array: NDArray[Any]
    tasks: list[Future[None]] = field(default_factory=list)


class SlabPipeline:
    """Context in which the slabs of a plan pass through memory once, from left to right.

    Parameters
    ----------
    a
        The matrix to be factored.
    out
        Where the factor is stored, and where earlier columns are read from; `a` itself in place.
    plan
        Slabs, blocks and buffers.
    recorder
        Told of every operation.
    check
        Called with each slab that is loaded, in a thread of the pipeline.
    checkpoint
        Stores slabs durably; those that it has already are passed over.
    stream
        Where blocks are read from; None for `out`.
    load, store
        Fill a slab, and store one, in place of reading `a` and writing `out`.
    devices
        Hold and update slabs, as the plan names them; () for the host's BLAS.
    """

    def __init__(
        self,
        a: StoredMatrix,
        out: StoredMatrix,
        plan: SlabPlan,
        recorder: Recorder,
        check: Callable[[Slab], None] | None = None,
        checkpoint: SlabCheckpoint | None = None,
        *,
        stream: StoredMatrix | None = None,
        load: Callable[[Slab], None] | None = None,
        store: Callable[[Slab], None] | None = None,
        devices: Sequence[NativeDevice] = (),
    ) -> None:
        self._a, self._out, self.plan, self.recorder = a, out, plan, recorder
        self._stream, self._devices = out if stream is None else stream, devices
        self._fill, self._keep, self._check = load, store, check
        self._copies: SlabCopies | None = None
        self.checkpoint, self._pass_number = checkpoint, 0
        self._stores: dict[int, Future[None]] = {}
        #: What each device holds of the slab that is updated.
        self.resident: Sequence[ResidentColumns] = ()
        self._block_tasks: list[list[Future[None]]] = [[] for _ in range(STREAM_BUFFERS)]
        self._blocks, self._begun = 0, list[int]()
        self.team = CoreTeam()
        # Slab loads and stores and the reads of the stream, which may wait for one another.
        self._pool = ThreadPoolExecutor(4 + STREAM_BUFFERS, "hdgemm-slab")

    def __enter__(self) -> Self:
        devices, plan = self._devices, self.plan
        with ExitStack() as stack:
            stack.enter_context(self.recorder.measuring_memory())
            self._buffers = SlabBuffers(plan, self._out, devices[0] if devices else None)
            stack.callback(self._buffers.free)
            held = resident_columns(devices, plan, self.recorder, self._done(0))
            self.resident = stack.enter_context(held)
            stack.callback(self._pool.shutdown, wait=True, cancel_futures=True)
            stack.enter_context(self.team)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._copies is not None:
            self._copies.stop()
        self._open.close()

    def slabs(self) -> Iterator[Slab]:
        """Yield each slab of A when it is loaded; store it when the caller asks for the next."""
        plan, done = self.plan, self._done(0)
        fill = self._fill or partial(self._read_slab, self._a, plan.loaded_bytes)
        if not plan.stores:
            return self._read_while_used(fill)
        if plan.copies(done) and self._fill is None:
            first = [self._slab(done + number, plan.slabs) for number in range(plan.slab_buffers)]
            self._copies = SlabCopies(
                self._a, self._out, plan, self.recorder, first, self._buffers.stream
            )
            fill = self._copies.load
        return self._pass(0, fill, plan.slabs, self._check)

    def below(self) -> Iterator[Slab]:
        """Yield the stored rows below each slab's own ones, and store them again."""
        fill = partial(self._read_slab, self._out, self.plan.nbytes)
        return self._pass(1, fill, self.plan.interchanged, None)

    def _read_while_used(self, fill: Callable[[Slab], None]) -> Iterator[Slab]:
        """Yield the slabs of a plan that stores nothing; contiguous columns are read meanwhile."""
        contiguous = self._a.order == "F" and self._a.chunks is None
        for number, place in enumerate(self.plan.slabs):
            slab = self._slab(number, self.plan.slabs)
            width = _STRIP if contiguous else place.width
            for first in range(0, place.width, width):
                array = slab.array[:, first : first + width]
                strip = Slab(number, Columns(first, first + array.shape[1], 0), array)
                # Two strips are read at once, so that the disk has requests at the end of one.
                ahead = slab.reads[-2][1] if len(slab.reads) > 1 else None
                read = self._pool.submit(self._load, fill, strip, None, ahead, self._check)
                read.add_done_callback(lambda _: self.team.wake())
                slab.reads.append((strip.place, read))
            yield slab
            for task in slab.tasks:
                task.result()

    def _done(self, pass_number: int) -> int:
        """Return how many slabs of a pass an earlier run has finished."""
        return 0 if self.checkpoint is None else self.checkpoint.done(pass_number)

    def _pass(
        self,
        pass_number: int,
        fill: Callable[[Slab], None],
        places: Sequence[Columns],
        check: Callable[[Slab], None] | None,
    ) -> Iterator[Slab]:
        """Load, yield and store slabs; each buffer is loaded again when its slab is stored."""
        start = self._done(pass_number)
        self._pass_number = pass_number
        loads: dict[int, Future[Slab]] = {}
        stores = self._stores = {}
        self._begun = []

        def begin_load(number: int) -> None:
            if number < len(places):
                before = stores.get(number - self.plan.slab_buffers)
                slab, ahead = self._slab(number, places), loads.get(number - 1)
                loads[number] = self._pool.submit(self._load, fill, slab, before, ahead, check)

        for number in range(start, start + self.plan.slab_buffers):
            begin_load(number)
        for number in range(start, len(places)):
            slab = loads.pop(number).result()
            yield slab
            stores[number] = self._pool.submit(self._store, slab, stores.get(number - 1))
            begin_load(number + self.plan.slab_buffers)
        for store in stores.values():
            store.result()

    def overwritten(self, axis: str) -> str:
        """Say which slabs of the output a run that failed has stored; `axis` is what slabs are."""
        name, begun = self._out.operand.matrix.name, self._begun
        if self.checkpoint is not None:
            whole = begun = list(range(self.checkpoint.done(self._pass_number)))
        else:
            whole = [n for n in begun if self._stores[n].exception() is None]
        last, torn = (self.plan.slabs[max(slabs)].last if slabs else 0 for slabs in (whole, begun))
        if self._pass_number == 1:
            return f"{name} is factored, but only {axis} 0:{last} have L's rows in their last order"
        if torn == 0:
            return f"{name} is unchanged"
        partly = f", {axis} {last}:{torn} perhaps in part" if torn > last else ""
        return f"{axis} 0:{last} of {name} are overwritten{partly}, the others are as they were"

    def earlier(self, slab: Slab) -> Iterator[Block]:
        """Yield the stored columns left of a slab, from left to right; each until the next one."""
        reads: deque[Future[Block]] = deque()
        for number, (earlier, place) in enumerate(self.plan.blocks(slab.number), 1):
            if len(reads) == STREAM_BUFFERS:
                yield reads.popleft().result()
            buffer = self._blocks % STREAM_BUFFERS
            self._blocks += 1
            read = place._replace(top=self.plan.read_top(place.top))
            array = self._buffers.block(buffer, self._stream, read)
            block = Block(earlier, place, array[place.top - read.top :])
            before, self._block_tasks[buffer] = self._block_tasks[buffer], block.tasks
            step = slab.number, number
            reads.append(self._pool.submit(self._read_block, step, block, array, before))
        while reads:
            yield reads.popleft().result()

    def _load(
        self,
        fill: Callable[[Slab], None],
        slab: Slab,
        before: Future[None] | None,
        ahead: Future[Slab] | None,
        check: Callable[[Slab], None] | None,
    ) -> Slab:
        """Fill a slab's buffer when the slab that it held is stored, and the slab ahead is read."""
        for future in (before, ahead):
            if future is not None:  # submitted earlier, so that a thread runs it already
                future.result()
        fill(slab)
        if check is not None:
            check(slab)
        return slab

    def _read_slab(
        self, source: StoredMatrix, nbytes: Callable[[Columns], int], slab: Slab
    ) -> None:
        place = slab.place
        with self.recorder.operation("load1", slab.number, nbytes=nbytes(place)):
            source[place.top :, place.first : place.last].read(slab.array)

    def _store(self, slab: Slab, before: Future[None] | None) -> None:
        place, checkpoint = slab.place, self.checkpoint
        for task in slab.tasks:
            task.result()
        if checkpoint is not None and before is not None:
            before.result()  # slabs are recorded in order
        self._begun.append(slab.number)
        if self._keep is not None:
            self._keep(slab)
            return
        with self.recorder.operation("store2", slab.number, nbytes=self.plan.nbytes(place)):
            if checkpoint is None:
                self._out[place.top :, place.first : place.last] = slab.array
            else:
                checkpoint.store(self._pass_number, slab.number, place, slab.array, slab.notes)

    def _read_block(
        self, step: tuple[int, int], block: Block, array: NDArray[Any], before: list[Future[None]]
    ) -> Block:
        """Read a block when it is stored, and the block that its buffer held has been used."""
        if (store := self._stores.get(block.slab)) is not None:
            store.result()
        for task in before:
            task.result()
        first, last, _ = block.place
        with self.recorder.operation("load1", step[0], nbytes=array.nbytes, block=step[1]):
            self._stream[self.plan.m - len(array) :, first:last].read(array)
        return block

    def _slab(self, number: int, places: Sequence[Columns]) -> Slab:
        return Slab(number, places[number], self._buffers.slab(number, places[number]))
