"""What happened to a job, in order, numbered: what `…/events` streams and resumes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hdgemm.server.tables import events

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event: `kind` is "status" or "progress"."""

    id: int
    kind: str
    data: Mapping[str, Any]


def append(
    conn: sa.Connection, job_id: str, kind: str, data: Mapping[str, Any], now: float
) -> None:
    """Add an event, after the job's row was updated in the same transaction.

    That update holds the row, so that numbers of one job's events become visible in their order.
    """
    conn.execute(sa.insert(events).values(job=job_id, kind=kind, data=dict(data), created=now))


def after(conn: sa.Connection, job_id: str, last: int, limit: int = 500) -> list[JobEvent]:
    """Return the events that follow number `last`."""
    query = (
        sa.select(events.c.id, events.c.kind, events.c.data)
        .where(events.c.job == job_id, events.c.id > last)
        .order_by(events.c.id)
        .limit(limit)
    )
    return [JobEvent(*row) for row in conn.execute(query)]


def forget_progress(conn: sa.Connection, job_id: str) -> None:
    """Drop a finished job's progress: its report says more."""
    conn.execute(sa.delete(events).where(events.c.job == job_id, events.c.kind == "progress"))
