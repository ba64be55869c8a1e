"""A PostgreSQL of the tests' own, in a temporary folder, where its programs are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Iterator


def programs() -> Path | None:
    """Return the newest PostgreSQL's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name))
    return found[-1] if found else None


def why_not() -> str | None:
    """Say why PostgreSQL cannot be used here."""
    if programs() is None:
        return "PostgreSQL's programs are not installed (Debian: postgresql)"
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        return "initdb refuses root, and there is no runuser"
    return None


def _run(*arguments: str | Path) -> None:
    command = [str(argument) for argument in arguments]
    if os.geteuid() == 0:
        command = ["runuser", "-u", "postgres", "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    reason = why_not()
    binaries = programs()
    if reason is not None or binaries is None:
        pytest.skip(reason or "")
    folder = Path(tempfile.mkdtemp(prefix="hdgemm-pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    data = folder / "data"
    _run(binaries / "initdb", "-D", data, "-A", "trust", "-U", "hdgemm", "--no-sync")
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    _run(binaries / "pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start")
    try:
        yield f"postgresql+psycopg://hdgemm@/%s?host={folder}"
    finally:
        _run(binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(postgres_server: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    engine = sa.create_engine(postgres_server % "postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return postgres_server % name
