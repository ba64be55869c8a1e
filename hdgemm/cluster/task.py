"""The functions that Dask workers run: inspect the worker, compute one block of C, free memory.

A block goes from storage to storage. What returns to the client is a receipt, sent as an event of
the scheduler: it reaches the client before Dask reports the task as finished, and needs no other
transfer, so that a worker that dies afterwards takes nothing with it.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hdgemm.cluster.job import Job, WorkerInfo
from hdgemm.cluster.receipts import Receipt, coalesce
from hdgemm.durable.checksums import as_stored, checksum
from hdgemm.durable.journal import read_journal
from hdgemm.errors import HdgemmError, InputError
from hdgemm.machine.limits import default_host_bytes
from hdgemm.matrices.base import Matrix, Operand, Wrapper
from hdgemm.pipeline.plan import Rect
from hdgemm.progress import Watch
from hdgemm.run.compute import compute
from hdgemm.run.members import device_names
from hdgemm.run.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.options import Options
    from hdgemm.product.product import Product

#: Part of Dask's memory limit that a run may take where the options name no limit.
_MEMORY_PART: Final = 0.6
#: Seconds between two questions whether Dask still wants the block.
_ASK_SECONDS: Final = 0.25


class _Kept:
    """The session that this process keeps for the blocks of one run; one task uses it at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._session: Session | None = None
        self._key: Any = None

    def session(self, job: Job, worker: Any) -> Session:
        """Return the session of a run, opened at its first block."""
        if self._session is None or self._key != job.run:
            self.close()
            self._session = Session(_local_options(job.options, worker))
            self._key = job.run
        return self._session

    def close(self) -> None:
        """Free the devices and their memory."""
        if self._session is not None:
            self._session.close()
        self._session = None


_KEPT: Final = _Kept()


def _local_options(options: Options, worker: Any) -> Options:
    """Fill in the worker's own threads and memory where the options leave them open."""
    memory = options.host_bytes
    if memory is None:
        memory = default_host_bytes()
        limit = worker.memory_manager.memory_limit
        if limit:
            memory = min(memory, int(_MEMORY_PART * limit))
    return replace(options, threads=options.threads or worker.state.nthreads, host_memory=memory)


def inspect(job: Job) -> WorkerInfo:
    """Return what the planner must know of this worker; check that it reaches the storage.

    Raises
    ------
    InputError
        When it cannot open an operand, or finds another C there than the client does.
    """
    from distributed import get_worker

    worker = get_worker()
    with _KEPT.lock, ExitStack() as stack:
        product = job.open(stack)
        _check_same_storage(job)
        session = _KEPT.session(job, worker)
        options = session.options
        rate, disk = 0.0, math.inf
        for name in device_names(options, product):
            device = session.device(name, options)
            problem = product.problem(device.spec)
            machine = session.machine(device.spec, problem, product.folder, options.threads)
            rate += machine.flop_rate(product.dtype.name)
            disk = min(disk, machine.disk_read)
    return WorkerInfo(
        socket.gethostname(), str(worker.name), options.threads or 1, options.host_bytes or 0,
        rate, disk, time.time(),
    )  # fmt: skip


def _check_same_storage(job: Job) -> None:
    """Compare the journal beside C with the client's."""
    if job.journal is None:
        return
    records, _ = read_journal(job.journal)
    run = records[0].get("begin", {}).get("run") if records else None
    if run != job.run:
        raise InputError(f"{job.journal} is another file here than it is for the client")


def compute_block(job: Job, number: int, block: Rect) -> None:
    """Compute one block of C with the local engine, make it durable, send its receipt.

    Raises
    ------
    HdgemmError
        When the engine fails, as `hdgemm.multiply` does.
    """
    from distributed import get_worker

    worker = get_worker()
    with _KEPT.lock, _cancelled_with_task(worker) as cancel, ExitStack() as stack:
        clock, began = time.time(), time.perf_counter()
        product = job.open(stack)
        recorder = _Recorder(product.destination.matrix)
        part = _block_of(product, block, recorder)
        session = _KEPT.session(job, worker)
        report = compute(part, session.options, Watch(cancel=cancel), session=session)
        recorder.flush()
        receipt = Receipt(
            number=number, block=block, pieces=recorder.pieces(block), began=clock,
            seconds=time.perf_counter() - began, gflops=report.gflops,
            stages={name: stage.to_dict() for name, stage in report.stages.items()},
            events=coalesce(report.timeline.events),
            peak_memory=report.peak_memory_bytes or 0,
        )  # fmt: skip
    worker.log_event(job.topic, receipt.to_message())


def free_memory(run: str) -> None:
    """Close the session that this worker kept for a run."""
    with _KEPT.lock:
        if _KEPT._key == run:  # noqa: SLF001
            _KEPT.close()


def _block_of(product: Product, block: Rect, recorder: _Recorder) -> Product:
    """Return the product of a block's rows of op(A) and columns of op(B)."""
    k = product.k
    old = product.old
    return replace(
        product,
        a=_part(product.a, block.row, 0, (block.rows, k)),
        b=_part(product.b, 0, block.col, (k, block.cols)),
        c=Operand(recorder.part(block.row, block.col, (block.rows, block.cols))),
        old=None if old is None else _part(old, *block[:2], (block.rows, block.cols)),
    )


def _part(operand: Operand, row: int, col: int, shape: tuple[int, int]) -> Operand:
    """Return a rectangle of op(X)."""
    if operand.trans:
        row, col, shape = col, row, shape[::-1]
    return replace(operand, matrix=operand.matrix.part(row, col, shape))


class _Recorder(Wrapper):
    """C with the checksum of each rectangle that is written, in the order of C's rows."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__(matrix)
        self._pieces: dict[Rect, int] = {}

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Write a rectangle and record its checksum."""
        stored = as_stored(tile, self.dtype)
        self._matrix.write(row, col, stored)
        self._pieces[Rect(row, col, *tile.shape)] = checksum(stored)

    def pieces(self, block: Rect) -> list[tuple[Rect, int]]:
        """Return the rectangles written and their checksums.

        Raises
        ------
        HdgemmError
            When they are not all of the block.
        """
        elements = sum(rect.rows * rect.cols for rect in self._pieces)
        if elements != block.rows * block.cols:
            raise HdgemmError(
                f"{elements} of the {block.rows * block.cols} elements of {block} were stored"
            )
        return sorted(self._pieces.items())


@contextmanager
def _cancelled_with_task(worker: Any) -> Iterator[threading.Event]:
    """Yield an event that is set when Dask no longer wants the task of this thread.

    It does not when the client has cancelled or is gone, or when the scheduler has given the
    worker up. Without this the thread would go on, and write to a C that others compute.
    """
    key = worker.get_current_task()
    cancel, done = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(_ASK_SECONDS):
            task = worker.state.tasks.get(key)
            if task is None or task.state != "executing":
                cancel.set()
                return

    thread = threading.Thread(target=watch, name="hdgemm-task", daemon=True)
    thread.start()
    try:
        yield cancel
    finally:
        done.set()
        thread.join()
