"""Memory and devices of a worker, and whether a queued job fits them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hdgemm.server.tables import Job, WorkerRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


@dataclass(frozen=True)
class Waiting:
    """The columns of a queued job that a claim needs; `elastic` jobs named no memory limit."""

    id: str
    fence: int
    host_bytes: int
    devices: list[str]
    started: float | None
    elastic: bool

    def needs(self, memory: int) -> int:
        """Return the bytes it takes of a worker that has `memory`.

        An elastic job is planned anew for the worker that runs it, and so fits one with less
        memory than it was admitted for.
        """
        return min(self.host_bytes, memory) if self.elastic else self.host_bytes


@dataclass(frozen=True)
class Capacity:
    """The memory in bytes and the devices of a worker, in all and free at this moment."""

    worker: str
    free_memory: int
    all_memory: int
    idle_devices: frozenset[str]
    all_devices: frozenset[str]

    @classmethod
    def of(
        cls, worker: str, memory: int, devices: Iterable[str], running: Collection[Any]
    ) -> Capacity:
        """Return the capacity of a worker beside its running jobs, or the rows of them."""
        every, busy = frozenset(devices), {device for job in running for device in job.devices}
        taken = sum(min(job.host_bytes, memory) for job in running)
        idle = frozenset() if "auto" in busy else every - busy
        return cls(worker, memory - taken, memory, idle, every)

    def could_run(self, job: Waiting) -> bool:
        """Say whether the job fits this worker, and the devices it may take are idle.

        "auto" may take any of them.
        """
        if job.needs(self.all_memory) > self.all_memory:
            return False
        if "auto" in job.devices:
            return self.idle_devices == self.all_devices
        return set(job.devices) <= self.idle_devices

    def beside(self, free_on_machine: int) -> Capacity:
        """Return the capacity where all workers of the machine leave so many bytes free."""
        return replace(self, free_memory=min(self.free_memory, free_on_machine))


def free_on_machines(conn: sa.Connection) -> dict[str, int]:
    """Return for each registered worker the bytes that its machine has free for jobs.

    Each worker may register most of the machine's memory. So the jobs of all workers of a machine
    hold at most as much together as the largest of them may hold. Machines are told by host name.
    """
    found = conn.execute(sa.select(WorkerRow.id, WorkerRow.host, WorkerRow.memory)).all()
    workers = {worker.id: worker for worker in found}
    free: dict[str, int] = {}
    for worker in found:
        free[worker.host] = max(free.get(worker.host, 0), worker.memory)
    running = sa.select(Job.worker, Job.host_bytes).where(Job.status == "running")
    for name, host_bytes in conn.execute(running):
        if name in workers:
            free[workers[name].host] -= min(host_bytes, workers[name].memory)
    return {name: free[worker.host] for name, worker in workers.items()}
