"""The fork server of a worker, alone: it forks, reports how processes end, and is replaced."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from hdgemm.server.fork_server import SERVER_NAME, ForkServer, JobProcess
from hdgemm.server.watchdog import DATABASE_AWAY
from tests.server.harness import FAKE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hdgemm.server.settings import Settings


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with closing(ForkServer(FAKE)) as server:
        wait_until(server.ready)
        yield server


def start(fork_server: ForkServer, order: dict[str, Any], log: Path) -> JobProcess:
    with log.open("ab") as output:
        return fork_server.start(order, output.fileno())


@pytest.fixture
def order(settings: Settings) -> dict[str, Any]:
    """An order of a job in a database without tables."""
    settings.make_folders()
    return {"job": "none", "fence": 1, "settings": settings.model_dump(mode="json")}


def test_a_forked_process_is_a_child_with_a_session_and_an_exit_status(
    fork_server: ForkServer, order: dict[str, Any], tmp_path: Path
) -> None:
    process = start(fork_server, order, tmp_path / "log.txt")
    with process.stdin:
        seen = psutil.Process(process.pid)  # a zombie at the latest: it was not waited for
        assert (seen.ppid(), os.getpgid(process.pid)) == (os.getpid(), process.pid)
        assert process.wait() == DATABASE_AWAY
    assert (process.poll(), process.returncode) == (DATABASE_AWAY, DATABASE_AWAY)
    assert "cannot reach the database" in (tmp_path / "log.txt").read_text(encoding="utf-8")


def test_one_that_has_died_refuses_and_is_replaced(
    fork_server: ForkServer, order: dict[str, Any], tmp_path: Path
) -> None:
    (server,) = [each for each in psutil.Process().children() if each.name() == SERVER_NAME]
    server.kill()
    wait_until(lambda: server.status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(OSError, match=r"fork server|Broken pipe|reset"):
        start(fork_server, order, tmp_path / "log.txt")
    wait_until(fork_server.ready)
    process = start(fork_server, order, tmp_path / "log.txt")
    assert process.wait() == DATABASE_AWAY
    process.stdin.close()
