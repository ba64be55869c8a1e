"""Event streams: their number is limited, they share one query, and they end with their token."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa

from hdgemm.server import events, tokens
from hdgemm.server.database import open_database
from hdgemm.server.problems import ProblemError
from hdgemm.server.service import Service
from hdgemm.server.tokens import Account
from tests.server.harness import (
    LIMIT,
    InProcess,
    application,
    make_settings,
    served,
    submit,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hdgemm.server.settings import Settings

A = {"path": "a.npy"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    chosen = make_settings(tmp_path, max_streams=12, max_streams_per_token=8)
    np.save(chosen.roots[0] / "a.npy", np.eye(3))
    return chosen


def test_streams_are_limited_by_token_and_in_all(settings: Settings) -> None:
    database = open_database(settings)
    streams = Service(settings, database).streams
    first, second = Account("a", "a"), Account("b", "b")
    kept = [streams.follow("j", first, "s", 0) for _ in range(8)]
    with pytest.raises(ProblemError) as refused:
        streams.follow("j", first, "s", 0)
    assert (refused.value.status, refused.value.members["limit"]) == (429, 8)
    kept += [streams.follow("j", second, "t", 0) for _ in range(4)]
    with pytest.raises(ProblemError) as refused:
        streams.follow("j", second, "t", 0)
    assert refused.value.members["limit"] == 12
    # A stream that its client left, begun or not, makes room.
    del kept[0]
    streams.follow("j", second, "t", 0)
    database.close()


def test_followers_share_one_query_a_tick(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_TICK_SECONDS", 0.05)
    monkeypatch.setattr(events, "_KEEP_ALIVE_TICKS", 1e6)
    with application(settings) as app:
        job_id = submit(InProcess(app), a=A, b=A)
        service: Service = app.state.service
        statements: list[str] = []

        async def first(stream: AsyncIterator[str]) -> str:
            texts = [await anext(stream), await anext(stream)]
            return texts[1]

        async def follow() -> list[str]:
            streams = [service.streams.follow(job_id, Account(), None, 0) for _ in range(8)]
            begun = await asyncio.gather(*(first(stream) for stream in streams))
            waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
            followers = list(service.streams._followers)
            while not all(one.news._waiters for one in followers):  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
            sa.event.listen(
                service.database.engine,
                "before_cursor_execute",
                lambda *arguments: statements.append(arguments[2]),
            )
            while sum("max(" in text for text in statements) < 5:
                await asyncio.sleep(0.01)
            with service.database.write() as conn:
                events.append(conn, job_id, "progress", {"percent": 1.0}, 0.0)
            told = await asyncio.gather(*waiting)
            return begun + told

        heard = asyncio.run(follow())
    assert all("accepted" in text for text in heard[:8])
    assert all('"percent": 1.0' in text for text in heard[8:])
    reads = [text for text in statements if "FROM events" in text and "jobs" not in text]
    assert len(reads) <= 2, "one read of the new event, shared by eight streams"


def test_a_revoked_token_ends_its_streams(settings: Settings) -> None:
    database = open_database(settings)
    with database.write() as conn:
        secret = tokens.create(conn, Account(name="me"), database.now(conn))
        tokens.create(conn, Account(name="other"), database.now(conn))
    with served(settings) as server, ThreadPoolExecutor(1) as pool:
        server.http.headers["Authorization"] = f"Bearer {secret}"
        job_id = submit(server.http, a=A, b=A)
        begun = threading.Event()

        def follow() -> str:
            text, at = "", f"{server.url}/v1/jobs/{job_id}/events"
            headers = dict(server.http.headers)
            with httpx.stream("GET", at, headers=headers, timeout=LIMIT) as answer:
                for part in answer.iter_text():
                    text += part
                    begun.set()
            return text

        stream = pool.submit(follow)
        assert begun.wait(LIMIT)
        with database.write() as conn:
            assert tokens.revoke(conn, "me", database.now(conn))
        wait_until(stream.done)
        assert "event: end" not in stream.result()
        assert server.http.get(f"/v1/jobs/{job_id}").status_code == 401
    database.close()


def test_streams_log_an_outage_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([sa.exc.OperationalError("SELECT", {}, Exception("refused"))] * 3)

    def look(_: object, __: object) -> tuple[dict[str, int], set[str | None]]:
        if (error := next(failures, None)) is not None:
            raise error
        return {}, set()

    async def watch() -> None:
        publisher: Any = SimpleNamespace(news=SimpleNamespace(forget=lambda _: None))
        streams = events.EventStreams(publisher, 1, 1)
        follower = events._Follower("job", Account(name="me"), None, 0)
        streams._followers.add(follower)
        assert await streams._wait(follower)
        streams._followers.clear()
        await streams._poll

    monkeypatch.setattr(events, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(events.EventStreams, "_look", look)
    asyncio.run(watch())
    assert caplog.messages == [
        "cannot reach the database: refused", "the database can be used again",
    ]  # fmt: skip
