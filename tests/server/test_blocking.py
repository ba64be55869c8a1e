"""Files and plans that block: other requests, readiness and shutdown do not wait for them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from hdgemm.child_process import child_command
from hdgemm.errors import CancelledRunError, DoesNotFitError, InputError
from hdgemm.options import Options
from hdgemm.server import paths
from hdgemm.server.backend import Problem, Source
from hdgemm.server.planner import Planner
from tests.server.blocked_library import MARK
from tests.server.harness import (
    LIMIT,
    InProcess,
    application,
    live,
    make_settings,
    served,
    token,
    wait_until,
)

if TYPE_CHECKING:
    from pathlib import Path

GEMM = "/v1/processes/gemm/execution"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_matrices(tmp_path: Path, make: object) -> None:
    settings = make_settings(tmp_path)
    root = settings.roots[0]
    make(root / "odd.npy")  # type: ignore[operator]
    np.save(root / "a.npy", np.eye(3))
    odd, a = {"path": "odd.npy"}, {"path": "a.npy"}
    with application(settings) as app:
        client = InProcess(app)
        assert client.get("/v1/files", params=odd).status_code == 422
        for inputs in ({"a": odd, "b": a}, {"a": a, "b": a, "c": odd, "beta": 1.0}):
            assert client.post(GEMM, json={"inputs": inputs}).status_code == 422
    with pytest.raises(InputError), paths.opened(root / "odd.npy", settings.roots):
        pass


def test_fifos_hold_nothing_up(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    os.mkfifo(settings.roots[0] / "f.npy")
    body = {"inputs": {"a": {"path": "f.npy"}, "b": {"path": "f.npy"}}}
    with served(settings) as server, ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(lambda _: server.http.post(GEMM, json=body), range(60)))
        assert {answer.status_code for answer in answers} == {422}
        assert "regular file" in answers[0].json()["detail"]
        assert server.http.get("/readyz").status_code == 200


@pytest.mark.campaign
def test_blocked_threads_hold_neither_requests_nor_shutdown_up(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, library="tests.server.blocked_library:BlockedLibrary")
    np.save(settings.roots[0] / "a.npy", np.eye(3))
    body = {"inputs": {"a": {"path": "a.npy"}, "b": {"path": "a.npy"}}}
    with live(settings, "--no-worker") as server, ThreadPoolExecutor(60) as pool:
        waiting = [
            pool.submit(httpx.post, server.url + GEMM, json=body, timeout=LIMIT) for _ in range(60)
        ]
        busy = wait_until(lambda: [one for one in waiting if one.done()])
        assert busy[0].result().status_code == 503
        assert server.http.get("/readyz").status_code == 200
        assert server.http.get("/v1/jobs").json()["jobs"] == []
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(LIMIT)
        assert server.process.returncode == 0


def test_one_tokens_plans_leave_slots_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path, library="tests.server.blocked_library:HeldLibrary")
    mark = tmp_path / "mark"
    monkeypatch.setenv(MARK, str(mark))
    mark.touch()
    for name, order in (("slow", 3), ("quick", 5)):
        np.save(settings.roots[0] / f"{name}.npy", np.eye(order))

    def ask(owner: str, name: str) -> int:
        operand = {"path": f"{name}.npy"}
        body = {"inputs": {"a": operand, "b": operand}, "dry_run": True}
        headers = {"Authorization": f"Bearer {owner}"}
        return httpx.post(server.url + GEMM, json=body, headers=headers, timeout=LIMIT).status_code

    with served(settings) as server, ThreadPoolExecutor(8) as pool:
        one, other = token(server.app, "one"), token(server.app, "other")
        slots = server.app.state.service.plans
        monkeypatch.setattr(slots, "_wait_seconds", LIMIT)
        slow = [pool.submit(ask, one, "slow") for _ in range(8)]
        try:
            wait_until(lambda: any(share.users == 8 for share in slots._shares.values()))
            assert ask(other, "quick") == 200
            assert not any(each.done() for each in slow)
        finally:
            mark.unlink()
        assert {each.result() for each in slow} == {200}
        wait_until(lambda: not slots._shares)


def test_planning_is_cancelled_when_the_client_disconnects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path, library="tests.server.blocked_library:CancellableLibrary")
    np.save(settings.roots[0] / "a.npy", np.eye(3))
    inputs = {"a": {"path": "a.npy"}, "b": {"path": "a.npy"}}
    mark = tmp_path / "mark"
    monkeypatch.setenv(MARK, str(mark))
    with served(settings) as server:
        for dry_run in (True, False):
            body = json.dumps({"inputs": inputs, "dry_run": dry_run})
            head = (
                f"POST {GEMM} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall((head + body).encode())
                wait_until(lambda: mark.exists() and mark.read_text() == "planning")
            wait_until(lambda: mark.read_text() == "cancelled")
        assert server.http.get("/v1/jobs").json()["jobs"] == []


def test_a_plan_ends_when_its_client_disconnects_or_it_takes_too_much() -> None:
    square = Source((4000, 4000), "float64")
    big = Problem(
        process="gemm", m=4000, n=4000, k=4000, operands={"a": square, "b": square}, parameters={}
    )
    gone = threading.Event()
    steps = Options(devices="host", host_memory="1GB", tile=(4, 4, 4))
    gone.set()
    with pytest.raises(CancelledRunError):
        Planner().plan(big, steps, gone)
    slow = Planner(seconds=0.0)
    with pytest.raises(InputError, match="larger tile"):
        slow.plan(big, steps, threading.Event())
    planner = Planner(seconds=LIMIT)
    tight = Options(devices="host", host_memory="1kB")
    with pytest.raises(DoesNotFitError) as refused:
        planner.plan(big, tight, threading.Event())
    assert refused.value.missing > 0
    demand = planner.plan(big, Options(devices="host", host_memory="100MB"), threading.Event())
    assert demand.host_bytes <= 100_000_000
    assert len(planner._idle) == 1
    planner.close()


def test_a_planner_ends_with_its_parent() -> None:
    ours, theirs = Pipe()
    command = child_command("hdgemm.server.planner", str(theirs.fileno()))
    with subprocess.Popen(command, pass_fds=(theirs.fileno(),)) as child:
        theirs.close()
        ours.close()
        assert child.wait(LIMIT) == 0
