"""What all routes share, and who is asking."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Depends, Request

from hdgemm.server import tokens
from hdgemm.server.admission import Examiner
from hdgemm.server.backend import load_library
from hdgemm.server.response_cache import Recent
from hdgemm.server.tokens import Account

if TYPE_CHECKING:
    from hdgemm.server.database import Database
    from hdgemm.server.settings import Settings

#: How long an answer about a token is believed: a revoked one works this much longer, at most.
_BELIEF_SECONDS: Final = 2.0
_MOST_REMEMBERED: Final = 10_000


class Service:
    """Settings, database and library of one server, and its memory of accounts.

    Parameters
    ----------
    hosts
        Names that a Host header may hold; None allows all. A server that only this machine can
        reach names itself, so that no web page can reach it under a name of its own.
    always_ask
        Ask for a token even while none was ever made.
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
        self.examiner = Examiner(settings, load_library(settings.library))
        self.statuses: Recent[tuple[str, str]] = Recent()
        self._always_ask = always_ask
        self._accounts: dict[str, tuple[float, Account | None]] = {}
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def account(self, secret: str | None) -> Account | None:
        """Return whose request this is; None for nobody known. Blocks: call it in a thread."""
        key = secret or ""
        with self._lock:
            known = self._accounts.get(key)
            if known is not None and time.monotonic() < known[0]:
                return known[1]
        found = self._find(secret)
        with self._lock:
            if len(self._accounts) >= _MOST_REMEMBERED:
                self._accounts.clear()
            self._accounts[key] = time.monotonic() + _BELIEF_SECONDS, found
        return found

    def remembered(self, secret: str | None) -> tuple[bool, Account | None]:
        """Return what `account` would, where that is known without asking the database."""
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
