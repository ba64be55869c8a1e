"""Passage of a matrix through memory by slabs: loaded, updated by earlier columns, stored.

Input and output run in threads of their own. A slab buffer is loaded as soon as the slab that it
held is stored; a stream block is read while the block before it is multiplied. Contiguous columns
are loaded and stored by strips: computed as soon as they are loaded, stored as soon as they are
computed, and read again as soon as they are stored.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from hdgemm.errors import CancelledRunError
from hdgemm.linalg.slabs._buffers import SlabBuffers
from hdgemm.linalg.slabs._copies import SlabCopies
from hdgemm.linalg.slabs._core_team import CoreTeam
from hdgemm.linalg.slabs._resident import resident_columns
from hdgemm.linalg.slabs.slab import FactoredColumns, Slab, operations_on, wait_for
from hdgemm.matrices.read_ahead import STREAM_BUFFERS
from hdgemm.threads import WorkerPool, finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.linalg._checkpoint import SlabCheckpoint
    from hdgemm.linalg.planning.slab import Columns, SlabPlan
    from hdgemm.linalg.slabs._resident import ResidentColumns
    from hdgemm.linalg.slabs.slab import Operations
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.pipeline.devices.protocol import NativeDevice
    from hdgemm.threads import Call

#: Strips that are loaded at once, and stored: the disk has requests at the end of one, too.
_STRIPS: Final = 2


class _Pass(NamedTuple):
    """One walk over slabs: their places, what fills one, and what checks one that is filled.

    They are filled by strips from `source`, where it is a matrix of contiguous columns; without
    one, by strips of `columns`, or each as a whole.
    """

    number: int
    places: Sequence[Columns]
    fill: Callable[[Slab], None]
    source: StoredMatrix | None = None
    check: Callable[[Slab], None] | None = None
    columns: int = 0


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
    overwrites
        The output is a matrix that exists: no column of a slab is stored before all are computed,
        so that a slab that cannot be factored leaves its columns as they were.
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
        overwrites: bool = False,
    ) -> None:
        self._overwrites = overwrites
        self._a, self._out, self.plan, self.recorder = a, out, plan, recorder
        self._stream, self._devices = out if stream is None else stream, devices
        self._fill, self._keep, self._check = load, store, check
        self._copies: SlabCopies | None = None
        self.checkpoint, self._pass_number = checkpoint, 0
        #: Slabs of this pass that an earlier run has finished.
        self._first = self._done(0)
        self._stores: dict[int, Operations] = {}
        #: Columns of slabs in memory that update the slab after each.
        self._held: dict[int, list[FactoredColumns]] = {}
        self._previous: Slab | None = None
        #: What each device holds of the slab that is updated.
        self.resident: Sequence[ResidentColumns] = ()
        self._block_tasks: list[list[Call[None]]] = [[] for _ in range(STREAM_BUFFERS)]
        self._blocks, self._begun = 0, set[int]()
        self.team = CoreTeam()
        # They wait for one another.
        self._loading = WorkerPool(_STRIPS, "hdgemm-slab-load", after_each=self.team.wake)
        self._storing = WorkerPool(_STRIPS, "hdgemm-slab-store")
        self._reading = WorkerPool(STREAM_BUFFERS, "hdgemm-slab-read")

    def __enter__(self) -> Self:
        devices, plan = self._devices, self.plan
        with ExitStack() as stack:
            stack.enter_context(self.recorder.measuring_memory())
            self._buffers = SlabBuffers(plan, self._out, devices)
            stack.callback(self._buffers.free)
            held = resident_columns(devices, plan, self.recorder, self._done(0))
            self.resident = stack.enter_context(held)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        finish(self._end)

    def _end(self) -> None:
        """End the threads, then free the memory that they use."""
        if self._copies is not None:
            self._copies.stop()
        error = CancelledRunError("the factorisation ended before this began")
        pools = self._loading, self._storing, self._reading
        for pool in pools:
            pool.stop(error)
        self.team.close()
        for pool in pools:
            pool.close()
        self._open.close()
        self._previous, self._held = None, {}

    def slabs(self) -> Iterator[Slab]:
        """Yield each slab of A while it is loaded; store it when the caller asks for the next."""
        plan, done = self.plan, self._done(0)
        fill, source, columns = self._fill, None, 0
        if fill is None and plan.copies(done):
            first = [self._slab(done + number, plan.slabs) for number in range(plan.slab_buffers)]
            self._copies = SlabCopies(
                self._a, self._out, plan, self.recorder, first, self._buffers.stream
            )
            fill, columns = self._copies.load, plan.copied_columns
        elif fill is None:
            fill = partial(self._read_slab, self._a, plan.loaded_bytes)
            columns = plan.loaded_columns
            # A matrix that is read from one triangle is loaded by pieces of rows in either order.
            source = None if plan.row_bytes else self._a
        return self._pass(_Pass(0, plan.slabs, fill, source, self._check, columns))

    def below(self) -> Iterator[Slab]:
        """Yield the stored rows below each slab's own ones, and store them again."""
        fill = partial(self._read_slab, self._out, self.plan.nbytes)
        return self._pass(_Pass(1, self.plan.interchanged, fill, self._out))

    def _done(self, pass_number: int) -> int:
        """Return how many slabs of a pass an earlier run has finished."""
        return 0 if self.checkpoint is None else self.checkpoint.done(pass_number)

    def _pass(self, walk: _Pass) -> Iterator[Slab]:
        """Load, yield and store slabs; each buffer is loaded again when its slab is stored."""
        start = self._done(walk.number)
        self._pass_number, self._begun, self._stores = walk.number, set(), {}
        self._first, self._held, self._previous = start, {}, None
        loading: deque[Slab] = deque()
        following = start
        for number in range(start, len(walk.places)):
            while following < len(walk.places) and self._may_load(walk, following, number):
                self._begin_load(walk, following, loading)
                following += 1
            slab = loading.popleft()
            if number == start and walk.number == 0 and self._copies is not None:
                slab.wait_loaded()  # The copies pass through the memory of the stream.
            yield slab
            self._begin_store(slab)
            self._previous = slab
        self._previous = None
        for stores in self._stores.values():
            wait_for(store for _, store in stores)

    def _may_load(self, walk: _Pass, number: int, queued: int) -> bool:
        """Say whether all operations on the memory of a slab are known: slabs up to number `queued`
        (excluded) are queued.
        """
        replaced = self._replaced(walk, number)
        last = replaced[-1]
        if walk.number == 0 and self.plan.held and last < number - 1:
            last += 1  # The slab that the replaced one updates.
        return last < queued or replaced[-1] < self._first

    def _replaced(self, walk: _Pass, number: int) -> range:
        """Return the slabs that had the memory of a slab before."""
        takes_all = walk.number == 0 and self.plan.takes_all(number)
        first = number - self.plan.slab_buffers
        return range(first, number if takes_all else first + 1)

    def _begin_load(self, walk: _Pass, number: int, loading: deque[Slab]) -> None:
        """Load a slab when its memory is free, and the slab ahead, the last one, is loaded."""
        slab = self._slab(number, walk.places)
        ahead = [done for _, done in (loading[-1].loads if loading else ())]
        replaced, buffers = self._replaced(walk, number), self.plan.slab_buffers
        for strip in slab.strips(walk.source, walk.columns):
            after = [*ahead]
            for other in replaced:
                # Where several slabs are replaced, this one begins with the first buffer.
                before = other % buffers * self.plan.slabs[0].width if len(replaced) > 1 else 0
                if slab.place.first + before < strip.place.last:
                    after += self._uses(other)
            load = self._loading.submit(self._load, walk, strip, after)
            slab.loads.append((strip.place, load))
        loading.append(slab)

    def _uses(self, number: int) -> list[Call[None]]:
        """Return the operations after which the memory of a slab is free."""
        stores = [done for _, done in self._stores.get(number, [])]
        return stores + [done for block in self._held.get(number, []) for done in block.tasks]

    def _begin_store(self, slab: Slab) -> None:
        """Store a slab by strips, as soon as they are computed; a durable one as a whole."""
        if not self.plan.stores:
            self._stores[slab.number] = slab.tasks
            return
        whole = self._keep is not None or self.checkpoint is not None
        before = [] if self.checkpoint is None else self._stores.get(slab.number - 1, [])
        stores = self._stores[slab.number] = []
        computed = slab.loads + slab.tasks
        for strip in slab.strips(None if whole else self._out):
            columns = slab.place if self._overwrites else strip.place
            after = [*operations_on(columns, computed), *(done for _, done in before)]
            stores.append((strip.place, self._storing.submit(self._store, strip, after)))

    def overwritten(self, axis: str) -> str:
        """Say which slabs of the output a run that failed has stored; `axis` is what slabs are."""
        name, whole = self._out.operand.matrix.name, self._first
        while whole in self._begun and all(done.succeeded for _, done in self._stores[whole]):
            whole += 1
        begun = max([whole, *(number + 1 for number in self._begun)])
        last, torn = (self.plan.slabs[count - 1].last if count else 0 for count in (whole, begun))
        if self._pass_number == 1:
            return f"{name} is factored, but only {axis} 0:{last} have L's rows in their last order"
        if torn == 0:
            return f"{name} is unchanged"
        partly = f", {axis} {last}:{torn} perhaps in part" if torn > last else ""
        return f"{axis} 0:{last} of {name} are overwritten{partly}, the others are as they were"

    def earlier(self, slab: Slab) -> Iterator[FactoredColumns]:
        """Yield the factored columns left of a slab, from left to right; each until the next one.

        Those of the slab before are taken from memory, where it is held; others are read.
        """
        reads: deque[Call[FactoredColumns]] = deque()
        held: list[FactoredColumns] = []
        holds = self.plan.holds_before(slab.number, self._first)
        for number, (earlier, place) in enumerate(self.plan.blocks(slab.number), 1):
            if holds and self._previous is not None and earlier == slab.number - 1:
                held.append(self._previous.part(place))
                continue
            if len(reads) == STREAM_BUFFERS:
                yield reads.popleft().result()
            buffer = self._blocks % STREAM_BUFFERS
            self._blocks += 1
            read = place._replace(top=self.plan.read_top(place.top))
            array = self._buffers.block(buffer, self._stream, read)
            block = FactoredColumns(earlier, place, array[place.top - read.top :])
            stores = operations_on(place, self._stores.get(earlier, []))
            after = [*self._block_tasks[buffer], *stores]
            self._block_tasks[buffer] = block.tasks
            step = slab.number, number
            reads.append(self._reading.submit(self._read_block, step, block, array, after))
        while reads:
            yield reads.popleft().result()
        self._held[slab.number - 1] = held
        yield from held

    def _load(self, walk: _Pass, strip: Slab, after: Iterable[Call[None]]) -> None:
        """Fill a strip of a slab, and check it."""
        wait_for(after)
        walk.fill(strip)
        if walk.check is not None:
            walk.check(strip)

    def _read_slab(
        self, source: StoredMatrix, nbytes: Callable[[Columns], int], slab: Slab
    ) -> None:
        place = slab.place
        with self.recorder.operation("load1", slab.number, nbytes=nbytes(place)):
            source[place.top :, place.first : place.last].read(slab.array)

    def _store(self, slab: Slab, after: Iterable[Call[None]]) -> None:
        """Store a slab, or a strip of it; a checkpoint records slabs in their order."""
        place, checkpoint = slab.place, self.checkpoint
        wait_for(after)
        self._begun.add(slab.number)
        if self._keep is not None:
            self._keep(slab)
            return
        with self.recorder.operation("store2", slab.number, nbytes=self.plan.nbytes(place)):
            if checkpoint is None:
                self._out[place.top :, place.first : place.last] = slab.array
            else:
                checkpoint.store(self._pass_number, place, slab.array, slab.notes)

    def _read_block(
        self,
        step: tuple[int, int],
        block: FactoredColumns,
        array: NDArray[Any],
        after: Iterable[Call[None]],
    ) -> FactoredColumns:
        """Read a block when it is stored, and the block that its buffer held has been used."""
        wait_for(after)
        first, last, _ = block.place
        with self.recorder.operation("load1", step[0], nbytes=array.nbytes, block=step[1]):
            self._stream[self.plan.m - len(array) :, first:last].read(array)
        return block

    def _slab(self, number: int, places: Sequence[Columns]) -> Slab:
        return Slab(number, places[number], self._buffers.slab(number, places[number]))
