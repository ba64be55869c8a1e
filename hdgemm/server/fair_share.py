"""Fair share between owners: seconds that their jobs ran within the last hour.

The times of a job that is deleted are kept for that hour, so that deleting jobs does not move
their owner to the front of the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from hdgemm.server.tables import Job, PastRun

if TYPE_CHECKING:
    from collections.abc import Collection

#: Time over which the share is reckoned.
_SHARE_SECONDS: Final = 3600.0


def used_seconds(conn: sa.Connection, now: float) -> dict[str, float]:
    """Return how many seconds each owner's jobs ran within the last hour."""
    since = now - _SHARE_SECONDS
    runs = sa.union_all(
        sa.select(
            Job.owner, Job.started, sa.func.coalesce(Job.finished, now).label("finished")
        ).where(Job.started.is_not(None), sa.or_(Job.status == "running", Job.finished > since)),
        sa.select(PastRun.owner, PastRun.started, PastRun.finished).where(PastRun.finished > since),
    ).subquery()
    began = sa.case((runs.c.started < since, since), else_=runs.c.started)
    query = sa.select(runs.c.owner, sa.func.sum(runs.c.finished - began)).group_by(runs.c.owner)
    return {owner: float(seconds) for owner, seconds in conn.execute(query)}


def keep_times(conn: sa.Connection, job_ids: Collection[str], now: float) -> None:
    """Keep the times of finished jobs, in the transaction that deletes them."""
    since = now - _SHARE_SECONDS
    ran = Job.id.in_(job_ids), Job.started.is_not(None), Job.finished > since
    times = sa.select(Job.owner, Job.started, Job.finished).where(*ran)
    conn.execute(sa.insert(PastRun).from_select(["owner", "started", "finished"], times))
    conn.execute(sa.delete(PastRun).where(PastRun.finished <= since))
