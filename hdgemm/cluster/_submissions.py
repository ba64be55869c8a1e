"""The tasks that a coordinator has submitted to Dask, and the receipts that they send.

Blocks of one worker that are submitted together are one message. A receipt is an event of the
scheduler, so that nothing is asked of a worker's memory.
"""

from __future__ import annotations

import math
import queue
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from hdgemm.cluster._marks import BlockTask
from hdgemm.cluster.receipts import Receipt
from hdgemm.cluster.task import compute_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.cluster._marks import Mark
    from hdgemm.cluster._panel_job import AnyJob
    from hdgemm.pipeline.tiles import Rect


#: Longest wait for the error of a failed task, in seconds; the client has it already.
_ERROR_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Submission:
    """A block that a worker computes, or that waits there; `marked` where it has a mark."""

    worker: str
    block: Rect
    future: Any
    marked: bool


class Submissions:
    """Tasks by number, in the order of submission; a context in which their receipts are heard.

    At its end all tasks are cancelled: the workers stop after at most one operation per lane.
    """

    def __init__(self, client: Any, job: AnyJob) -> None:
        self._client = client
        self._topic = job.topic
        self._name = f"hdgemm-{job.run}-{job.topic[-8:]}"
        self._tasks: dict[int, Submission] = {}
        self._submitted = 0
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        # Dask's thread calls it with the time and the message.
        self._client.subscribe_topic(self._topic, lambda event: self._heard.put(event[1]))
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # what the client raises when it has lost the scheduler
            self.cancel()
            self._client.unsubscribe_topic(self._topic)

    def __len__(self) -> int:
        return len(self._tasks)

    def send(
        self, address: str, blocks: Sequence[Rect], share: float, marks: Sequence[Mark | None]
    ) -> None:
        """Submit blocks to a worker, as one message, each with its mark or None.

        `share`, the bytes/s of the storage that the worker may count on, is rounded to a power of
        two, so that the worker's plans stay the same while workers come and go.
        """
        first = self._submitted
        self._submitted += len(blocks)
        numbers = range(first, self._submitted)
        share = 2.0 ** round(math.log2(max(1.0, share)))
        tasks = [
            BlockTask(number, block, share, mark)
            for number, block, mark in zip(numbers, blocks, marks, strict=True)
        ]
        futures = self._client.map(
            compute_block,
            [self._topic] * len(tasks),
            tasks,
            workers=[address],
            pure=False,
            retries=0,
            priority=-first,
            key=[f"{self._name}-{number}" for number in numbers],
        )
        for task, future in zip(tasks, futures, strict=True):
            marked = task.mark is not None
            self._tasks[task.number] = Submission(address, task.block, future, marked)

    def pop(self, number: int) -> Submission | None:
        """Return a task, which has ended; None for one that was given up before."""
        return self._tasks.pop(number, None)

    def ended(self) -> list[int]:
        """Return the tasks that Dask reports as finished, failed or lost."""
        return [n for n, task in self._tasks.items() if task.future.status != "pending"]

    def receipts(self, seconds: float) -> list[Receipt]:
        """Wait for receipts at most so long; return all there are."""
        heard = []
        try:
            heard.append(self._heard.get(timeout=seconds))
            while True:
                heard.append(self._heard.get_nowait())
        except queue.Empty:
            return [Receipt.from_message(message) for message in heard]

    def error(self, task: Submission) -> BaseException | None:
        """Return the error of a task that has failed; None for one that was lost or given up."""
        if task.future.status != "error":
            return None
        with suppress(TimeoutError):
            error: BaseException | None = task.future.exception(_ERROR_SECONDS)
            return error
        return None

    def cancel(self, address: str | None = None) -> None:
        """Give up the tasks of a worker, or all of them."""
        for number, task in list(self._tasks.items()):
            if address is None or task.worker == address:
                del self._tasks[number]
                task.future.cancel()
