"""Leases of jobs, as workers hold them: claim, renew, finish, hand back, take back.

A claim increments the job's fence. Each write of an attempt names its fence, and has no effect
after the lease was taken over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from hdgemm.server import events, fair_share
from hdgemm.server.capacity import Capacity, Waiting, free_on_machines
from hdgemm.server.tables import Job, Status, Use

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

#: Rows that a claim reads at once.
_PAGE: Final = 20
_LEASE_OVER: Final = "its worker died, or did not reach the database; queued again"


@dataclass(frozen=True)
class Queue:
    """The waiting jobs of one owner at one priority."""

    priority: int
    owner: str
    count: int


def claim(conn: sa.Connection, capacity: Capacity, lease_seconds: float, now: float) -> Job | None:
    """Take the first job that this worker can run now: by priority, then fair share, then age.

    Call it in a `Database.queue` transaction. A job whose devices are busy is passed over;
    one that waits for memory is not, because small jobs would starve it.
    """
    if not capacity.idle_devices:
        return None
    # A worker whose row was taken for dead registers again within seconds.
    capacity = capacity.beside(free_on_machines(conn).get(capacity.worker, capacity.free_memory))
    for queue in queues(conn, now):
        for job in _waiting(conn, queue.priority, queue.owner):
            if not capacity.could_run(job) or not _inputs_ready(conn, job.id, now):
                continue
            if job.needs(capacity.all_memory) > capacity.free_memory:
                return None
            return _take(conn, job, capacity.worker, lease_seconds, now)
    return None


def queues(conn: sa.Connection, now: float) -> list[Queue]:
    """Return the queues in the order in which they are served: by priority, then fair share.

    At equal priority, owners are ordered by the seconds that their jobs used within the last hour,
    then by the age of their oldest job.
    """
    query = (
        sa.select(Job.priority, Job.owner, sa.func.min(Job.seq), sa.func.count())
        .where(Job.status == "accepted")
        .group_by(Job.priority, Job.owner)
    )
    rows = conn.execute(query).all()
    used = fair_share.used_seconds(conn, now) if len({row[1] for row in rows}) > 1 else {}
    ordered = sorted(rows, key=lambda row: (-row[0], used.get(row[1], 0.0), row[2]))
    return [Queue(priority, owner, count) for priority, owner, _, count in ordered]


def _waiting(conn: sa.Connection, priority: int, owner: str) -> Iterator[Waiting]:
    """Yield the jobs of one queue, oldest first; in pages, since most claims take the first."""
    elastic = Job.inputs["options", "host_memory"].as_string().is_(None)
    query = sa.select(
        Job.seq, Job.id, Job.fence, Job.host_bytes, Job.devices, Job.started, elastic
    ).where(Job.status == "accepted", Job.priority == priority, Job.owner == owner)
    last, more = 0, True
    while more:
        rows = conn.execute(query.where(Job.seq > last).order_by(Job.seq).limit(_PAGE)).all()
        more = len(rows) == _PAGE
        for last, *values in rows:  # noqa: B007 - the next page begins below it
            yield Waiting(*values)


def _inputs_ready(conn: sa.Connection, job_id: str, now: float) -> bool:
    """Say whether all jobs that this one reads are done; fail it where one of them failed."""
    status = sa.func.coalesce(Job.status, "deleted")
    inputs = sa.select(Use.target, status).join(Job, Job.id == Use.target, isouter=True)
    for target, state in conn.execute(inputs.where(Use.job == job_id, Use.kind == "job")).all():
        if state in {"accepted", "running"}:
            return False
        if state != "successful":
            detail = f"its input, job {target}, is {state}"
            error = {"origin": "user", "type": "input-job-failed", "detail": detail}
            failed = sa.update(Job).where(Job.id == job_id).values(
                status="failed", phase="failed", message=detail, error=error, finished=now,
                updated=now, disk_bytes=0,
            )  # fmt: skip
            conn.execute(failed)
            events.append(conn, job_id, "status", {"status": "failed", "phase": "failed"}, now)
            return False
    return True


def _take(conn: sa.Connection, job: Waiting, worker: str, seconds: float, now: float) -> Job | None:
    taken = conn.execute(
        sa.update(Job)
        .where(Job.id == job.id, Job.status == "accepted", Job.fence == job.fence)
        .values(status="running", phase="starting", message="starting", worker=worker,
                fence=job.fence + 1, lease_until=now + seconds, updated=now, progress=None,
                started=job.started or now)
        .returning(Job)
    ).one_or_none()  # fmt: skip
    if taken is None:
        return None
    events.append(conn, job.id, "status", {"status": "running", "phase": "starting"}, now)
    return Job.of(taken)


@dataclass(frozen=True)
class Held:
    """The lease of one attempt of one job."""

    job_id: str
    fence: int

    def update(self, conn: sa.Connection, now: float, **values: Any) -> bool:
        """Change the job's row if this attempt still holds it; say whether it does."""
        query = (
            sa.update(Job)
            .where(Job.id == self.job_id, Job.fence == self.fence, Job.status == "running")
            .values(updated=now, **values)
        )
        return conn.execute(query).rowcount == 1

    def renew(
        self, conn: sa.Connection, now: float, seconds: float, progress: Mapping[str, Any] | None
    ) -> bool:
        """Renew the lease and store the progress; say whether the lease is still held."""
        values = {} if progress is None else {"progress": dict(progress)}
        held = self.update(conn, now, lease_until=now + seconds, **values)
        if held and progress is not None:
            events.append(conn, self.job_id, "progress", progress, now)
        return held

    def renew_start(self, conn: sa.Connection, now: float, seconds: float) -> None:
        """Renew the lease of an attempt that has not begun to renew it itself."""
        starting = Job.id == self.job_id, Job.fence == self.fence, Job.phase == "starting"
        conn.execute(sa.update(Job).where(*starting).values(lease_until=now + seconds))

    def enter(self, conn: sa.Connection, now: float, phase: str) -> bool:
        """Store the job's phase; say whether the lease is still held."""
        held = self.update(conn, now, phase=phase, message=phase)
        if held:
            events.append(conn, self.job_id, "status", {"status": "running", "phase": phase}, now)
        return held

    def finish(
        self, conn: sa.Connection, now: float, status: Status, message: str, **values: Any
    ) -> bool:
        """End the job, and say whether this attempt was the one to do so.

        The job keeps no bytes of the disk unless `disk_bytes` says how many. `worker` names the
        worker whose process then draws the job's pictures, and counts them.
        """
        held = self.update(
            conn, now, status=status, phase=status, message=message, finished=now,
            lease_until=None, **{"disk_bytes": 0, "worker": None, **values},
        )  # fmt: skip
        if held:
            events.forget_progress(conn, self.job_id)
            data = {"status": status, "phase": status, "message": message}
            events.append(conn, self.job_id, "status", data, now)
        return held

    def hand_back(self, conn: sa.Connection, now: float, message: str, *, crashed: bool) -> bool:
        """Put the job back into the queue."""
        values: dict[str, Any] = {"crashes": Job.crashes + 1} if crashed else {}
        held = self.update(
            conn, now, status="accepted", phase="queued", message=message, lease_until=None,
            worker=None, **values,
        )  # fmt: skip
        if held:
            data = {"status": "accepted", "phase": "queued", "message": message}
            events.append(conn, self.job_id, "status", data, now)
        return held


class LeaseObserver:
    """Finds leases that are not renewed, by a monotonic clock.

    A lease is over once it was seen unrenewed for its whole length by the observer's own clock.
    Times in the table are not compared: a calendar clock that is set forward would end the leases
    of living jobs, one that is set back would keep leases of dead ones.
    """

    def __init__(self, lease_seconds: float, max_attempts: int) -> None:
        self._lease = lease_seconds
        self._most = max_attempts
        self._seen: dict[str, tuple[tuple[int, float | None], float]] = {}

    def take_back(self, conn: sa.Connection, now: float, clock: float) -> Collection[str]:
        """Queue the jobs of leases that are over; `clock` is the monotonic one, in seconds.

        The rows stay locked, so that none is renewed between the look and the verdict.
        """
        query = sa.select(Job.id, Job.fence, Job.lease_until)
        query = query.where(Job.status == "running").order_by(Job.seq).with_for_update()
        found = conn.execute(query).all()
        known, self._seen = self._seen, {}
        over = []
        for job_id, fence, until in found:
            lease, since = known.get(job_id, (None, clock))
            if lease != (fence, until):
                since = clock
            self._seen[job_id] = (fence, until), since
            if clock - since > self._lease:
                self._end(conn, Held(job_id, fence), now)
                over.append(job_id)
        return over

    def _end(self, conn: sa.Connection, held: Held, now: float) -> None:
        if held.fence < self._most:
            held.hand_back(conn, now, _LEASE_OVER, crashed=False)
            return
        detail = f"started {held.fence} times; each time its worker died, or lost the database"
        error = {"origin": "system", "type": "worker-died", "detail": detail}
        held.finish(conn, now, "failed", detail, error=error)


def lost(conn: sa.Connection, held: Collection[Held]) -> set[str]:
    """Return the unfinished attempts that have lost their lease.

    An attempt that has finished its job exits by itself.
    """
    ids = [attempt.job_id for attempt in held]
    query = sa.select(Job.id, Job.fence, Job.status).where(Job.id.in_(ids))
    rows = {row.id: row for row in conn.execute(query)}
    return {
        attempt.job_id
        for attempt in held
        if (row := rows.get(attempt.job_id)) is not None
        and (row.fence != attempt.fence or row.status == "accepted")
    }
