"""Fixtures of the service's tests: a service in this process, and real server processes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import psutil
import pytest
import uvicorn

import hdgemm
from hdgemm.server import tokens
from hdgemm.server.app import create_app
from hdgemm.server.database import open_database
from hdgemm.server.fork_server import JOB_NAME
from hdgemm.server.http_server import Listener, make_config
from hdgemm.server.service import Service
from hdgemm.server.settings import Settings
from hdgemm.server.tokens import Account
from tests.child import ends_with_parent
from tests.ports import reserved_port
from tests.server import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastapi import FastAPI
    from numpy.typing import NDArray

FAKE = "tests.server.numpy_library:NumpyLibrary"
REPOSITORY = Path(hdgemm.__file__).parent.parent
#: Seconds after which a wait fails: many times what a slow and busy machine takes.
LIMIT = 240.0
#: A connection for each request: the server closes idle ones, also just as a client uses them.
UNPOOLED = httpx.Limits(max_keepalive_connections=0)


def make_settings(folder: Path, **values: Any) -> Settings:
    """Quick clocks, the NumPy library, one root, SQLite or an empty database in PostgreSQL.

    Leases outlast any pause of a busy machine; a test that waits for their end sets a short one.
    """
    root = folder / "root"
    root.mkdir(exist_ok=True)
    if postgres.wanted():
        values = {"database_url": postgres_url(), **values}
    return Settings(
        **{
            "data_dir": folder / "data", "roots": (root,), "library": FAKE, "memory": 1 << 30,
            "lease_seconds": 60.0, "beat_seconds": 0.5, "poll_seconds": 0.1, "grace_seconds": 2.0,
            "job_niceness": 0,
            **values,
        }
    )  # fmt: skip


def postgres_url() -> str:
    """Return the URL of an empty database in PostgreSQL; skip the test where there can be none."""
    try:
        return postgres.new_database()
    except postgres.NoPostgresError as why:
        pytest.skip(str(why))


@contextlib.contextmanager
def application(settings: Settings, **options: Any) -> Iterator[FastAPI]:
    """An application in this process."""
    database = open_database(settings)
    try:
        yield create_app(Service(settings, database, **options))
    finally:
        database.close()


@dataclass(frozen=True)
class Threaded:
    """A server without a worker, in a thread of the test's process."""

    app: FastAPI
    settings: Settings
    port: int
    http: httpx.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def served(settings: Settings) -> Iterator[Threaded]:
    """Serve on a port, without the seconds that a process takes to import everything."""
    with application(settings) as app, socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(make_config(app, settings, Listener()))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        port = listening.getsockname()[1]
        try:
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=LIMIT, limits=UNPOOLED) as http:
                wait_until(lambda: server.started)
                yield Threaded(app, settings, port, http)
        finally:
            server.should_exit = True
            thread.join()


class InProcess:
    """Requests to an application without sockets; its own errors become answers."""

    def __init__(self, app: FastAPI, token: str | None = None) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.app = app
        self._http = httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=headers
        )

    def request(self, method: str, url: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            return await self._http.request(method, url, **options)

        return asyncio.run(ask())

    get = partialmethod(request, "GET")
    put = partialmethod(request, "PUT")
    post = partialmethod(request, "POST")
    delete = partialmethod(request, "DELETE")


def token(app: FastAPI, name: str, **limits: Any) -> str:
    """Create an account with these limits; return its token."""
    database = app.state.service.database
    with database.write() as conn:
        return tokens.create(conn, Account(name=name, **limits), database.now(conn))


def npy(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def upload(client: Any, array: NDArray[Any], **described: str) -> str:
    """Upload a matrix in one part; return its id."""
    data = np.ascontiguousarray(array)
    new = {"shape": list(data.shape), "dtype": data.dtype.name, **described}
    answer = client.post("/v1/matrices", json=new)
    assert answer.status_code == 201, answer.text
    at = answer.headers["location"]
    put = client.put(f"{at}/content", content=data.tobytes())
    assert put.status_code == 200, put.text
    assert client.post(f"{at}/complete").status_code == 200
    return str(answer.json()["id"])


def environment(settings: Settings, **extra: str) -> dict[str, str]:
    values = settings.model_dump(mode="json", exclude={"roots", "devices"}, exclude_none=True)
    named = {f"HDGEMM_{name.upper()}": str(value) for name, value in values.items()}
    named["HDGEMM_ROOTS"] = os.pathsep.join(map(str, settings.roots))
    named["HDGEMM_DEVICES"] = ",".join(settings.devices)
    path = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "tests")))
    return {**os.environ, **named, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **extra}


def start(
    command: str, settings: Settings, *arguments: str, **extra: str
) -> subprocess.Popen[bytes]:
    """Start `hdgemm <command>` as a process of its own."""
    settings.make_folders()
    with (settings.data_dir / f"{command}.log").open("ab") as log:
        return subprocess.Popen(
            ends_with_parent([sys.executable, "-m", "hdgemm", command, *arguments]),
            env=environment(settings, **extra), stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def wait_until(ready: Callable[[], Any], seconds: float = LIMIT, every: float = 0.1) -> Any:
    """Return the first true answer; fail when there is none in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(httpx.TransportError):
            if answer := ready():
                return answer
        time.sleep(every)
    raise AssertionError(f"no true answer within {seconds} seconds")


class Live:
    """A server with its worker as real processes; it can be killed and started again."""

    def __init__(self, settings: Settings, *arguments: str, **extra: str) -> None:
        self.settings = settings
        self._reserved = contextlib.ExitStack()
        self.port = self._reserved.enter_context(reserved_port())
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=LIMIT, limits=UNPOOLED)
        self._arguments = arguments
        self._extra = extra
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return start(
            "serve", self.settings, "--port", str(self.port), *self._arguments, **self._extra
        )

    def wait(self) -> Live:
        wait_until(self._ready)
        return self

    def _ready(self) -> bool:
        assert self.process.poll() is None, (self.settings.data_dir / "serve.log").read_text()
        return self.http.get("/readyz").status_code == 200

    def restart(self) -> None:
        self.process = self._start()

    def kill(self) -> None:
        """End the server alone, without a warning."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self._reserved.close()


@contextlib.contextmanager
def live(settings: Settings, *arguments: str, **extra: str) -> Iterator[Live]:
    server = Live(settings, *arguments, **extra)
    try:
        yield server.wait()
    finally:
        server.close()


def finished(client: Any, job_id: str) -> dict[str, Any]:
    """Wait for a job's end; return its status document."""

    def look() -> dict[str, Any] | None:
        job: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").json()
        return job if job["status"] in {"successful", "failed", "dismissed"} else None

    answer: dict[str, Any] = wait_until(look)
    return answer


def submit(client: Any, process: str = "gemm", **inputs: Any) -> str:
    answer = client.post(f"/v1/processes/{process}/execution", json={"inputs": inputs})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["jobID"])


def processes(settings: Settings, name: str) -> list[psutil.Process]:
    """Return the living processes of one service that have a name."""
    found = []
    for process in psutil.process_iter(["environ", "name"]):
        if process.info["name"] == name:
            environ = process.info["environ"] or {}
            if environ.get("HDGEMM_DATA_DIR") == str(settings.data_dir):
                found.append(process)
    return found


def newest_runner(settings: Settings) -> psutil.Process | None:
    """Return the process of the job that runs; an earlier job's process may not have ended."""
    runners = processes(settings, JOB_NAME)
    return max(runners, key=lambda each: each.create_time(), default=None)
