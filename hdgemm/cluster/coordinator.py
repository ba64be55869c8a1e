"""The client's loop: blocks go out to workers, receipts come back to the journal.

The loop runs in the caller's thread; Dask's thread puts receipts into a queue. A receipt is an
event of the scheduler, so that nothing is asked of a worker's memory. Blocks of one worker that are
submitted together are one message, and the states of tasks are looked at now and then, not awaited
one by one: both keep the cost of a block below a millisecond.
"""

from __future__ import annotations

import math
import queue
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from numpy.linalg import LinAlgError

from hdgemm.cluster.receipts import Receipt
from hdgemm.cluster.task import UnknownJobError
from hdgemm.cluster.tasks import Task, Tasks
from hdgemm.cluster.workers import ClusterError, Workers
from hdgemm.errors import CancelledRunError, NotFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hdgemm.cluster.blocks import BlockPool
    from hdgemm.cluster.checkpoint import ClusterCheckpoint
    from hdgemm.cluster.job import AnyJob
    from hdgemm.progress import Watch

#: Seconds between two looks at the list of workers and at the states of tasks.
_LOOK_SECONDS: Final = 0.5
#: Longest wait for the scheduler's list of workers, in seconds.
_ANSWER_SECONDS: Final = 2.0
#: Longest sleep of the loop, in seconds: how late it sees a cancel; while workers are asked for
#: their descriptions, how late it sees an answer.
_SLEEP_SECONDS: Final = 0.1
_ASKING_SECONDS: Final = 0.01
#: A worker that fails so many blocks in a row takes no further part.
_MOST_FAILURES: Final = 2
#: Errors of a block that say something of the matrix: another worker would meet them too.
_FATAL: Final = (LinAlgError, NotFiniteError)
#: Workers lost in a row, without a finished block between, beside those that a cluster has.
_MOST_LOSSES: Final = 10


@dataclass
class Tally:
    """What has happened so far."""

    receipts: list[Receipt] = field(default_factory=list)
    lost: int = 0
    failed: int = 0


class Coordinator:
    """Pools of blocks on their way through a cluster, one after the other.

    Parameters
    ----------
    itemsize
        Bytes of memory that an element of a block takes of C's part of a worker's.
    measures_storage
        Take the bandwidth of the storage from what the workers measure.
    shown
        Called with the coordinator after each change.
    """

    pool: BlockPool

    def __init__(
        self,
        client: Any,
        job: AnyJob,
        checkpoint: ClusterCheckpoint,
        watch: Watch,
        *,
        itemsize: int,
        measures_storage: bool = False,
        shown: Callable[[Coordinator], None] = lambda _: None,
    ) -> None:
        self.workers = Workers(client, job)
        self.tally = Tally()
        #: `time.time` at the start of the run.
        self.began = time.time()
        #: Elements of all pools so far.
        self.elements = 0
        #: Rows and columns of C as it is stored.
        self.shape = checkpoint.c.matrix.shape
        #: The part of all work that an earlier run had done.
        self.part_before = math.nan
        self._span = 0.0, 1.0
        self._client = client
        self._job = job
        self._checkpoint = checkpoint
        self._watch = watch
        self._flops_per_element = 1
        self._itemsize = itemsize
        self._measures_storage = measures_storage
        self._shown = shown
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._tasks = Tasks(client, job)
        #: Workers whose queues may have room.
        self._idle: set[str] = set()
        self._failures: dict[str, int] = {}
        self._looked = -math.inf
        self._present: set[str] = set()
        self._losses = 0
        self._last_error: BaseException | None = None

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
        # Dask's thread calls it with the time and the message.
        self._client.subscribe_topic(self._job.topic, lambda event: self._heard.put(event[1]))
        try:
            while self.pool.left:
                self._check()
                ended = self._look()
                self._submit()
                self._take(self._listen())
                self._drop(ended)
        finally:
            self._stop()

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
        if self._watch.cancelled:
            raise CancelledRunError("the run was cancelled; the same call goes on with it")
        if self._client.status != "running":
            raise ClusterError(
                f"the scheduler is lost ({self._client.status}): finished blocks are recorded in "
                f"{self._checkpoint.path}, and the same command goes on with a new scheduler"
            )

    def _look(self) -> list[int]:
        """Compare the workers that are there with those that take part; return the tasks that have
        ended, whose receipts are in the queue already.
        """
        ended = []
        if time.monotonic() >= self._looked + _LOOK_SECONDS:
            self._looked = time.monotonic()
            for address in self.workers.update(self._addresses()):
                self._lose(address)
                self._losses += 1
            ended = self._tasks.ended()
        for address in self.workers.answers():
            self._join(address)
        self._give_up()
        return ended

    def _join(self, address: str) -> None:
        info = self.workers.joined[address]
        rate = info.flop_rate / self._flops_per_element
        self.pool.join(address, rate, info.most_elements(self._itemsize))
        self._idle.add(address)
        if self._measures_storage:
            self.pool.bandwidth = info.disk_read

    def _addresses(self) -> set[str]:
        try:
            self._present = set(self._client.nthreads(callback_timeout=_ANSWER_SECONDS))
        except TimeoutError:
            self._check()  # a busy scheduler answers later, a lost one shows in the status
        except (OSError, ValueError, RuntimeError) as error:
            self._check()
            raise ClusterError(f"the scheduler does not answer: {error}") from error
        return self._present

    def _give_up(self) -> None:
        """Raise when no worker can take part; a cluster without workers may get some."""
        if self._losses > _MOST_LOSSES + 2 * len(self.workers.known):
            raise ClusterError(
                f"{self._losses} workers were lost in a row before one finished a block: their "
                "logs, or Dask's dashboard, say why (memory limit?)"
            )
        if not self.workers.refused or self.pool.workers or self.workers.waiting:
            return
        if self._last_error is not None:
            raise self._last_error
        raise ClusterError(f"no worker can take part: {self.workers.reasons()}")

    def _lose(self, address: str) -> None:
        """Give the blocks of a worker that is gone to the others."""
        if address in self.pool:
            self.tally.lost += len(self.pool.leave(address))
        self._tasks.cancel(address)
        self._failures.pop(address, None)
        self._idle = set(self.pool.workers)

    def _submit(self) -> None:
        if self._checkpoint.resumed and self.workers.waiting:
            # Tasks of the client before this one may still run; a worker answers after them.
            return
        while self._idle and self.pool.undrawn:
            address = self._idle.pop()
            blocks = self.pool.refill(address)
            if blocks:
                share = self.pool.bandwidth / len(self.pool.workers)
                self._tasks.send(address, blocks, share)

    def _listen(self) -> list[Receipt]:
        """Wait a moment for receipts; return all there are."""
        heard = []
        try:
            wait = _ASKING_SECONDS if self.workers.waiting else _SLEEP_SECONDS
            heard.append(self._heard.get(timeout=wait))
            while True:
                heard.append(self._heard.get_nowait())
        except queue.Empty:
            return [Receipt.from_message(message) for message in heard]

    def _take(self, heard: Iterable[Receipt]) -> None:
        receipts = []
        for receipt in heard:
            task = self._tasks.pop(receipt.number)
            if task is not None:
                receipts.append(receipt)
                self.pool.finished(task.worker, task.block, receipt.seconds)
                self._failures.pop(task.worker, None)
                self._idle.add(task.worker)
        if receipts:
            self._losses = 0
            self._checkpoint.record(receipts)
            self.tally.receipts += receipts
            self._shown(self)

    def _drop(self, ended: Iterable[int]) -> None:
        """Return the blocks of tasks that ended without a receipt: failed, or given up by Dask."""
        for number in ended:
            task = self._tasks.pop(number)
            if task is not None:
                self._fail(task)

    def _fail(self, task: Task) -> None:
        if task.worker not in self.pool:
            return
        self.pool.failed(task.worker, task.block)
        self._idle = set(self.pool.workers)
        self.tally.failed += 1
        if task.future.status != "error":
            return
        error = task.future.exception()
        if isinstance(error, _FATAL):
            raise error
        if isinstance(error, UnknownJobError):  # another process has the address now
            self._lose(task.worker)
            self.workers.forget(task.worker)
            return
        self._last_error = error
        failures = self._failures[task.worker] = self._failures.get(task.worker, 0) + 1
        if failures >= _MOST_FAILURES:
            self._lose(task.worker)
            self.workers.exclude(task.worker, f"{type(error).__name__}: {error}")

    def _stop(self) -> None:
        """Cancel what is on its way; the workers stop after at most one operation per lane."""
        try:
            self._tasks.cancel()
            self._client.unsubscribe_topic(self._job.topic)
        except (OSError, ValueError, RuntimeError):
            return  # the scheduler is gone
