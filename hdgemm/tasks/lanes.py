"""Lanes: the threads that run issued tasks, on the host or by enqueueing on a device."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from hdgemm.tasks.capability import HOST
from hdgemm.tasks.transfers import DeviceTiles

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.protocol import Completion, FactorDevice
    from hdgemm.tasks.dispatcher import Issued
    from hdgemm.tasks.runtime import Runtime
    from hdgemm.tasks.transfers import Transfer, Transfers

#: Tasks that a device has enqueued beside the one that it runs.
AHEAD: Final = 1


class Job(NamedTuple):
    """A task to run, the moves that its lane must enqueue, and those that bring its tiles."""

    issued: Issued
    planned: list[Transfer]
    arriving: list[Transfer]


def run_on_host(source: Runtime, transfers: Transfers) -> None:
    """Run tasks on the host, one at a time, until there are no more."""
    job = source.next(HOST, None)
    while job is not None:
        for transfer in job.planned:
            transfers.enqueue(transfer)
        for transfer in job.arriving:
            transfers.wait(transfer).wait()
        kernel = job.issued.task.kernel
        start = time.perf_counter()
        assert kernel.host is not None, kernel.kind  # noqa: S101  (only virtual time has none)
        kernel.host()
        source.record(job.issued, start, time.perf_counter())
        job = source.next(HOST, job.issued)


class DeviceLane:
    """Enqueues the tasks of one device; `AHEAD` of them wait on the device for the running one."""

    def __init__(
        self, name: str, device: FactorDevice, source: Runtime, transfers: Transfers
    ) -> None:
        self._name, self._source, self._transfers = name, source, transfers
        self._tiles = DeviceTiles(name, device, transfers)
        self._enqueued: deque[tuple[Job, list[Completion], float]] = deque()

    def run(self) -> None:
        """Run tasks until there are no more."""
        finished: Issued | None = None
        while True:
            job = self._source.next(self._name, finished, issued=bool(self._enqueued))
            finished = None
            if job is not None:
                self._enqueue(job)
            elif not self._enqueued:
                return
            if job is None or len(self._enqueued) > AHEAD:
                finished = self._retire()

    def close(self) -> None:
        """Free the lane's own device memory; nothing enqueued uses it any more."""
        self._tiles.free()

    def _enqueue(self, job: Job) -> None:
        for transfer in job.planned:
            self._transfers.enqueue(transfer)
        after = [self._transfers.wait(transfer) for transfer in job.arriving]
        kernel = job.issued.task.kernel
        start = time.perf_counter()
        assert kernel.device is not None, kernel.kind  # noqa: S101  (it has no weight here)
        kernel.device(self._tiles, after)
        self._enqueued.append((job, self._tiles.take(), start))

    def _retire(self) -> Issued:
        """Wait for all operations of the oldest enqueued task, of which each can fail."""
        job, completions, start = self._enqueued.popleft()
        for transfer in job.arriving:
            self._transfers.retire(transfer)
        for completion in completions:
            completion.wait()
        intervals = [found for each in completions if (found := each.interval()) is not None]
        start = intervals[0][0] if intervals else start
        end = intervals[-1][1] if intervals else time.perf_counter()
        self._source.record(job.issued, start, end)
        return job.issued
