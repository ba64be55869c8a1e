"""A whole service in one command: the HTTP server here, one worker in a process beside it."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import uvicorn

from hdgemm.errors import InputError
from hdgemm.server import tokens
from hdgemm.server.app import create_app
from hdgemm.server.database import open_database
from hdgemm.server.service import Service
from hdgemm.server.settings import Settings, is_loopback
from hdgemm.server.timeouts import with_timeouts

if TYPE_CHECKING:
    from hdgemm.server.database import Database

log = logging.getLogger("hdgemm.server")
_RESTART_SECONDS: Final = 1.0
_DRAIN_SECONDS: Final = 5
_THREAD_SECONDS: Final = 1.0


class WorkerKeeper:
    """Keeps one worker process running for as long as the server does."""

    def __init__(self, settings: Settings) -> None:
        self._order = json.dumps(settings.model_dump(mode="json")).encode() + b"\n"
        self._grace = settings.grace_seconds
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        # One thread for all its life: the kernel ends a worker with the thread that started it.
        self._thread = threading.Thread(target=self._keep, name="worker-keeper", daemon=True)

    def start(self) -> None:
        """Start the worker."""
        self._thread.start()

    def close(self) -> None:
        """Ask the worker to finish or hand back, and wait for it."""
        self._stop.set()
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                process.terminate()
        self._thread.join(self._grace + 10)

    def _keep(self) -> None:
        while not self._stop.is_set():
            process = subprocess.Popen(
                [sys.executable, "-m", "hdgemm.server.worker"], stdin=subprocess.PIPE
            )
            self._process = process
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.write(self._order)
                    process.stdin.flush()
            if self._stop.is_set():
                process.terminate()
            status = process.wait()
            if not self._stop.wait(_RESTART_SECONDS):
                log.warning("the worker ended with status %s; starting another", status)


def check_may_serve(host: str, database: Database) -> None:
    """Refuse to be open to the network without tokens.

    Raises
    ------
    InputError
        For an address that others can reach while no token is usable.
    """
    if is_loopback(host):
        return
    with database.read() as conn:
        if not tokens.usable(conn):
            raise InputError(
                f"{host} can be reached by others, and there is no token: "
                "make one with 'hdgemm token create --name NAME', or serve on 127.0.0.1"
            )


def make_service(settings: Settings, host: str) -> Service:
    """Open the database and check that serving on `host` is safe."""
    database = open_database(settings)
    check_may_serve(host, database)
    local = is_loopback(host)
    names = frozenset({"localhost", "127.0.0.1", "[::1]", host}) if local else None
    return Service(settings, database, hosts=names, always_ask=not local)


def serve(settings: Settings, host: str, port: int, *, with_worker: bool = True) -> None:
    """Serve until SIGTERM or SIGINT; then drain, and finish or hand back the jobs.

    Raises
    ------
    InputError
        As `check_may_serve`, or when the address cannot be listened on.
    """
    service = make_service(settings, host)
    _raise_file_limit()
    listener = _listen(host, port)
    address = listener.getsockname()
    log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, address[1])
    keeper = WorkerKeeper(settings) if with_worker else None
    config = uvicorn.Config(
        create_app(service),
        http=with_timeouts(settings.header_seconds, settings.body_seconds),
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again when it is done; there is still a worker to end then.
        signal.signal(number, signal.SIG_IGN)
    if keeper is not None:
        keeper.start()
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        if keeper is not None:
            keeper.close()
        service.database.close()
        _leave_blocked_threads()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Named as TCP, or asyncio leaves Nagle's algorithm on, and answers wait 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listener.listen(2048)
    listener.set_inheritable(False)
    return listener


def _leave_blocked_threads() -> None:
    """End the process where a thread is blocked in a system call; Python would wait for it."""
    until = time.monotonic() + _THREAD_SECONDS
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                log.warning("ending although %s is blocked", thread.name)
                logging.shutdown()
                os._exit(0)


def _raise_file_limit() -> None:
    """Half-open connections must not use the files up: take what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
