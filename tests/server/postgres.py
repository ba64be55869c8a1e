"""A PostgreSQL server of the tests' own on 127.0.0.1, started at first use if it is installed.

``HDGEMM_TEST_POSTGRES=1`` gives every service of the tests (and of `bench.campaigns`) an empty
database of its own there, in place of SQLite: see `new_database`.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.ports import reserved_port

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The switch.
POSTGRES = "HDGEMM_TEST_POSTGRES"


class NoPostgresError(Exception):
    """PostgreSQL cannot be used here, and this says why."""


def wanted() -> bool:
    """Say whether services are to keep their jobs in PostgreSQL."""
    return os.environ.get(POSTGRES, "") not in {"", "0"}


def new_database() -> str:
    """Return the URL of an empty database.

    Raises
    ------
    NoPostgresError
        Where PostgreSQL is not installed, or would not run as this user.
    """
    server, name = _server()[0], f"t{secrets.token_hex(8)}"
    with psycopg.connect(server % "postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server % name


@cache
def _server() -> tuple[str, tuple[str | Path, ...]]:
    """Start the server; return its databases' URL with a place for their name, and the command."""
    binaries = _programs()
    folder = Path(tempfile.mkdtemp(prefix="hdgemm-pg-"))
    secret, data = secrets.token_hex(16), folder / "data"
    password = folder / "password"
    password.write_text(secret, encoding="ascii")
    if os.geteuid() == 0:
        for path in (folder, password):
            shutil.chown(path, "postgres")
    _run(
        binaries / "initdb", "-D", data, "-A", "scram-sha-256", "-U", "hdgemm", "-E", "UTF8",
        "--pwfile", password, "--no-sync",
    )  # fmt: skip
    with reserved_port() as port:
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories= "
            "-c fsync=off -c max_connections=400"
        )
        start = (
            binaries / "pg_ctl", "-D", data, "-w", "-t", "600", "-o", options,
            "-l", folder / "log", "start",
        )  # fmt: skip
        _run(*start)
    _stop_at_end(binaries / "pg_ctl", folder)
    return f"postgresql://hdgemm:{secret}@127.0.0.1:{port}/%s", start


@contextmanager
def outage() -> Iterator[None]:
    """Stop the server as a crash does; start it again on leaving."""
    _, start = _server()
    _run(start[0], "-D", start[2], "-w", "-m", "immediate", "stop")
    try:
        yield
    finally:
        _run(*start)


def _stop_at_end(pg_ctl: Path, folder: Path) -> None:
    """Stop the server when this process ends, also when it is killed: a shell waits for that."""
    stop = shlex.join(_as_postgres(pg_ctl, "-D", folder / "data", "-m", "immediate", "stop"))
    script = f"cat; cd /; {stop}; rm -rf {shlex.quote(str(folder))}"
    waiting = subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    atexit.register(waiting.communicate)


def _programs() -> Path:
    """Return the folder of the newest PostgreSQL's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name))
    with_server = [folder for folder in found if (folder / "initdb").exists()]
    if not with_server:
        raise NoPostgresError("PostgreSQL is not installed (Debian: postgresql)")
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        raise NoPostgresError("PostgreSQL refuses to run as root, and there is no runuser")
    return with_server[-1]


def _run(*arguments: str | Path) -> None:
    command = _as_postgres(*arguments)
    # Not to a pipe: the server would inherit it, and reading it would never end.
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(command, stdout=said, stderr=said, cwd="/", check=False)
        said.seek(0)
        assert done.returncode == 0, said.read()


def _as_postgres(*arguments: str | Path) -> list[str]:
    command = [str(argument) for argument in arguments]
    return ["runuser", "-u", "postgres", "--", *command] if os.geteuid() == 0 else command
