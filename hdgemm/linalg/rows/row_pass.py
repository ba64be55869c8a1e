"""One pass over the rows of a tall matrix: each block is read once and given to all reducers."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from hdgemm.call.recorder import Recorder
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.planning.rows import in_place
from hdgemm.linalg.rows._device_lane import DeviceLane, SharedDevice
from hdgemm.linalg.rows._row_checks import RowChecks
from hdgemm.linalg.rows.pass_executor import executor_for
from hdgemm.linalg.rows.reducer import RowBlock
from hdgemm.linalg.rows.source import check_finite_rows
from hdgemm.matrices.read_ahead import STREAM_BUFFERS, ReadAhead, WriteBehind
from hdgemm.pipeline.devices.host_blas import blas_threads
from hdgemm.threads import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.rows.checkpoint import RowCheckpoint
    from hdgemm.linalg.rows.reducer import Reducer
    from hdgemm.linalg.rows.source import TallRows
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.pipeline.devices.protocol import FactorDevice
    from hdgemm.pipeline.plan import Stage
    from hdgemm.progress import Callbacks


def plan_for(
    rows: TallRows, reducers: Iterable[Reducer], folder: Path | None, run: OpenRun
) -> RowPlan:
    """Return the plan of a pass on this machine.

    Parameters
    ----------
    folder
        Of the file of A, or None: see `hdgemm.call.run.folder_of`.

    Raises
    ------
    DoesNotFitError
        When the results and one row of each block do not fit.
    """
    shape = rows.shape
    return rows_for(shape, [reducer.work(shape) for reducer in reducers], folder, run)


class RowPass:
    """One pass over the rows of a tall matrix.

    Each core reads its own blocks of rows, ahead of their use, and gives them to its reducers. Rows
    that these return are stored while the next block is reduced. The plan says which blocks are a
    core's. At the end the reducers of all cores are combined into the caller's. Another pass needs
    other reducers.

    Parameters
    ----------
    rows
        What is read, and how it is transformed in memory.
    reducers
        What is computed, in this order; they are empty.
    plan
        The `plan_for` these rows and reducers.
    callbacks
        Told of the operations, and of the end with a report.
    reverse
        Each core takes its blocks from the last one to the first one.
    checkpoint
        The durable run that this is; None without one.
    first
        The row of A with which the rows of the plan begin.
    devices
        The opened devices that the plan names.

    Examples
    --------
    >>> triangle = Triangle.zeros(n, 0, dtype)
    >>> plan = plan_for(rows, [triangle], folder_of(rows.a), run)
    >>> RowPass(rows, [triangle], plan, run.callbacks).run()
    >>> r = triangle.r
    """

    def __init__(
        self,
        rows: TallRows,
        reducers: Sequence[Reducer],
        plan: RowPlan,
        callbacks: Callbacks,
        *,
        reverse: bool = False,
        checkpoint: RowCheckpoint | None = None,
        first: int = 0,
        devices: Sequence[FactorDevice] = (),
    ) -> None:
        works = [reducer.work(plan.shape) for reducer in reducers]
        stores = [reducer.target is not None for reducer in reducers]
        if any(stores[:-1]) or any(work.overwrites for work in works[:-1]):
            raise ValueError(
                "only the last reducer of a pass may overwrite its blocks or store rows"
            )
        self._column_major = any(work.column_major for work in works)
        self._overwrites = works[-1].overwrites
        # Also where an earlier pass led to a scale, the rows are copied.
        plan = plan._replace(in_place=plan.in_place and in_place(rows.shape.orders, works))
        self._array = rows.array if plan.in_place else None
        self._rows, self._reducers, self._plan = rows, reducers, plan
        self._recorder = Recorder(callbacks, plan.flops, devices=plan.devices)
        self._devices = [SharedDevice(device) for device in devices]
        self._checkpoint, self._reverse = checkpoint, reverse
        self._first = first
        self._kept: dict[int, int] = {}
        self._checks: dict[int, RowChecks] = {}
        self._stopped = False  # no event: an interrupt of its `set` can leave it locked

    def run(self) -> None:
        """Read all rows once; the reducers have the results at the return."""
        plan, durable = self._plan, self._checkpoint
        if durable is not None:
            targets = [each.target for each in self._reducers if each.target is not None]
            for target in targets[-1:]:
                self._checks = {
                    core: RowChecks(target, self._places(core)) for core in range(plan.cores)
                }
            durable.next_pass(plan, self._checks)
        arrays = None if durable is None else durable.finished()
        blocks = {core: len(plan.blocks(core)) for core in range(plan.cores)}
        if arrays is None:
            self._reduce_all()
        else:
            _restore(self._reducers, arrays)
            self._kept = blocks
        done = None
        if durable is not None:
            done = durable.resumption(sum(blocks.values()), sum(self._kept.values()))
            if arrays is None:
                durable.finish(_arrays(self._reducers))
        self._recorder.finish(self._plan, self._moved_bytes(), done)

    def _reduce_all(self) -> None:
        """Reduce the blocks of each core, and combine the results in the order of the cores."""
        executor = executor_for(self._rows, self._reducers)
        if executor is not None:
            with self._recorder.measuring_memory():
                self._plan = executor.reduce(self._rows, self._reducers, self._plan, self._recorder)
            return
        cores = self._plan.cores
        # Each core calls BLAS for its own rows.
        with (
            self._recorder.measuring_memory(),
            blas_threads(1),
            WorkerPool(cores, "hdgemm-rows") as workers,
        ):
            try:
                parts = [
                    workers.submit(self._reduce, core, self._of_core(core)) for core in range(cores)
                ]
                found = [part.result() for part in parts]
            finally:
                self._stopped = True
            for others in found[1:]:
                for reducer, other in zip(self._reducers, others, strict=True):
                    reducer.combine(other)

    def _of_core(self, core: int) -> Sequence[Reducer]:
        """Return the reducers of a core: the caller's for the first one."""
        return [each.fresh(core) for each in self._reducers] if core else self._reducers

    def _places(self, core: int) -> list[tuple[int, int]]:
        """Return the first row and the one behind the last row of each block, in their order."""
        first = self._first
        blocks = [(first + start, first + end) for start, end in self._plan.blocks(core)]
        return blocks[::-1] if self._reverse else blocks

    def _moved_bytes(self) -> dict[Stage, int]:
        """Return the bytes of the blocks that an earlier run had not reduced."""
        plan = self._plan
        left = sum(
            last - first
            for core in range(plan.cores)
            for first, last in self._places(core)[self._kept.get(core, 0) :]
        )
        moved: dict[Stage, int] = {"load1": left * plan.read_bytes}
        return moved | ({"store2": left * plan.stored} if plan.stored else {})

    def _reduce(self, core: int, reducers: Sequence[Reducer]) -> Sequence[Reducer]:
        try:
            with self._lane(core, reducers) as lane:
                done = self._restored(core, reducers)
                with ReadAhead() as reads, WriteBehind() as writes:
                    for number, block in enumerate(self._blocks(core, done, reads), done):
                        self._update(core, number, block, reducers, writes, lane)
                        if self._checkpoint is not None:
                            arrays = partial(_arrays_of_stored, writes, reducers)
                            self._checkpoint.note(core, number + 1, arrays)
                    writes.wait()
        except BaseException:
            self._stopped = True  # the other cores need not go on
            raise
        return reducers

    @contextmanager
    def _lane(self, core: int, reducers: Sequence[Reducer]) -> Iterator[DeviceLane | None]:
        """Let a device compute the products of a core's reducers; yield None for the host."""
        if not self._devices:
            yield None
            return
        shared = self._devices[core % len(self._devices)]
        with DeviceLane(shared, core, self._recorder) as lane:
            for reducer in reducers:
                reducer.use(lane)
            yield lane
            for reducer in reducers:
                reducer.leave()

    def _restored(self, core: int, reducers: Sequence[Reducer]) -> int:
        """Take what a core has reduced in an earlier run; return how many blocks that are."""
        if self._checkpoint is None:
            return 0
        done, arrays = self._checkpoint.load(core)
        self._kept[core] = done
        if done:
            _restore(reducers, arrays)
        return done

    def _update(
        self,
        core: int,
        number: int,
        block: RowBlock,
        reducers: Sequence[Reducer],
        writes: WriteBehind,
        lane: DeviceLane | None,
    ) -> None:
        """Give a block to the reducers, and begin to store the rows that they return."""
        shape, (first, a, _) = self._plan.shape, block
        for reducer in reducers:
            flops = reducer.flops(len(a), shape)
            with (
                self._recorder.operation("mult1", core, flops=flops, block=number)
                if lane is None
                else lane.block(number, flops)
            ):
                stored = reducer.update(block)
            if stored is None or reducer.target is None:
                continue
            target = reducer.target[first : first + len(a), :]
            writes.begin(partial(self._store, core, number, stored, target))
            if self._overwrites:  # the next block is read into the memory of these rows
                writes.wait()

    def _store(self, core: int, number: int, rows: NDArray[Any], target: StoredMatrix) -> None:
        """Store the rows of a block, and keep their checksum for a durable run."""
        with self._recorder.operation("store2", core, nbytes=rows.nbytes, block=number):
            target.write(rows)
        if core in self._checks:
            self._checks[core].add(rows)

    def _blocks(self, core: int, done: int, reads: ReadAhead) -> Iterator[RowBlock]:
        """Yield the blocks of a core but the first `done`, until a core fails."""
        plan, rows, array = self._plan, self._rows, self._array
        places = list(enumerate(self._places(core)))[done:]
        if array is not None:
            blocks: Iterable[RowBlock] = (self._part(array, at) for _, at in places)
        else:
            height = min(plan.rows, plan.m)
            buffers = [rows.buffer(height) for _ in places[:STREAM_BUFFERS]]
            blocks = reads.blocks(
                places,
                lambda place, buffer: rows.read(
                    place[1],
                    buffers[buffer],
                    self._recorder,
                    (core, place[0]),
                    column_major=self._column_major,
                ),
            )
        for block in blocks:
            if self._stopped:
                return
            yield block

    def _part(self, array: NDArray[Any], place: tuple[int, int]) -> RowBlock:
        """Return rows of an array, checked."""
        first, last = place
        part = array[first:last]
        if self._rows.check_finite:
            check_finite_rows(first, part, transposed=self._rows.transposed)
        return RowBlock(first, part, part[:, :0])


def _arrays(reducers: Sequence[Reducer]) -> Mapping[str, NDArray[Any]]:
    """Return what reducers have accumulated, by name."""
    return {
        f"{number}.{name}": array
        for number, reducer in enumerate(reducers)
        for name, array in reducer.arrays.items()
    }


def _arrays_of_stored(
    writes: WriteBehind, reducers: Sequence[Reducer]
) -> Mapping[str, NDArray[Any]]:
    """Return what reducers have accumulated, when the rows of all their blocks are stored."""
    writes.wait()
    return _arrays(reducers)


def _restore(reducers: Sequence[Reducer], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Give reducers what `_arrays` returned."""
    for number, reducer in enumerate(reducers):
        start = f"{number}."
        reducer.restore(
            {name[len(start) :]: x for name, x in arrays.items() if name.startswith(start)}
        )
