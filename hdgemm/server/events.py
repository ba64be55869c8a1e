"""A job's events: stored in order, and streamed to the clients that follow it."""

from __future__ import annotations

import asyncio
import json
import logging
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlalchemy as sa
from anyio import to_thread

from hdgemm.server.problems import OutageLog, ProblemError
from hdgemm.server.tables import FINISHED, Job, JobEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hdgemm.server.coalescing_cache import CoalescingCache
    from hdgemm.server.database import Database
    from hdgemm.server.tokens import Account

log = logging.getLogger(__name__)
_TICK_SECONDS: Final = 0.5
_KEEP_ALIVE_TICKS: Final = 30
_END: Final = "event: end\ndata: {}\n\n"


def append(
    conn: sa.Connection, job_id: str, kind: str, data: Mapping[str, Any], now: float
) -> None:
    """Add an event, after the job's row was updated in the same transaction.

    That update locks the row, so that events of one job become visible in the order of their
    numbers.
    """
    conn.execute(sa.insert(JobEvent).values(job=job_id, kind=kind, data=dict(data), created=now))


def after(conn: sa.Connection, job_id: str, last: int, limit: int = 500) -> list[JobEvent]:
    """Return the events that follow number `last`."""
    query = sa.select(JobEvent).where(JobEvent.job == job_id, JobEvent.id > last)
    return [JobEvent.of(row) for row in conn.execute(query.order_by(JobEvent.id).limit(limit))]


def phases(conn: sa.Connection, job_id: str) -> list[dict[str, Any]]:
    """Return the phases of a job in their order, each with the second since 1970 of its begin."""
    query = sa.select(JobEvent.data, JobEvent.created)
    query = query.where(JobEvent.job == job_id, JobEvent.kind == "status").order_by(JobEvent.id)
    return [{"phase": data["phase"], "at": created} for data, created in conn.execute(query)]


def forget_progress(conn: sa.Connection, job_id: str) -> None:
    """Drop a finished job's progress events; its report replaces them."""
    conn.execute(sa.delete(JobEvent).where(JobEvent.job == job_id, JobEvent.kind == "progress"))


class _Follower:
    """One stream: the job it follows, under which token, and the last event that it sent."""

    def __init__(self, job_id: str, account: Account, secret: str | None, last: int) -> None:
        self.job_id, self.account, self.secret, self.last = job_id, account, secret, last
        self.news = asyncio.Event()
        self.revoked = False


class Publisher(Protocol):
    """What event streams need of the service: its database, caches of answers, and accounts."""

    database: Database
    statuses: CoalescingCache[tuple[str, str]]
    news: CoalescingCache[tuple[str, int]]

    def account(self, secret: str | None) -> Account | None:
        """Return the account of a secret, None if it has none."""


class EventStreams:
    """Streams events to followers; one query a tick looks after all of them.

    A follower reads its job's events only when that query found new ones; followers of one job
    that are equally far share the read.
    """

    def __init__(self, service: Publisher, most: int, most_per_account: int) -> None:
        self._service = service
        self._most = most
        self._most_per_account = most_per_account
        # Only the stream references the follower.
        self._followers: weakref.WeakSet[_Follower] = weakref.WeakSet()
        self._poll: asyncio.Task[None] | None = None

    def follow(
        self, job_id: str, account: Account, secret: str | None, last: int
    ) -> AsyncIterator[str]:
        """Return the stream of a job's events from after number `last`, as server-sent events.

        It ends with the job, and when the token is revoked.

        Raises `ProblemError` 429 for too many streams.
        """
        mine = sum(one.account.id == account.id for one in self._followers)
        if mine >= self._most_per_account or len(self._followers) >= self._most:
            limit = self._most_per_account if mine >= self._most_per_account else self._most
            raise ProblemError(
                429, "too-many-streams", f"{limit} event streams are open, the most there may be",
                limit=limit, headers={"Retry-After": "5"},
            )  # fmt: skip
        follower = _Follower(job_id, account, secret, last)
        self._followers.add(follower)
        return self._stream(follower)

    async def _stream(self, follower: _Follower) -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        while not follower.revoked:
            text, follower.last, finished = await self._read(follower.job_id, follower.last)
            if text:
                # A client that heard of an event must not be shown an older status.
                self._service.statuses.forget((follower.account.id, follower.job_id))
                yield text
            elif finished:
                yield _END
                return
            elif not await self._wait(follower):
                yield ": still here\n\n"

    async def _wait(self, follower: _Follower) -> bool:
        """Wait for news; say whether any came within the time of a keep-alive comment."""
        follower.news.clear()
        if self._poll is None or self._poll.done():
            self._poll = asyncio.get_running_loop().create_task(self._watch())
        try:
            await asyncio.wait_for(follower.news.wait(), _KEEP_ALIVE_TICKS * _TICK_SECONDS)
        except TimeoutError:
            return False
        return True

    async def _read(self, job_id: str, last: int) -> tuple[str, int, bool]:
        def read() -> bytes:
            with self._service.database.read() as conn:
                job = conn.execute(sa.select(Job.status).where(Job.id == job_id)).scalar()
                found = after(conn, job_id, last)
            text = "".join(
                f"id: {event.id}\nevent: {event.kind}\n"
                f"data: {json.dumps({**event.data, 'at': event.created})}\n\n"
                for event in found
            )
            end = found[-1].id if found else last
            return json.dumps([text, end, job is None or job in FINISHED]).encode()

        text, end, finished = json.loads(await self._service.news.get((job_id, last), read))
        return text, end, finished

    async def _watch(self) -> None:
        """Wake the followers with news, as long as there are any."""
        outage = OutageLog(log)
        while self._followers:
            await asyncio.sleep(_TICK_SECONDS)
            followers = list(self._followers)
            try:
                latest, revoked = await to_thread.run_sync(self._look, followers)
            except sa.exc.SQLAlchemyError as error:
                outage.note(error)
                continue
            outage.end()
            for one in followers:
                one.revoked = one.secret in revoked
                # A job that is not listed has finished or was deleted.
                if one.revoked or latest.get(one.job_id, one.last + 1) > one.last:
                    self._service.news.forget((one.job_id, one.last))
                    one.news.set()

    def _look(self, followers: list[_Follower]) -> tuple[dict[str, int], set[str | None]]:
        """Return the newest event of each unfinished job, and the secrets that are not valid."""
        ids = {one.job_id for one in followers}
        newest = (
            sa.select(sa.func.coalesce(sa.func.max(JobEvent.id), 0))
            .where(JobEvent.job == Job.id)
            .scalar_subquery()
        )
        query = sa.select(Job.id, newest).where(Job.id.in_(ids), Job.status.not_in(FINISHED))
        with self._service.database.read() as conn:
            latest = {job_id: number for job_id, number in conn.execute(query)}  # noqa: C416
        secrets = {one.secret for one in followers}
        return latest, {one for one in secrets if self._service.account(one) is None}
