"""`/v1/queue`: running jobs, waiting jobs in order, the reasons for waiting."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final

import sqlalchemy as sa
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from hdgemm.server import leases
from hdgemm.server.capacity import Capacity, Waiting, free_on_machines
from hdgemm.server.documents import StatusInfo, iso
from hdgemm.server.problems import responses
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them
from hdgemm.server.tables import UNFINISHED, Job, Token, Use, WorkerRow
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.server.service import Service
    from hdgemm.server.tokens import Account

router = APIRouter(prefix="/v1/queue", tags=["jobs"])
#: A worker that was not seen for longer does not count.
_SILENT_SECONDS: Final = 30.0
#: A job that is later than this, to start or to end, is late: nothing is known of its time.
_LATE_SECONDS: Final = 5.0
#: Start times are estimated for so many jobs at the head of the queue.
_MOST_ESTIMATED: Final = 200
#: Of so many last jobs the time beside their runs, to start and to publish, is measured.
_LATEST: Final = 20


class WaitingInfo(StatusInfo):
    """A waiting job with its place in the queue."""

    ahead: int = Field(description="Jobs of all tokens before it.")
    reason: str = Field(description="For what it waits.")
    startsIn: float | None = Field(  # noqa: N815 - spelled as OGC's members
        description="Seconds until it starts; null where the time of a job before it is not known"
        " or has passed."
    )


class QueueInfo(BaseModel):
    """The queue: running jobs of all tokens, and a page of this token's waiting ones."""

    running: list[dict[str, Any]] = Field(
        description="Of other tokens' jobs: owner, process, devices, memory, progress, no id."
        " `silent` are the seconds since the job's process renewed its lease."
    )
    waiting: list[WaitingInfo]
    waiting_total: int = Field(description="This token's waiting jobs.")
    waiting_of_all: int
    counts: dict[str, int] = Field(description="This token's jobs by status.")


@router.get("", responses=responses(model=QueueInfo))
async def get_queue(
    service: TheService,
    account: TheAccount,
    offset: Annotated[int, Query(ge=0, le=1 << 31)] = 0,
    limit: Annotated[int, Query(ge=0, le=200)] = 50,
) -> Response:
    """Return the queue as it was at most a tenth of a second ago."""
    key = (account.id, f"queue {offset} {limit}")
    body = await service.statuses.get(key, lambda: _queue(service, account, offset, limit))
    return Response(body, media_type="application/json")


def _queue(service: Service, account: Account, offset: int, limit: int) -> bytes:
    with service.database.read() as conn:
        now = service.database.now(conn)
        found, own, every = _places(conn, account.id, now, offset=offset, limit=limit)
        document = {
            "running": _running(conn, account.id, now, service.settings.lease_seconds),
            "waiting": [
                {**service.documents.status(place.job), "ahead": place.ahead,
                 "reason": place.reason, "startsIn": place.starts_in}
                for place in found
            ],
            "waiting_total": own,
            "waiting_of_all": every,
            "counts": _counts(conn, account.id),
        }  # fmt: skip
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


@dataclass(frozen=True)
class Place:
    """A waiting job, the number of jobs before it, its reason, and its estimated start.

    `starts_in` is in seconds; None where the time of a job before it is not known or has passed.
    """

    job: Job
    ahead: int
    reason: str
    starts_in: float | None


def _running(
    conn: sa.Connection, owner: str, now: float, lease_seconds: float
) -> list[dict[str, Any]]:
    """Describe all running jobs, without name, identifier and inputs of another owner's."""
    query = (
        sa.select(Job.id, Job.owner, Job.process, Job.name, Job.inputs, Job.priority, Job.devices,
                  Job.host_bytes, Job.started, Job.phase, Job.progress, Job.worker,
                  Job.lease_until, Token.name)
        .join(Token, Token.id == Job.owner, isouter=True)
        .where(Job.status == "running")
        .order_by(Job.seq)
    )  # fmt: skip
    described = []
    for job in conn.execute(query):
        mine, progress = job.owner == owner, job.progress or {}
        described.append(
            {"jobID": job.id if mine else None, "name": job.name if mine else None,
             "inputs": job.inputs if mine else None,
             "owner": job[-1] or "", "mine": mine, "processID": job.process,
             "priority": job.priority, "devices": job.devices, "host_bytes": job.host_bytes,
             "started": iso(job.started), "phase": job.phase, "worker": job.worker,
             "percent": progress.get("percent", 0.0), "eta": progress.get("eta"),
             "silent": job.lease_until and max(0.0, now + lease_seconds - job.lease_until)}
        )  # fmt: skip
    return described


def _places(
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
    workers = _capacities(conn, now)
    estimates = _estimates(conn, queues, len(workers), now)
    found: list[Place] = []
    ahead = own = 0
    for queue in queues:
        if queue.owner == owner:
            skipped = max(0, offset - own)
            if skipped < queue.count and len(found) < limit:
                page = _page(conn, queue, skipped, limit - len(found))
                found += [
                    _place(conn, job, ahead + skipped + number, workers, estimates, now)
                    for number, job in enumerate(page)
                ]
            own += queue.count
        ahead += queue.count
    return found, own, ahead


def _counts(conn: sa.Connection, owner: str) -> dict[str, int]:
    """Return how many jobs an owner has by status."""
    query = sa.select(Job.status, sa.func.count()).where(Job.owner == owner).group_by(Job.status)
    return {status: int(count) for status, count in conn.execute(query)}


def _capacities(conn: sa.Connection, now: float) -> list[Capacity]:
    """Return the memory and devices of each worker, and those that are free."""
    held: dict[str | None, list[Any]] = {}
    query = sa.select(Job.worker, Job.host_bytes, Job.devices).where(Job.status == "running")
    for row in conn.execute(query):
        held.setdefault(row.worker, []).append(row)
    free = free_on_machines(conn)
    query = sa.select(WorkerRow.id, WorkerRow.memory, WorkerRow.devices)
    found = []
    for worker in conn.execute(query.where(WorkerRow.seen > now - _SILENT_SECONDS)):
        running = held.get(worker.id, [])
        capacity = Capacity.of(worker.id, worker.memory, worker.devices, running)
        found.append(capacity.beside(free[worker.id]))
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
    now: float,
) -> Place:
    wanted = (job.inputs.get("options") or {}).get("host_memory")
    waiting = Waiting(job.id, job.fence, job.host_bytes, job.devices, job.started, wanted is None)
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
    late = now > job.updated + _LATE_SECONDS
    return Place(job, ahead, _reason(waiting, workers, ahead, late=late), starts_in)


def _reason(job: Waiting, workers: Sequence[Capacity], ahead: int, *, late: bool) -> str:
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
    return before or ("no worker has taken it yet" if late else "it starts within seconds")


def _estimates(
    conn: sa.Connection, queues: Sequence[leases.Queue], workers: int, now: float
) -> list[float | None]:
    """Return seconds until the first jobs of the queue start, in its order.

    The work of the running jobs and of the jobs before it is divided by the number of workers. To
    each job's expected seconds comes what the last jobs took beside their runs.
    """
    overhead = _overhead(conn)
    query = sa.select(Job.progress, Job.plan["expected_seconds"].as_float(), Job.started, Job.fence)
    running = conn.execute(query.where(Job.status == "running")).all()
    seconds: float | None = 0.0
    for progress, expected, started, fence in running:
        # A later attempt began at an unknown time, perhaps in the middle of the work.
        began = started if fence <= 1 else None
        seconds = _sum(seconds, _left(progress or {}, expected, began, overhead, now))
    if not running and _is_late(conn, now):
        seconds = None
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
            seconds = _sum(seconds, None if expected is None else expected + overhead)
        if len(found) >= _MOST_ESTIMATED:
            break
    return found


def _left(
    progress: Mapping[str, Any],
    expected: float | None,
    began: float | None,
    overhead: float,
    now: float,
) -> float | None:
    """Return seconds until a running job ends; None where unknown, or where it is overdue."""
    eta = progress.get("eta")
    whole = expected if eta is None else eta + progress.get("elapsed", 0.0)
    if whole is None or began is None:
        return eta or None
    left: float = began + whole + overhead - now
    return None if left < -_LATE_SECONDS else max(0.0, left)


def _is_late(conn: sa.Connection, now: float) -> bool:
    """Say whether the workers have been idle for long though a job waits."""
    waits = sa.select(sa.func.min(Job.updated)).where(Job.status == "accepted")
    waiting = conn.execute(waits).scalar()
    ended = conn.execute(sa.select(sa.func.max(Job.finished))).scalar()
    return waiting is not None and now > max(waiting, ended or 0.0) + _LATE_SECONDS


def _overhead(conn: sa.Connection) -> float:
    """Return the median of the seconds that the last finished jobs took beside their runs."""
    ran = Job.report["seconds"].as_float()
    query = sa.select(Job.finished - Job.started - ran).where(
        Job.status == "successful", ran.is_not(None)
    )
    found = conn.execute(query.order_by(Job.finished.desc()).limit(_LATEST)).scalars().all()
    return max(0.0, median(found)) if found else 0.0


def _sum(seconds: float | None, more: float | None) -> float | None:
    return None if seconds is None or more is None else seconds + more
