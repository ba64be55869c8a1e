"""The functions that Dask workers run for a pass over rows: reduce a piece, combine two results.

What a piece is reduced to stays on its worker until it is combined with its neighbour: only results
move. A task uses one core, and a worker reduces as many pieces at once as Dask gives it threads. So
the bits of a result depend on neither threads nor workers.
"""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.cluster._workers import own_version
from hdgemm.cluster.task import cancelled_with_task, errors_without_causes, local_options
from hdgemm.errors import InputError
from hdgemm.linalg.planning.rows import plan_pass
from hdgemm.linalg.rows.row_pass import RowPass
from hdgemm.linalg.rows.source import TallRows
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.matrices.base import Converted, Operand
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.pipeline.devices.host_blas import blas_threads
from hdgemm.pipeline.timeline import EventBuffer
from hdgemm.progress import Callbacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from hdgemm.cluster.references import Reference
    from hdgemm.linalg.planning.rows import RowPlan, RowShape
    from hdgemm.linalg.rows.reducer import Reducer
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Event

#: Blocks of a piece at least: nothing is reduced while the first one is read.
_BLOCKS: Final = 32
#: Events of the operations of a piece that are kept, and sent to the client.
_MOST_EVENTS: Final = 256
#: Passes whose files a worker remembers to have compared with the client's.
_MOST_COMPARED: Final = 64


@dataclass(frozen=True, slots=True)
class RowsReference:
    """A matrix of a pass as a worker opens it: stored where all reach it, or its elements.

    Parameters
    ----------
    source
        Where the matrix is stored; or its elements, of right-hand sides in the client's memory.
    dtype
        To which elements are converted when they are read.
    """

    source: Reference | NDArray[Any]
    dtype: np.dtype[Any]

    def open(self, stack: ExitStack, *, compare: bool) -> StoredMatrix:
        """Open the matrix; `compare` it with what the client sees."""
        if isinstance(self.source, np.ndarray):
            return StoredMatrix(Operand(ArrayMatrix(self.source)), writable=False)
        operand = self.source.open(stack)
        if compare:
            self.source.check(operand)
        if operand.matrix.dtype.newbyteorder("=") != self.dtype:
            operand = replace(operand, matrix=Converted(operand.matrix, self.dtype))
        return StoredMatrix(operand, writable=False)


@dataclass(frozen=True, slots=True)
class RowJob:
    """A pass as its workers know it.

    Parameters
    ----------
    name
        A name that no other pass has.
    version
        The version of hdgemm that the client has.
    a, b
        The matrices; `b` may be None.
    rows
        The transformation of A's and B's rows, without the matrices.
    reducers
        Reducers of the pass, which have taken no rows yet.
    options
        The options of the workers.
    """

    name: str
    version: str
    a: RowsReference
    b: RowsReference | None
    rows: dict[str, Any]
    reducers: Sequence[Reducer]
    options: Options

    def open(self, stack: ExitStack) -> TallRows:
        """Open the matrices on this machine.

        Raises
        ------
        InputError
            When they are others than the client's, or the client has another version.
        """
        if self.version != own_version():
            raise InputError(
                f"this worker has hdgemm {own_version()}, the client {self.version}: install the "
                "same version on both"
            )
        with _COMPARED.lock:
            compare = self.name not in _COMPARED.names
            b = None if self.b is None else self.b.open(stack, compare=compare)
            found = TallRows(self.a.open(stack, compare=compare), b=b, **self.rows)
            if compare:
                _COMPARED.names = [*_COMPARED.names[1 - _MOST_COMPARED :], self.name]
        return found


class Reduced(NamedTuple):
    """What rows were reduced to, and the operations that this took."""

    reducers: Sequence[Reducer]
    receipt: Receipt


class Receipt(NamedTuple):
    """What a task tells the client: the name of its worker, and its operations."""

    worker: str
    events: Sequence[Event]


class _Compared:
    """The passes whose files this process has compared with the client's."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.names: list[str] = []


class _OneThread:
    """A context, entered by several tasks at once, in which BLAS has one thread for each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limits: Any = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the limit until the last task ends: it is one for the whole process."""
        with self._lock:
            if not self._inside:
                self._limits = blas_threads(1)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._limits.restore_original_limits()


_COMPARED: Final = _Compared()
_ONE_THREAD: Final = _OneThread()
#: Held by a task that has left Dask's threads: one at a time, since memory is checked for one task
#: more than there are threads.
_LEAVING: Final = threading.Lock()


def carried(job: RowJob) -> RowJob:
    """Return a job: as a task, its workers have it once, and again when one of them is lost."""
    return job


def reduce_rows(job: RowJob, first: int, last: int) -> Reduced:
    """Reduce rows ``first`` to ``last - 1`` on one core.

    Raises
    ------
    InputError
        When this worker sees other matrices than the client, or an element is not finite.
    DoesNotFitError
        When the result does not fit this task's part of the worker's memory.
    """
    from distributed import get_worker

    worker = get_worker()
    options = local_options(job.options, worker)
    memory, threads = options.host_bytes or 0, max(1, worker.state.nthreads)
    with (
        errors_without_causes(),
        ExitStack() as stack,
        cancelled_with_task(worker) as cancel,
        _ONE_THREAD.held(),
    ):
        rows = job.open(stack)
        reducers = copy.deepcopy(job.reducers)
        forced = options.tile and options.tile[0]
        shape = rows.shape._replace(m=last - first)
        plan = _plan(shape, reducers, memory // threads, forced)
        reads = _Reads(len(plan.blocks(0)))
        callbacks = Callbacks(observer=reads.note, cancel=cancel)
        run = RowPass(rows, reducers, plan, callbacks, first=first).run
        beside = plan.host_bytes * (threads + 1) <= memory
        _run_and_leave(run, reads, stack, beside=beside)
    return Reduced(reducers, Receipt(str(worker.name), tuple(reads.events)))


def _plan(shape: RowShape, reducers: Sequence[Reducer], memory: int, forced: int | None) -> RowPlan:
    """Return the plan of a piece: at least `_BLOCKS` blocks, where each has n rows."""
    works = [reducer.work(shape) for reducer in reducers]
    plan = plan_pass(shape, works, memory, 1, rows=forced)
    fewer = max(shape.n, -(-shape.m // _BLOCKS))
    if forced is None and plan.rows > fewer:
        return plan_pass(shape, works, memory, 1, rows=fewer)
    return plan


class _Reads:
    """The operations of a pass, joined where they are many, and whether its last block is read.

    Parameters
    ----------
    blocks
        Blocks of the pass.
    """

    def __init__(self, blocks: int) -> None:
        self.events = EventBuffer(_MOST_EVENTS)
        self.ended = threading.Event()
        self._left = set(range(blocks))

    def note(self, event: Event) -> None:
        """Observe an operation."""
        self.events.append(event)
        if event.stage == "load1":
            self._left.discard(event.step)
            if not self._left:
                self.ended.set()


def _run_and_leave(
    run: Callable[[], None], reads: _Reads, stack: ExitStack, *, beside: bool
) -> None:
    """Run a pass; with `beside`, let the worker's next task begin when the last block is read.

    `stack` says when this task has ended.
    """
    from distributed import secede

    with ThreadPoolExecutor(1, "hdgemm-piece") as thread:
        running = thread.submit(run)
        running.add_done_callback(lambda _: reads.ended.set())
        reads.ended.wait()
        if beside and not running.done() and _LEAVING.acquire(blocking=False):
            stack.callback(_LEAVING.release)
            secede()  # type: ignore[no-untyped-call]
        running.result()


def combine_rows(first: Reduced, second: Reduced) -> Reduced:
    """Return what the rows of both are reduced to; Dask may need its arguments again."""
    found, others = copy.deepcopy((first.reducers, second.reducers))
    with errors_without_causes(), _ONE_THREAD.held():
        for reducer, other in zip(found, others, strict=True):
            reducer.combine(other)
    return Reduced(found, Receipt("", ()))


def receipt_of(reduced: Reduced) -> Receipt:
    """Return what the client must know of a task."""
    return reduced.receipt
