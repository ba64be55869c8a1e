"""The HTTP server, with one worker in a process beside it."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import socket
import ssl
import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import uvicorn

from hdgemm.errors import InputError
from hdgemm.server import tokens
from hdgemm.server.app import create_app
from hdgemm.server.database import open_database
from hdgemm.server.permissions import PRIVATE
from hdgemm.server.service import Service
from hdgemm.server.settings import Settings, is_loopback
from hdgemm.server.timeouts import with_timeouts
from hdgemm.server.watchdog import start_with_order

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from fastapi import FastAPI

    from hdgemm.server.database import Database

log = logging.getLogger("hdgemm.server")
_RESTART_SECONDS: Final = 1.0
_DRAIN_SECONDS: Final = 5
_THREAD_SECONDS: Final = 1.0


class WorkerKeeper:
    """Keeps one worker process running for as long as the server does."""

    def __init__(self, settings: Settings) -> None:
        self._order = settings.model_dump(mode="json")
        self._grace = settings.grace_seconds
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        # The kernel ends a worker with the thread that started it, so that one keeps running.
        self._thread = threading.Thread(target=self._keep, name="worker-keeper", daemon=True)
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
            process = start_with_order("hdgemm.server.worker", self._order)
            self._process = process
            if self._stop.is_set():
                process.terminate()
            status = process.wait()
            if not self._stop.wait(_RESTART_SECONDS):
                log.warning("the worker ended with status %s; starting another", status)


@dataclass(frozen=True)
class Listener:
    """Address to serve on, and the files of its TLS certificate."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None

    def check_certificate(self) -> None:
        """Load the certificate once.

        Raises `InputError` when it cannot be used, or there is a key alone.
        """
        if self.certificate is None:
            if self.key is not None:
                raise InputError("--tls-key goes with --tls-certificate")
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InputError(
                f"cannot use the TLS certificate {self.certificate}: {error.strerror or error}"
            ) from error


def check_may_serve(host: str, settings: Settings, database: Database) -> None:
    """Refuse to be open to the network without tokens.

    Raises `InputError` for an address that others can reach, directly or by a proxy, while no token
    is usable.
    """
    if is_loopback(host) and not settings.public_url:
        return
    with database.read() as conn:
        if not tokens.usable(conn):
            raise InputError(
                f"{settings.public_url or host} can be reached by others, and there is no token: "
                "make one with 'hdgemm token create --name NAME', or serve on 127.0.0.1"
            )


def make_service(settings: Settings, host: str) -> Service:
    """Open the database and check that serving on `host` is safe."""
    database = open_database(settings, serving=True)
    try:
        check_may_serve(host, settings, database)
    except BaseException:
        database.close()
        raise
    local = is_loopback(host)
    public = urlsplit(settings.public_url).hostname
    names = {"localhost", "127.0.0.1", "[::1]", host, *([public] if public else [])}
    return Service(
        settings,
        database,
        hosts=frozenset(names) if local else None,
        always_ask=not local or bool(settings.public_url),
    )


def make_config(app: FastAPI, settings: Settings, listener: Listener) -> uvicorn.Config:
    """Return the configuration of uvicorn for an application."""
    return uvicorn.Config(
        app,
        http=with_timeouts(settings.header_seconds, settings.body_seconds),
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        ssl_certfile=listener.certificate,
        ssl_keyfile=listener.key,
    )


def serve(settings: Settings, listener: Listener, *, with_worker: bool = True) -> None:
    """Serve until SIGTERM or SIGINT; then drain, and finish or hand back the jobs.

    Raises `InputError` as `check_may_serve`, for a database, an address or a certificate that
    cannot be used.
    """
    listener.check_certificate()
    service = make_service(settings, listener.host)
    with closing(service.database):
        _raise_file_limit()
        _run(service, listener, with_worker=with_worker)


def _run(service: Service, listener: Listener, *, with_worker: bool) -> None:
    settings = service.settings
    listening = _listen(listener.host, listener.port)
    host, port = listener.host, listening.getsockname()[1]
    scheme = "http" if listener.certificate is None else "https"
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    os.umask(PRIVATE)
    log.info("listening on %s; open %s in a browser", address, settings.public_url or address)
    config = make_config(create_app(service), settings, listener)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again after its shutdown; the worker is stopped after that.
        signal.signal(number, signal.SIG_IGN)
    keeper = WorkerKeeper(settings) if with_worker else None
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        if keeper is not None:
            keeper.close()
        _leave_blocked_threads()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Named as TCP, or asyncio leaves Nagle's algorithm on, and answers wait 40 ms.
        with ExitStack() as stack:
            listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            stack.callback(listener.close)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            stack.pop_all()
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        advice = "; give another --port (0 takes any that is free)" if in_use else ""
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}{advice}") from error
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
    """Raise the limit of open files as far as the system allows: each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
