"""The job table as submitters and readers use it: insert, find, list, cancel, delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hdgemm.server import events, fair_share
from hdgemm.server.problems import ProblemError
from hdgemm.server.tables import FINISHED, UNFINISHED, Job, Process, UnitMap, Use, WorkerRow, new_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Plan and resources of an admitted job.

    Parameters
    ----------
    inputs
        The request's inputs, references resolved.
    units
        The plan's work units in order, where they are few enough to draw.
    output
        Path, shape and dtype of the result; None for a job without one.
    volume
        Mount point of the file system that a named result, or a scratch file beside A, goes to.
    reads
        The matrices and jobs it uses, as ("matrix" or "job", id).
    """

    process: Process
    inputs: Mapping[str, Any]
    plan: Mapping[str, Any] | None = None
    units: Sequence[Sequence[int]] = ()
    output: Mapping[str, Any] | None = None
    volume: str | None = None
    host_bytes: int
    disk_bytes: int = 0
    devices: tuple[str, ...]
    reads: frozenset[tuple[str, str]] = frozenset()

    @property
    def output_path(self) -> str | None:
        """The path that the request named for the result."""
        return None if self.output is None else self.output["path"]

    @property
    def needs(self) -> dict[str, Any]:
        """The resources that a dry run reports."""
        return {
            "host_bytes": self.host_bytes,
            "disk_bytes": self.disk_bytes,
            "devices": list(self.devices),
        }


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One request for a job; `response` says how its results are to be answered."""

    owner: str
    name: str
    priority: int
    request_digest: str
    idempotency_key: str | None
    response: Mapping[str, Any] | None = None


def insert(conn: sa.Connection, submission: Submission, admission: Admission, now: float) -> str:
    """Accept a job; return its identifier."""
    job_id = new_id()
    conn.execute(
        sa.insert(Job).values(
            **vars(submission), id=job_id, process=admission.process, inputs=admission.inputs,
            plan=admission.plan, output=admission.output, output_path=admission.output_path,
            volume=admission.volume, **admission.needs, status="accepted", phase="queued",
            message="waiting for a worker", created=now, updated=now, cancel=False, fence=0,
            crashes=0,
        )
    )  # fmt: skip
    if admission.units:
        drawn = [list(unit) for unit in admission.units]
        conn.execute(sa.insert(UnitMap).values(job=job_id, units=drawn))
    for kind, target in admission.reads:
        conn.execute(sa.insert(Use).values(job=job_id, kind=kind, target=target))
    events.append(conn, job_id, "status", {"status": "accepted", "phase": "queued"}, now)
    return job_id


def find(conn: sa.Connection, job_id: str, owner: str | None = None) -> Job | None:
    """Return a job; with `owner`, only if it belongs to it."""
    query = sa.select(Job).where(Job.id == job_id)
    if owner is not None:
        query = query.where(Job.owner == owner)
    row = conn.execute(query).one_or_none()
    return None if row is None else Job.of(row)


def get(conn: sa.Connection, job_id: str, owner: str) -> Job:
    """Return an owner's job or raise a 404, for another owner's job too."""
    job = find(conn, job_id, owner)
    if job is None:
        raise ProblemError(404, "no-such-job", f"there is no job {job_id}", job=job_id)
    return job


def units(conn: sa.Connection, job_id: str) -> list[list[int]]:
    """Return a job's work units in order; none where they are too many to draw."""
    query = sa.select(UnitMap.units).where(UnitMap.job == job_id)
    return list(conn.execute(query).scalar() or [])


def by_key(conn: sa.Connection, owner: str, key: str) -> Job | None:
    """Return the job that an owner submitted under an idempotency key."""
    query = sa.select(Job).where(Job.owner == owner, Job.idempotency_key == key)
    row = conn.execute(query).one_or_none()
    return None if row is None else Job.of(row)


def page(
    conn: sa.Connection,
    owner: str,
    wanted: Sequence[sa.ColumnElement[bool]],
    limit: int,
    order: Sequence[sa.ColumnElement[Any]],
) -> list[Job]:
    """Return an owner's jobs that meet all conditions, by descending columns of `order`."""
    descending = (column.desc() for column in order)
    query = sa.select(Job).where(Job.owner == owner, *wanted).order_by(*descending)
    return [Job.of(row) for row in conn.execute(query.limit(limit))]


@dataclass(frozen=True)
class Reserved:
    """Resources of the unfinished jobs: their number by owner, bytes of disk by volume."""

    jobs: Mapping[str, int]
    disk_bytes: Mapping[str | None, int]


def reserved(conn: sa.Connection) -> Reserved:
    """Add up the unfinished jobs, by one query that returns a row for each owner and volume."""
    query = (
        sa.select(Job.owner, Job.volume, sa.func.count(), sa.func.sum(Job.disk_bytes))
        .where(Job.status.in_(UNFINISHED))
        .group_by(Job.status, Job.owner, Job.volume)  # the order of the index
    )
    count: dict[str, int] = {}
    disk: dict[str | None, int] = {}
    for owner, volume, jobs, nbytes in conn.execute(query):
        count[owner] = count.get(owner, 0) + jobs
        disk[volume] = disk.get(volume, 0) + int(nbytes)
    return Reserved(count, disk)


def count_unfinished(conn: sa.Connection, owner: str) -> int:
    """Return how many of an owner's jobs wait or run."""
    query = sa.select(sa.func.count()).where(Job.status.in_(UNFINISHED), Job.owner == owner)
    return int(conn.execute(query).scalar_one())


def counted_bytes(conn: sa.Connection, job_id: str) -> int:
    """Return the bytes that count for a job at this moment; 0 for a deleted one."""
    return int(conn.execute(sa.select(Job.disk_bytes).where(Job.id == job_id)).scalar() or 0)


def recount(conn: sa.Connection, job_id: str, kept: int) -> None:
    """Set the bytes that a finished job keeps: its pictures are drawn and counted."""
    conn.execute(sa.update(Job).where(Job.id == job_id).values(disk_bytes=kept, worker=None))


def uncounted(conn: sa.Connection) -> list[str]:
    """Return the jobs whose pictures are not counted, since their workers died."""
    drawing = Job.finished.is_not(None), Job.worker.is_not(None)
    dead = Job.worker.not_in(sa.select(WorkerRow.id))
    return [*conn.execute(sa.select(Job.id).where(*drawing, dead)).scalars()]


def cancel(conn: sa.Connection, job_id: str, owner: str, now: float) -> Job:
    """Dismiss a waiting job, or ask a running one to stop; a dismissed one stays as it is.

    Raises `ProblemError` 409 for a job that is successful or failed.
    """
    mine = sa.update(Job).where(Job.id == job_id, Job.owner == owner)
    waiting = mine.where(Job.status == "accepted").values(
        status="dismissed", phase="dismissed", message="cancelled before it ran",
        finished=now, updated=now, cancel=True, disk_bytes=0,
    )  # fmt: skip
    if conn.execute(waiting).rowcount:
        events.append(conn, job_id, "status", {"status": "dismissed", "phase": "dismissed"}, now)
        return get(conn, job_id, owner)
    running = mine.where(Job.status == "running").values(
        cancel=True, message="stopping", updated=now
    )
    conn.execute(running)
    job = get(conn, job_id, owner)
    if job.status in {"successful", "failed"}:
        raise ProblemError(
            409,
            "already-finished",
            f"job {job_id} has ended: {job.status}",
            job=job_id,
            state=job.status,
        )
    return job


def delete(conn: sa.Connection, job_id: str, owner: str, now: float) -> Job:
    """Remove a finished job's row; the caller removes its files after the commit.

    Raises `ProblemError` 409 while it runs, or while another job still has to read its result.
    """
    job = get(conn, job_id, owner)
    if job.status not in FINISHED:
        raise ProblemError(
            409, "not-finished", f"job {job_id} is {job.status}: cancel it first", job=job_id
        )
    refuse_if_read(conn, "job", job_id)
    _remove(conn, [job_id], now)
    return job


def _remove(conn: sa.Connection, ids: Sequence[str], now: float) -> None:
    fair_share.keep_times(conn, ids, now)
    conn.execute(sa.delete(Job).where(Job.id.in_(ids)))


def refuse_if_read(conn: sa.Connection, kind: str, target: str) -> None:
    """Raise a 409 while an unfinished job has to read this matrix or result."""
    query = (
        sa.select(Use.job)
        .join(Job, Job.id == Use.job)
        .where(Use.kind == kind, Use.target == target, Job.status.in_(UNFINISHED))
    )
    readers = list(conn.execute(query).scalars())
    if readers:
        raise ProblemError(
            409, "in-use", f"{len(readers)} unfinished job(s) read this {kind}", jobs=readers[:20]
        )


def expire(conn: sa.Connection, retention: float, limit: int, now: float) -> list[str]:
    """Remove the rows of jobs that ended so many seconds ago and that no unfinished job reads.

    Returns their identifiers; the caller removes their files after the commit.
    """
    readers = (
        sa.select(Use.target)
        .join(Job, Job.id == Use.job)
        .where(Use.kind == "job", Job.status.in_(UNFINISHED))
    )
    old = Job.finished < now - retention, Job.id.not_in(readers)
    ids = list(conn.execute(sa.select(Job.id).where(*old).limit(limit)).scalars())
    _remove(conn, ids, now)
    return ids
