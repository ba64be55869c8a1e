"""The functions that Dask workers run: inspect the worker, compute one block of C, free memory.

A block goes from storage to storage. What returns to the client is a receipt, sent as an event of
the scheduler: it reaches the client before Dask reports the task as finished, and needs no other
transfer, so that a worker that dies afterwards takes nothing with it.
"""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hdgemm.cluster._job import Extents, Process, WorkerInfo
from hdgemm.cluster._lease import lease_of
from hdgemm.errors import HdgemmError
from hdgemm.machine.limits import default_host_bytes
from hdgemm.progress import Callbacks
from hdgemm.run.members import names_for
from hdgemm.run.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.cluster._job import Described
    from hdgemm.cluster._marks import BlockTask
    from hdgemm.cluster._panel_job import AnyJob
    from hdgemm.options import Options

#: Part of Dask's memory limit that a run may take where the options name no limit.
_MEMORY_PART: Final = 0.6
#: Jobs that a worker knows at a time; one that was forgotten is asked for again.
_MOST_JOBS: Final = 64
#: Seconds between two questions whether Dask still wants the block.
_ASK_SECONDS: Final = 0.25
#: States of a task that Dask wants: the latter after it has left Dask's threads.
_WANTED: Final = ("executing", "long-running")


class UnknownJobError(HdgemmError):
    """A block came to a process that was not asked for its description, as it was started again, or
    whose files have changed since then.
    """


class _Known(NamedTuple):
    """A job, and the identities of its files when this process compared them with the client's."""

    job: AnyJob
    files: tuple[tuple[int, int] | None, ...]


class _Kept:
    """The session that this process keeps for the blocks of one run; one task uses it at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._session: Session | None = None
        self._key: Any = None

    def session(self, job: AnyJob | Extents, worker: Any) -> Session:
        """Return the session of a run, opened at its first block."""
        if self._session is None or self._key != job.run:
            self.close()
            self._session = Session(local_options(job.options, worker))
            self._key = job.run
        return self._session

    def close(self) -> None:
        """Free the devices and their memory."""
        if self._session is not None:
            self._session.close()
        self._session = None


_KEPT: Final = _Kept()
#: The jobs of which this process has described itself, by topic: a block then names its job only.
_JOBS: Final[dict[str, _Known]] = {}


def local_options(options: Options, worker: Any) -> Options:
    """Fill in the worker's own threads and memory where the options leave them open."""
    memory = options.host_bytes
    if memory is None:
        memory = default_host_bytes()
        limit = worker.memory_manager.memory_limit
        if limit:
            memory = min(memory, int(_MEMORY_PART * limit))
    return replace(options, threads=options.threads or worker.state.nthreads, host_memory=memory)


def inspect(job: AnyJob | Extents) -> WorkerInfo | HdgemmError:
    """Return what the planner must know of this worker, once it has checked that it reaches the
    storage; or the error when it cannot open an operand, or finds another one than the client does.

    Dask would log an error that is raised. A worker that joins when the run is over may find that
    the draft has got its name.
    """
    from distributed import get_worker

    try:
        return _inspected(job, get_worker())
    except HdgemmError as error:
        return error


def _inspected(job: AnyJob | Extents, worker: Any) -> WorkerInfo:
    with errors_without_causes(), _KEPT.lock, ExitStack() as stack:
        session = _KEPT.session(job, worker)
        session.disk_share = math.inf
        rates = _rates(session, job.described(stack))
        if not isinstance(job, Extents):
            files = _identities(job)
            for reference in job.inputs:
                reference.check(reference.open(stack))
            _JOBS[job.topic] = _Known(job, files)
            for topic in list(_JOBS)[:-_MOST_JOBS]:  # of clients that were killed
                del _JOBS[topic]
        options = session.options
    return WorkerInfo(
        socket.gethostname(),
        str(worker.name),
        options.threads or 1,
        options.host_bytes or 0,
        *rates,
        time.time(),
    )


def _rates(session: Session, described: Described) -> tuple[float, float]:
    """Return the flop/s of all devices together, and the bytes/s of the disk."""
    options = session.options
    rate, disk = 0.0, math.inf
    for name in names_for(options, described.flops):
        spec = session.device(name, options).spec
        machine = session.machine(spec, described.problem(spec), described.folder, options.threads)
        rate += machine.flop_rate(described.dtype)
        disk = min(disk, machine.disk_read)
    return rate, disk


def _identities(job: AnyJob) -> tuple[tuple[int, int] | None, ...]:
    """Return the identities of all files of a job, as this machine sees them now."""
    output = () if job.output is None else (job.output,)
    return tuple(reference.identity() for reference in (*job.inputs, *output))


def compute_block(topic: str, task: BlockTask) -> None:
    """Compute one block of C with the local engine, make it durable, send its receipt.

    Raise `UnknownJobError` when this process has not described itself for the job, or sees other
    files since; `WrongOutputError` when its C is not the client's.
    """
    from distributed import get_worker, secede

    worker = get_worker()
    known = _JOBS.get(topic)
    if known is None or _identities(known.job) != known.files:
        raise UnknownJobError(f"this process does not know the job {topic}, or its files")
    job = known.job
    with errors_without_causes(), ExitStack() as stack:
        with _KEPT.lock, cancelled_with_task(worker) as cancel:
            clock, began = time.time(), time.perf_counter()
            session = _KEPT.session(job, worker)
            session.disk_share = task.share
            lease = lease_of(worker)
            process = Process(session, Callbacks(cancel=cancel), stack, lease.renew)
            receipt, c = job.compute(task, process)
            receipt = replace(receipt, began=clock, seconds=time.perf_counter() - began)
        # The worker computes its next block while this one becomes durable.
        secede()  # type: ignore[no-untyped-call]
        c.sync()
    worker.log_event(job.topic, asdict(receipt))


async def free_memory(run: str) -> None:
    """Close the session that this worker kept for a run, and forget the run's jobs."""
    await asyncio.to_thread(_free, run)


def _free(run: str) -> None:
    with _KEPT.lock:
        for topic in [topic for topic, known in _JOBS.items() if known.job.run == run]:
            del _JOBS[topic]
        if _KEPT._key == run:  # noqa: SLF001
            _KEPT.close()


@contextmanager
def errors_without_causes() -> Iterator[None]:
    """Remove the causes of errors: some cannot be unpickled by the client."""
    try:
        yield
    except HdgemmError as error:
        error.__cause__ = error.__context__ = None
        raise


@contextmanager
def cancelled_with_task(worker: Any) -> Iterator[threading.Event]:
    """Yield an event that is set when Dask no longer wants the task of this thread.

    It does not when the client has cancelled or is gone, or when the scheduler has given the
    worker up. Without this the thread would go on, and write to a C that others compute.
    """
    key = worker.get_current_task()
    cancel, done = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(_ASK_SECONDS):
            task = worker.state.tasks.get(key)
            if task is None or task.state not in _WANTED:
                cancel.set()
                return

    thread = threading.Thread(target=watch, name="hdgemm-task", daemon=True)
    thread.start()
    try:
        yield cancel
    finally:
        done.set()
        thread.join()
