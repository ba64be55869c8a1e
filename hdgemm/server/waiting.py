"""The queue as its users see it: running jobs, waiting jobs in order, the reasons for waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from hdgemm.server import leases
from hdgemm.server.documents import iso
from hdgemm.server.leases import Capacity
from hdgemm.server.tables import UNFINISHED, Job, Token, Use, WorkerRow
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.server.leases import Waiting

#: A worker that was not seen for longer does not count.
_SILENT_SECONDS: Final = 30.0
#: Start times are estimated for so many jobs at the head of the queue.
_MOST_ESTIMATED: Final = 200


@dataclass(frozen=True)
class Place:
    """A waiting job, the number of jobs before it, its reason, and its estimated start.

    `starts_in` is in seconds; None where the time of a job before it is not known.
    """

    job: Job
    ahead: int
    reason: str
    starts_in: float | None


def running(conn: sa.Connection, owner: str) -> list[dict[str, Any]]:
    """Describe all running jobs, without name and identifier where the owner is another one."""
    query = (
        sa.select(Job.id, Job.owner, Job.process, Job.name, Job.priority, Job.devices,
                  Job.host_bytes, Job.started, Job.phase, Job.progress, Job.worker, Token.name)
        .join(Token, Token.id == Job.owner, isouter=True)
        .where(Job.status == "running")
        .order_by(Job.seq)
    )  # fmt: skip
    described = []
    for job in conn.execute(query):
        mine, progress = job.owner == owner, job.progress or {}
        described.append(
            {"jobID": job.id if mine else None, "name": job.name if mine else None,
             "owner": job[-1] or "", "mine": mine, "processID": job.process,
             "priority": job.priority, "devices": job.devices, "host_bytes": job.host_bytes,
             "started": iso(job.started), "phase": job.phase, "worker": job.worker,
             "percent": progress.get("percent", 0.0), "eta": progress.get("eta")}
        )  # fmt: skip
    return described


def places(
    conn: sa.Connection, owner: str, now: float, *, offset: int, limit: int
) -> tuple[list[Place], int, int]:
    """Return an owner's waiting jobs in the order of the queue.

    Parameters
    ----------
    offset, limit
        The first of them to be returned, and how many.

    Returns
    -------
    tuple
        The jobs, how many wait of this owner, and how many of all.
    """
    queues = leases.queues(conn, now)
    workers = capacities(conn, now)
    estimates = _estimates(conn, queues, len(workers))
    found: list[Place] = []
    ahead = own = 0
    for queue in queues:
        if queue.owner == owner:
            skipped = max(0, offset - own)
            if skipped < queue.count and len(found) < limit:
                page = _page(conn, queue, skipped, limit - len(found))
                found += [
                    _place(conn, job, ahead + skipped + number, workers, estimates)
                    for number, job in enumerate(page)
                ]
            own += queue.count
        ahead += queue.count
    return found, own, ahead


def counts(conn: sa.Connection, owner: str) -> dict[str, int]:
    """Return how many jobs an owner has by status."""
    query = sa.select(Job.status, sa.func.count()).where(Job.owner == owner).group_by(Job.status)
    return {status: int(count) for status, count in conn.execute(query)}


def capacities(conn: sa.Connection, now: float) -> list[Capacity]:
    """Return the memory and devices of each worker, and those that are free."""
    held: dict[str | None, list[Any]] = {}
    query = sa.select(Job.worker, Job.host_bytes, Job.devices).where(Job.status == "running")
    for row in conn.execute(query):
        held.setdefault(row.worker, []).append(row)
    query = sa.select(WorkerRow.id, WorkerRow.memory, WorkerRow.devices)
    found = []
    for worker in conn.execute(query.where(WorkerRow.seen > now - _SILENT_SECONDS)):
        running = held.get(worker.id, [])
        found.append(Capacity.of(worker.id, worker.memory, worker.devices, running))
    return found


def _page(conn: sa.Connection, queue: leases.Queue, offset: int, limit: int) -> list[Job]:
    query = sa.select(Job).where(
        Job.status == "accepted", Job.priority == queue.priority, Job.owner == queue.owner
    )
    rows = conn.execute(query.order_by(Job.seq).offset(offset).limit(limit))
    return [Job.of(row) for row in rows]


def _place(
    conn: sa.Connection,
    job: Job,
    ahead: int,
    workers: Sequence[Capacity],
    estimates: Sequence[float | None],
) -> Place:
    wanted = (job.inputs.get("options") or {}).get("host_memory")
    waiting = leases.Waiting(
        job.id, job.fence, job.host_bytes, job.devices, job.started, wanted is None
    )
    unfinished = (
        sa.select(Job.id, Job.status)
        .join(Use, Use.target == Job.id)
        .where(Use.job == job.id, Use.kind == "job", Job.status.in_(UNFINISHED))
    )
    source = conn.execute(unfinished.limit(1)).one_or_none()
    if source is not None:
        state = "waiting" if source.status == "accepted" else source.status
        return Place(job, ahead, f"its input, job {source.id[:8]}, is {state}", None)
    starts_in = estimates[ahead] if ahead < len(estimates) and workers else None
    return Place(job, ahead, _reason(waiting, workers, ahead), starts_in)


def _reason(job: Waiting, workers: Sequence[Capacity], ahead: int) -> str:
    """Return the reason why a job with complete inputs waits."""
    before = f"{ahead} {'job is' if ahead == 1 else 'jobs are'} before it" if ahead else ""
    if not workers:
        return "no worker is running"
    devices = set(job.devices) - {"auto"}
    equipped = [worker for worker in workers if devices <= worker.all_devices]
    if not equipped:
        return f"no running worker has {' and '.join(sorted(devices))}"
    roomy = [w for w in equipped if job.needs(w.all_memory) <= w.all_memory]
    if not roomy:
        most = format_size(max(worker.all_memory for worker in equipped))
        return f"it needs {format_size(job.host_bytes)} of memory, the largest worker has {most}"
    able = [worker for worker in roomy if worker.could_run(job)]
    if not able:
        busy = " and ".join(sorted(devices)) or "every device"
        return f"{busy} is busy" + (f"; {before}" if before else "")
    free = max(worker.free_memory for worker in able)
    if all(job.needs(worker.all_memory) > worker.free_memory for worker in able):
        return f"it needs {format_size(job.host_bytes)} of memory, {format_size(free)} are free"
    return before or "it starts within seconds"


def _estimates(
    conn: sa.Connection, queues: Sequence[leases.Queue], workers: int
) -> list[float | None]:
    """Return seconds until the first jobs of the queue start, in its order.

    The work of the running jobs and of the jobs before it is divided by the number of workers.
    """
    query = sa.select(Job.progress, Job.plan["expected_seconds"].as_float())
    seconds: float | None = 0.0
    for progress, expected in conn.execute(query.where(Job.status == "running")):
        left = (progress or {}).get("eta")
        seconds = _sum(seconds, expected if left is None else left)
    found: list[float | None] = []
    expected_seconds = sa.select(Job.plan["expected_seconds"].as_float())
    for queue in queues:
        rows = conn.execute(
            expected_seconds.where(
                Job.status == "accepted", Job.priority == queue.priority, Job.owner == queue.owner
            )
            .order_by(Job.seq)
            .limit(_MOST_ESTIMATED - len(found))
        )
        for (expected,) in rows:
            found.append(None if seconds is None else seconds / max(1, workers))
            seconds = _sum(seconds, expected)
        if len(found) >= _MOST_ESTIMATED:
            break
    return found


def _sum(seconds: float | None, more: float | None) -> float | None:
    return None if seconds is None or more is None else seconds + more
