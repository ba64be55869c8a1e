"""The tasks that a coordinator has submitted to Dask and that have not ended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdgemm.cluster.task import compute_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.cluster.job import AnyJob
    from hdgemm.pipeline.plan import Rect


@dataclass(frozen=True, slots=True)
class Task:
    """A block that a worker computes, or that waits there."""

    worker: str
    block: Rect
    future: Any


class Tasks:
    """Tasks by number; numbers are given in the order of submission."""

    def __init__(self, client: Any, job: AnyJob) -> None:
        self._client = client
        self._topic = job.topic
        self._name = f"hdgemm-{job.run}-{job.topic[-8:]}"
        self._tasks: dict[int, Task] = {}
        self._submitted = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def send(self, address: str, blocks: Sequence[Rect], share: float) -> None:
        """Submit blocks to a worker, as one message.

        Parameters
        ----------
        share
            Bytes/s of the storage that the worker may count on. It is rounded to a power of two, so
            that the worker's plans stay the same while workers come and go.
        """
        first = self._submitted
        self._submitted += len(blocks)
        numbers = range(first, self._submitted)
        count = len(blocks)
        futures = self._client.map(
            compute_block, [self._topic] * count, numbers, blocks,
            [2.0 ** round(math.log2(max(1.0, share)))] * count,
            workers=[address], pure=False, retries=0, priority=-first,
            key=[f"{self._name}-{number}" for number in numbers],
        )  # fmt: skip
        for number, block, future in zip(numbers, blocks, futures, strict=True):
            self._tasks[number] = Task(address, block, future)

    def pop(self, number: int) -> Task | None:
        """Return a task, which has ended; None for one that was given up before."""
        return self._tasks.pop(number, None)

    def ended(self) -> list[int]:
        """Return the tasks that Dask reports as finished, failed or lost."""
        return [n for n, task in self._tasks.items() if task.future.status != "pending"]

    def cancel(self, address: str | None = None) -> None:
        """Give up the tasks of a worker, or all of them."""
        for number, task in list(self._tasks.items()):
            if address is None or task.worker == address:
                del self._tasks[number]
                task.future.cancel()
