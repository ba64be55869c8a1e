"""The job table as its readers and submitters see it: insert, find, list, cancel, delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hdgemm.server import events
from hdgemm.server.problems import ProblemError
from hdgemm.server.records import FINISHED, UNFINISHED, Job, Process, Status, new_id
from hdgemm.server.tables import jobs, unit_maps, uses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What a submitter decides of a job, with what admission found out.

    `reads` are the matrices and jobs it uses, as ("matrix" or "job", id).
    """

    owner: str
    process: Process
    name: str
    priority: int
    inputs: Mapping[str, Any]
    request_digest: str
    idempotency_key: str | None
    plan: Mapping[str, Any] | None
    units: Sequence[Sequence[int]] | None
    output: Mapping[str, Any] | None
    host_bytes: int
    disk_bytes: int
    devices: tuple[str, ...]
    reads: frozenset[tuple[str, str]]


def insert(conn: sa.Connection, submission: Submission, now: float) -> str:
    """Accept a job; return its identifier."""
    job_id = new_id()
    values = {
        field: getattr(submission, field)
        for field in submission.__dataclass_fields__
        if field not in {"reads", "units"}
    }
    values["devices"] = list(submission.devices)
    conn.execute(
        sa.insert(jobs).values(
            **values, id=job_id, status="accepted", phase="queued", message="waiting for a worker",
            created=now, updated=now, cancel=False, fence=0, crashes=0,
        )
    )  # fmt: skip
    if submission.units:
        drawn = [list(unit) for unit in submission.units]
        conn.execute(sa.insert(unit_maps).values(job=job_id, units=drawn))
    for kind, target in submission.reads:
        conn.execute(sa.insert(uses).values(job=job_id, kind=kind, target=target))
    events.append(conn, job_id, "status", {"status": "accepted", "phase": "queued"}, now)
    return job_id


def find(conn: sa.Connection, job_id: str, owner: str | None = None) -> Job | None:
    """Return a job; with `owner`, only if it belongs to it."""
    query = sa.select(jobs).where(jobs.c.id == job_id)
    if owner is not None:
        query = query.where(jobs.c.owner == owner)
    row = conn.execute(query).one_or_none()
    return None if row is None else Job.of(row)


def get(conn: sa.Connection, job_id: str, owner: str) -> Job:
    """Return an owner's job or raise a 404: another's looks just like none."""
    job = find(conn, job_id, owner)
    if job is None:
        raise ProblemError(404, "no-such-job", f"there is no job {job_id}", job=job_id)
    return job


def units(conn: sa.Connection, job_id: str) -> list[list[int]]:
    """Return a job's work units in order, none where they are too many to draw."""
    query = sa.select(unit_maps.c.units).where(unit_maps.c.job == job_id)
    return list(conn.execute(query).scalar() or [])


def by_key(conn: sa.Connection, owner: str, key: str) -> Job | None:
    """Return the job that an owner submitted under an idempotency key."""
    query = sa.select(jobs).where(jobs.c.owner == owner, jobs.c.idempotency_key == key)
    row = conn.execute(query).one_or_none()
    return None if row is None else Job.of(row)


@dataclass(frozen=True)
class Filter:
    """Which jobs a list shows; empty fields do not restrict."""

    statuses: tuple[Status, ...] = ()
    processes: tuple[Process, ...] = ()
    name: str | None = None
    before: int | None = None


def page(conn: sa.Connection, owner: str, chosen: Filter, limit: int) -> list[Job]:
    """Return an owner's jobs, newest first, from below sequence number `chosen.before`."""
    query = sa.select(jobs).where(jobs.c.owner == owner).order_by(jobs.c.seq.desc()).limit(limit)
    if chosen.statuses:
        query = query.where(jobs.c.status.in_(chosen.statuses))
    if chosen.processes:
        query = query.where(jobs.c.process.in_(chosen.processes))
    if chosen.name is not None:
        query = query.where(jobs.c.name == chosen.name)
    if chosen.before is not None:
        query = query.where(jobs.c.seq < chosen.before)
    return [Job.of(row) for row in conn.execute(query)]


def count_unfinished(conn: sa.Connection, owner: str | None = None) -> int:
    """Return how many jobs wait or run."""
    query = sa.select(sa.func.count()).where(jobs.c.status.in_(UNFINISHED))
    if owner is not None:
        query = query.where(jobs.c.owner == owner)
    return int(conn.execute(query).scalar_one())


def unfinished_readers(conn: sa.Connection, kind: str, target: str) -> list[str]:
    """Return the jobs that still have to read a matrix or another job's result."""
    query = (
        sa.select(uses.c.job)
        .join(jobs, jobs.c.id == uses.c.job)
        .where(uses.c.kind == kind, uses.c.target == target, jobs.c.status.in_(UNFINISHED))
    )
    return list(conn.execute(query).scalars())


def cancel(conn: sa.Connection, job_id: str, owner: str, now: float) -> Job:
    """Dismiss a waiting job, or ask a running one to stop; a dismissed one stays as it is.

    Raises
    ------
    ProblemError
        409 for a job that is successful or failed.
    """
    waiting = (
        sa.update(jobs)
        .where(jobs.c.id == job_id, jobs.c.owner == owner, jobs.c.status == "accepted")
        .values(status="dismissed", phase="dismissed", message="cancelled before it ran",
                finished=now, updated=now, cancel=True)
    )  # fmt: skip
    if conn.execute(waiting).rowcount:
        events.append(conn, job_id, "status", {"status": "dismissed", "phase": "dismissed"}, now)
        return get(conn, job_id, owner)
    running = (
        sa.update(jobs)
        .where(jobs.c.id == job_id, jobs.c.owner == owner, jobs.c.status == "running")
        .values(cancel=True, message="stopping", updated=now)
    )
    conn.execute(running)
    job = get(conn, job_id, owner)
    if job.status in {"successful", "failed"}:
        raise ProblemError(
            409, "already-finished", f"job {job_id} is {job.status}", job=job_id, state=job.status
        )
    return job


def delete(conn: sa.Connection, job_id: str, owner: str) -> Job:
    """Remove a finished job's row; its files are the caller's to remove after the commit.

    Raises
    ------
    ProblemError
        409 while it runs, or while another job still has to read its result.
    """
    job = get(conn, job_id, owner)
    if job.status not in FINISHED:
        raise ProblemError(
            409, "not-finished", f"job {job_id} is {job.status}: cancel it first", job=job_id
        )
    refuse_if_read(conn, "job", job_id)
    conn.execute(sa.delete(jobs).where(jobs.c.id == job_id))
    return job


def refuse_if_read(conn: sa.Connection, kind: str, target: str) -> None:
    """Raise a 409 while an unfinished job has to read this."""
    readers = unfinished_readers(conn, kind, target)
    if readers:
        raise ProblemError(
            409, "in-use", f"{len(readers)} unfinished job(s) read this {kind}", jobs=readers[:20]
        )


@dataclass(frozen=True, slots=True)
class Promise:
    """What an unfinished job will write, and the bytes of disk that are kept for it."""

    id: str
    output: dict[str, Any]
    disk_bytes: int


def outputs_in_flight(conn: sa.Connection) -> list[Promise]:
    """Return what the unfinished jobs will write."""
    query = sa.select(jobs.c.id, jobs.c.output, jobs.c.disk_bytes)
    rows = conn.execute(query.where(jobs.c.status.in_(UNFINISHED)))
    return [Promise(*row) for row in rows if row.output is not None]
