"""The client's loop: blocks go out to workers, receipts come back to the journal.

The loop runs in the caller's thread. Dask's thread puts what it hears into one queue. Nothing is
asked of a worker's memory: a receipt is an event, and a finished task only says that its receipt
has come.
"""

from __future__ import annotations

import math
import queue
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hdgemm.cluster.receipts import Receipt
from hdgemm.cluster.task import compute_block
from hdgemm.cluster.workers import ClusterError, Workers
from hdgemm.errors import CancelledRunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hdgemm.cluster.blocks import BlockPool
    from hdgemm.cluster.checkpoint import ClusterCheckpoint
    from hdgemm.cluster.job import Job
    from hdgemm.pipeline.plan import Rect
    from hdgemm.progress import Watch

#: Blocks that a worker has at a time: one that it computes, one that waits there.
_DEPTH: Final = 2
#: Seconds between two looks at the list of workers.
_LOOK_SECONDS: Final = 0.5
#: Longest wait for the scheduler's list of workers, in seconds.
_ANSWER_SECONDS: Final = 2.0
#: Longest sleep of the loop, in seconds: how late it sees a cancel.
_SLEEP_SECONDS: Final = 0.1
#: A worker that fails so many blocks in a row takes no further part.
_MOST_FAILURES: Final = 2
#: Workers lost in a row, without a finished block between, beside those that a cluster has.
_MOST_LOSSES: Final = 10


@dataclass
class _Task:
    """A block on its way."""

    worker: str
    block: Rect
    future: Any


@dataclass
class Tally:
    """What has happened so far."""

    receipts: list[Receipt] = field(default_factory=list)
    submitted: int = 0
    lost: int = 0
    failed: int = 0


class Coordinator:
    """One product on its way through a cluster.

    Parameters
    ----------
    flops_per_element
        Flop of an element of C.
    itemsize
        Bytes of an element of C.
    measures_storage
        Take the bandwidth of the storage from what the workers measure.
    shown
        Called with the tally after each change.
    """

    def __init__(
        self,
        client: Any,
        job: Job,
        pool: BlockPool,
        checkpoint: ClusterCheckpoint,
        watch: Watch,
        *,
        flops_per_element: int,
        itemsize: int,
        measures_storage: bool = False,
        shown: Callable[[Coordinator], None] = lambda _: None,
    ) -> None:
        self.pool = pool
        self.workers = Workers(client, job)
        self.tally = Tally()
        #: `time.time` at the start of the run.
        self.began = 0.0
        self._client = client
        self._job = job
        self._checkpoint = checkpoint
        self._watch = watch
        self._flops_per_element = flops_per_element
        self._itemsize = itemsize
        self._measures_storage = measures_storage
        self._shown = shown
        self._heard: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._tasks: dict[int, _Task] = {}
        self._failures: dict[str, int] = {}
        self._looked = -math.inf
        self._present: set[str] = set()
        self._losses = 0
        self._last_error: BaseException | None = None

    def run(self) -> None:
        """Return when every block of C is durable and recorded.

        Raises
        ------
        ClusterError
            When the scheduler is lost, or no worker can take part.
        CancelledRunError
            When the caller asked for it.
        HdgemmError
            What the last worker reported, when all have failed.
        """
        self.began = time.time()
        self._client.subscribe_topic(self._job.topic, self._hear)
        try:
            while self.pool.left:
                self._check()
                self._look()
                self._submit()
                self._take(self._listen())
        finally:
            self._stop()

    @property
    def on_the_way(self) -> int:
        """Blocks that are computed or wait at a worker."""
        return len(self._tasks)

    def _hear(self, event: Any) -> None:
        """Queue a receipt; called by Dask's thread."""
        self._heard.put(("receipt", event[1]))

    def _check(self) -> None:
        if self._watch.cancelled:
            raise CancelledRunError("the run was cancelled; the same call goes on with it")
        if self._client.status != "running":
            raise ClusterError(
                f"the scheduler is lost ({self._client.status}): finished blocks are recorded in "
                f"{self._checkpoint.path}, and the same command goes on with a new scheduler"
            )

    def _look(self) -> None:
        """Compare the workers that are there with those that take part."""
        if time.monotonic() >= self._looked + _LOOK_SECONDS:
            self._looked = time.monotonic()
            for address in self.workers.update(self._addresses()):
                self._lose(address)
                self._losses += 1
        for address in self.workers.answers():
            info = self.workers.joined[address]
            rate = info.flop_rate / self._flops_per_element
            self.pool.join(address, rate, info.most_elements(self._itemsize))
            if self._measures_storage:
                self.pool.bandwidth = info.disk_read
        self._give_up()

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
        if address in self.pool.workers:
            self.tally.lost += len(self.pool.leave(address))
        for number in [n for n, task in self._tasks.items() if task.worker == address]:
            self._tasks.pop(number).future.cancel()
        self._failures.pop(address, None)

    def _submit(self) -> None:
        if self._checkpoint.resumed and self.workers.waiting:
            # Tasks of the client before this one may still run; a worker answers after them.
            return
        for address in self.pool.workers:
            while len(self.pool.out(address)) < _DEPTH:
                block = self.pool.draw(address)
                if block is None:
                    return
                self._send(address, block)

    def _send(self, address: str, block: Rect) -> None:
        number = self.tally.submitted
        self.tally.submitted += 1
        future = self._client.submit(
            compute_block, self._job, number, block, workers=[address], pure=False, retries=0,
            key=f"hdgemm-{self._job.run}-{self._job.topic[-8:]}-{number}", priority=-number,
        )  # fmt: skip
        self._tasks[number] = _Task(address, block, future)
        future.add_done_callback(lambda _: self._heard.put(("done", number)))

    def _listen(self) -> list[tuple[str, Any]]:
        """Wait a moment for news; return all there is."""
        heard = []
        try:
            heard.append(self._heard.get(timeout=_SLEEP_SECONDS))
            while True:
                heard.append(self._heard.get_nowait())
        except queue.Empty:
            return heard

    def _take(self, heard: Iterable[tuple[str, Any]]) -> None:
        receipts = []
        for kind, what in heard:
            if kind == "receipt":
                receipt = Receipt.from_message(what)
                if receipt.number in self._tasks:
                    receipts.append(receipt)
                    task = self._tasks.pop(receipt.number)
                    self.pool.finished(task.worker, task.block, receipt.seconds)
                    self._failures.pop(task.worker, None)
            elif what in self._tasks:
                self._fail(self._tasks.pop(what))
        if receipts:
            self._losses = 0
            self._checkpoint.record(receipts)
            self.tally.receipts += receipts
            self._shown(self)

    def _fail(self, task: _Task) -> None:
        """Take a task that ended without a receipt: it failed, or Dask gave it up."""
        if task.worker not in self.pool.workers:
            return
        self.pool.failed(task.worker, task.block)
        self.tally.failed += 1
        if task.future.status != "error":
            return
        self._last_error = error = task.future.exception()
        failures = self._failures[task.worker] = self._failures.get(task.worker, 0) + 1
        if failures >= _MOST_FAILURES:
            self._lose(task.worker)
            self.workers.exclude(task.worker, f"{type(error).__name__}: {error}")

    def _stop(self) -> None:
        """Cancel what is on its way; the workers stop after at most one operation per lane."""
        try:
            for task in self._tasks.values():
                task.future.cancel()
            self._client.unsubscribe_topic(self._job.topic)
        except (OSError, ValueError, RuntimeError):
            return  # the scheduler is gone
