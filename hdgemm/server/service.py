"""State that all routes share: settings, database, accounts, caches and thread limits."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from urllib.parse import urlsplit

import anyio
from anyio import to_thread
from fastapi import Depends, Request

from hdgemm.server import jobs, tokens
from hdgemm.server.admission import Examiner
from hdgemm.server.backend import load_library
from hdgemm.server.coalescing_cache import CoalescingCache
from hdgemm.server.documents import Documents
from hdgemm.server.events import EventStreams
from hdgemm.server.problems import ProblemError
from hdgemm.server.tokens import Account

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.server.database import Database
    from hdgemm.server.settings import Settings
    from hdgemm.server.tables import Job

#: How long the answer about a token is cached: a revoked one works this much longer, at most.
_ACCOUNT_SECONDS: Final = 2.0
_ACCOUNTS_CACHED: Final = 10_000

Result = TypeVar("Result")


class ThreadLimit:
    """Runs calls in threads of their own, so many at a time.

    For calls that may block for long, on a file system that does not answer or in the planner: the
    threads that serve all other requests stay free.

    Parameters
    ----------
    share
        How many calls of one owner run at a time, so that none takes all threads.
    """

    def __init__(self, most: int, wait_seconds: float, what: str, share: int | None = None) -> None:
        self._wait_seconds, self._what = wait_seconds, what
        self._free = _Slots(most)
        self._share = share or most
        self._shares: dict[str, _Slots] = {}

    async def run(self, call: Callable[..., Result], *arguments: object, owner: str = "") -> Result:
        """Run a call when a thread is free, and the owner has fewer than its share.

        Raises `ProblemError` 503 when none gets free in time.
        """
        share = self._shares.setdefault(owner, _Slots(self._share))
        share.users += 1
        try:
            async with AsyncExitStack() as held:
                await self._take(held, share)
                await self._take(held, self._free)
                return await to_thread.run_sync(call, *arguments, limiter=anyio.CapacityLimiter(1))
        finally:
            share.users -= 1
            if not share.users:
                del self._shares[owner]

    async def _take(self, held: AsyncExitStack, slots: _Slots) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds):
                await held.enter_async_context(slots.free)
        except TimeoutError:
            raise ProblemError(
                503,
                "busy",
                f"{slots.most} requests wait for {self._what} already",
                headers={"Retry-After": "5"},
            ) from None


class _Slots:
    """So many calls at a time; `users` counts the requests that run or wait."""

    def __init__(self, most: int) -> None:
        self.most, self.users = most, 0
        self.free = asyncio.Semaphore(most)


class Service:
    """Settings, database and library of one server, and its cache of accounts.

    Parameters
    ----------
    hosts
        Names that a Host header may hold; None allows all. A server that only this machine can
        reach names itself, so that no web page can reach it under a name of its own.
    always_ask
        Ask for a token even while there is none.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        *,
        hosts: frozenset[str] | None = None,
        always_ask: bool = False,
    ) -> None:
        self.settings = settings
        self.database = database
        self.hosts = hosts
        self.documents = Documents(
            urlsplit(settings.public_url).path.rstrip("/"), settings.retention_seconds
        )
        self.examiner = Examiner(settings, database, load_library(settings.library))
        self.statuses: CoalescingCache[tuple[str, str]] = CoalescingCache()
        self.news: CoalescingCache[tuple[str, int]] = CoalescingCache()
        self.readiness: CoalescingCache[str] = CoalescingCache(1.0)
        self.activity: CoalescingCache[str] = CoalescingCache(15.0)
        self.streams = EventStreams(self, settings.max_streams, settings.max_streams_per_token)
        self.files = ThreadLimit(16, 5.0, "files")
        self.plans = ThreadLimit(4, 20.0, "the planner", share=2)
        self.hashes = ThreadLimit(8, 600.0, "checksums")
        self.public_host = urlsplit(settings.public_url).netloc
        self._always_ask = always_ask
        self._accounts: dict[str, tuple[float, Account | None]] = {}
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def account(self, secret: str | None) -> Account | None:
        """Return the account of a secret, None if it has none. It blocks: call it in a thread."""
        known, account = self.cached_account(secret)
        if known:
            return account
        found = self._find(secret)
        with self._lock:
            if len(self._accounts) >= _ACCOUNTS_CACHED:
                self._accounts.clear()
            self._accounts[secret or ""] = time.monotonic() + _ACCOUNT_SECONDS, found
        return found

    def cached_account(self, secret: str | None) -> tuple[bool, Account | None]:
        """Return whether the account of a secret is cached, and the account."""
        known = self._accounts.get(secret or "")
        if known is None or time.monotonic() >= known[0]:
            return False, None
        return True, known[1]

    def _find(self, secret: str | None) -> Account | None:
        with self.database.read() as conn:
            if secret is not None:
                found = tokens.authenticate(conn, secret)
                if found is not None or self._always_ask or tokens.required(conn):
                    return found
                return Account()
            return None if self._always_ask or tokens.required(conn) else Account()

    def job(self, job_id: str, owner: str) -> Job:
        """Return an owner's job or raise a 404. It blocks: call it in a thread."""
        with self.database.read() as conn:
            return jobs.get(conn, job_id, owner)

    def wait_for(self, account: Account) -> float:
        """Count one request of an account; return the seconds it came too early, or 0."""
        if account.rate is None:
            return 0.0
        now = time.monotonic()
        with self._lock:
            burst = max(1.0, account.rate)
            left, seen = self._buckets.get(account.id, (burst, now))
            left = min(burst, left + (now - seen) * account.rate)
            if left < 1.0:
                self._buckets[account.id] = left, now
                return (1.0 - left) / account.rate
            self._buckets[account.id] = left - 1.0, now
        return 0.0


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _account(request: Request) -> Account:
    account: Account = request.scope["hdgemm.account"]
    return account


TheService = Annotated[Service, Depends(_service)]
TheAccount = Annotated[Account, Depends(_account)]
