"""The client's loop: blocks go out to workers, receipts come back to the journal.

The loop runs in the caller's thread; Dask's thread puts receipts into a queue. The states of tasks
are looked at now and then, not awaited one by one, which keeps the cost of a block below a
millisecond.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from numpy.linalg import LinAlgError

from hdgemm.cluster._marks import Marks, WrongOutputError
from hdgemm.cluster._submissions import Submission, Submissions
from hdgemm.cluster._suspects import Suspects
from hdgemm.cluster._workers import Workers
from hdgemm.cluster.connection import ClusterError, Scheduler
from hdgemm.cluster.task import UnknownJobError, free_memory
from hdgemm.errors import CancelledRunError, NotFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hdgemm.cluster._checkpoint import ClusterCheckpoint
    from hdgemm.cluster._panel_job import AnyJob
    from hdgemm.cluster.blocks import BlockPool
    from hdgemm.cluster.receipts import Receipt
    from hdgemm.progress import Callbacks

_LOG: Final = logging.getLogger(__name__)
#: Seconds between two looks at the list of workers and at the states of tasks.
_LOOK_SECONDS: Final = 0.5
#: Longest sleep of the loop, in seconds: how late it sees a cancel; while workers are asked for
#: their descriptions, how late it sees an answer.
_SLEEP_SECONDS: Final = 0.1
_ASKING_SECONDS: Final = 0.01
#: A worker that fails so many blocks in a row takes no further part.
_MOST_FAILURES: Final = 2
#: A worker of an earlier client that has not answered for so many seconds stops a run that goes on.
_SILENCE_SECONDS: Final = 600.0
#: Seconds between two warnings that no worker takes part.
_WARN_SECONDS: Final = 60.0
#: Errors of a block that say something of the matrix: another worker would meet them too.
_FATAL: Final = (LinAlgError, NotFiniteError)
#: Workers lost in a row, without a finished block between, beside those that a cluster has.
_MOST_LOSSES: Final = 10


class Coordinator:
    """Pools of blocks on their way through a cluster, one after the other.

    A context: when it is left, the workers free what they keep for the run, and `seconds` is
    the run's wall time. An element of a block takes `itemsize` bytes of C's part of a worker's
    memory. `bandwidth` are the bytes/s of the storage; None: as much as
    the workers measure.
    """

    pool: BlockPool
    seconds = 0.0

    def __init__(
        self,
        client: Any,
        job: AnyJob,
        checkpoint: ClusterCheckpoint,
        callbacks: Callbacks,
        show: Callable[[Coordinator], None],
        *,
        itemsize: int,
        bandwidth: float | None = None,
    ) -> None:
        self.workers = Workers(client, job)
        self._scheduler = Scheduler(
            client,
            f"finished blocks are recorded in {checkpoint.path}, and the same command goes "
            "on with a new scheduler",
        )
        self.receipts: list[Receipt] = []
        #: `time.time` at the start of the run.
        self.began = time.time()
        self._start = time.perf_counter()
        #: Elements of all pools so far.
        self.elements = 0
        #: The part of all work that an earlier run had done.
        self.part_before = math.nan
        self._span = 0.0, 1.0
        self._client = client
        self._job = job
        self._checkpoint = checkpoint
        self._callbacks = callbacks
        self._flops_per_element = 1
        self._itemsize = itemsize
        self._measures_storage = bandwidth is None
        self._show = show
        self._tasks = Submissions(client, job)
        #: Workers whose queues may have room.
        self._idle: set[str] = set()
        self._failures: dict[str, int] = {}
        self._marks = Marks(checkpoint.output.matrix, job)
        self._suspects = Suspects(checkpoint, job)
        self._looked = -math.inf
        self._losses = 0
        self._warned = time.monotonic()
        self._last_error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let workers and scheduler free what they keep for the run; a lost one is no error."""
        self.seconds = time.perf_counter() - self._start
        with suppress(Exception):
            self.workers.close()
            self._scheduler.start_on(self.workers.joined, free_memory, self._job.run)
        with suppress(Exception):
            self._scheduler.forget_topic(self._job.topic)

    def run(
        self, pool: BlockPool, flops_per_element: int, span: tuple[float, float] = (0.0, 1.0)
    ) -> None:
        """Return when every block of a pool is durable and recorded.

        Parameters
        ----------
        flops_per_element
            Flop of an element of C.
        span
            The parts of all work that are done before and after the pool.

        Raises
        ------
        ClusterError
            When the scheduler is lost, or no worker can take part.
        CancelledRunError
            When the caller asked for it.
        HdgemmError
            What the last worker reported, when all have failed; at once what says something of the
            matrix.
        """
        self.pool, self._flops_per_element, self._span = pool, flops_per_element, span
        self.elements += pool.total
        if math.isnan(self.part_before):
            self.part_before = self.part_done
        for address in self.workers.joined:
            self._join(address)
        with self._scheduler.connected(), self._tasks:
            while self.pool.left or self._suspects.put_back(self.pool):
                self._check()
                ended = self._look()
                self._submit()
                asking = self.workers.waiting
                self._take(self._tasks.receipts(_ASKING_SECONDS if asking else _SLEEP_SECONDS))
                for number in ended:  # without a receipt: failed, or given up by Dask
                    if (task := self._tasks.pop(number)) is not None:
                        self._fail(task)

    @property
    def part_done(self) -> float:
        """The part of all work that is done."""
        first, last = self._span
        return first + (last - first) * (1 - self.pool.left / max(1, self.pool.total))

    @property
    def on_the_way(self) -> int:
        """Blocks that are computed or wait at a worker."""
        return len(self._tasks)

    def _check(self) -> None:
        if self._callbacks.cancelled:
            raise CancelledRunError("the run was cancelled; the same call goes on with it")
        self._scheduler.check()

    def _look(self) -> list[int]:
        """Compare the workers that are there with those that take part; return the tasks that have
        ended, whose receipts are in the queue already.
        """
        ended = []
        if time.monotonic() >= self._looked + _LOOK_SECONDS:
            self._looked = time.monotonic()
            gone = self.workers.update(self._scheduler.addresses())
            if gone:  # their last receipts are in the queue
                self._take(self._tasks.receipts(0.0))
            for address in gone:
                self._lose(address)
                self._losses += 1
            ended = self._tasks.ended()
        for address in self.workers.answers():
            self._join(address)
        self.pool.expected = self.workers.count
        self._give_up()
        return ended

    def _join(self, address: str) -> None:
        info = self.workers.joined[address]
        rate = info.flop_rate / self._flops_per_element
        self.pool.join(address, rate, info.most_elements(self._itemsize))
        self._idle.add(address)
        if self._measures_storage:
            self.pool.bandwidth = info.disk_read

    def _give_up(self) -> None:
        """Raise when no worker can take part; a cluster without workers may get some."""
        if self._losses > _MOST_LOSSES + 2 * len(self.workers.known):
            raise ClusterError(
                f"{self._losses} workers were lost in a row before one finished a block: their "
                "logs, or Dask's dashboard, say why (memory limit?)"
            )
        if self.pool.workers:
            self._warned = time.monotonic()
            return
        if not self.workers.refused or self.workers.waiting:
            if time.monotonic() >= self._warned + _WARN_SECONDS:
                self._warned = time.monotonic()
                _LOG.warning("no worker takes part yet: %s", self.workers.reasons())
            return
        if self._last_error is not None:
            raise self._last_error
        raise ClusterError(f"no worker can take part: {self.workers.reasons()}")

    def _lose(self, address: str) -> None:
        """Give the blocks of a worker that is gone to the others."""
        unfinished = self.pool.leave(address) if address in self.pool else []
        self._suspects.add(address, unfinished, self.receipts)
        self._tasks.cancel(address)
        self._failures.pop(address, None)
        self._marks.forget(address)
        self._idle = set(self.pool.workers)

    def _submit(self) -> None:
        if self._checkpoint.resumed and self.workers.waiting:
            # Tasks of the client before this one may still run; a worker answers after them.
            if silent := self.workers.silent(_SILENCE_SECONDS):
                raise ClusterError(
                    f"{', '.join(silent)}: no answer for {_SILENCE_SECONDS:.0f} s, may still "
                    "compute blocks of the client before this one; retire it or wait for its end, "
                    "then give the same command"
                )
            return
        while self._idle and self.pool.undrawn:
            address = self._idle.pop()
            blocks = self.pool.refill(address)
            if blocks:
                share = self.pool.bandwidth / len(self.pool.workers)
                self._tasks.send(address, blocks, share, self._marks.place(address, blocks))

    def _take(self, heard: Iterable[Receipt]) -> None:
        receipts = []
        for receipt in heard:
            task = self._tasks.pop(receipt.number)
            if task is not None:
                receipts.append(receipt)
                self.pool.finished(task.worker, task.block, receipt.seconds)
                self._failures.pop(task.worker, None)
                if task.marked:
                    self._marks.read_by(task.worker)
                self._idle.add(task.worker)
        if receipts:
            self._losses = 0
            self._checkpoint.record_blocks(receipts)
            self.receipts += receipts
            self._show(self)

    def _fail(self, task: Submission) -> None:
        """Return the block of a task that has ended, and judge its error."""
        if task.worker not in self.pool:
            return
        self.pool.failed(task.worker, task.block)
        self._idle = set(self.pool.workers)
        error = self._tasks.error(task)
        if error is None:
            return
        if isinstance(error, _FATAL):
            raise error
        if isinstance(error, UnknownJobError):  # another process has the address now
            self._lose(task.worker)
            self.workers.forget(task.worker)
            return
        failures = self._failures[task.worker] = self._failures.get(task.worker, 0) + 1
        other_file = isinstance(error, WrongOutputError)
        if not other_file:
            self._last_error = error
        if other_file or failures >= _MOST_FAILURES:
            self._lose(task.worker)
            self.workers.exclude(task.worker, f"{type(error).__name__}: {error}")
