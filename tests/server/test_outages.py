"""A database that is away, a disk that is full, and starts that cannot be: plain answers."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from hdgemm.cli.app import main
from hdgemm.errors import InputError
from hdgemm.server import jobs, tables
from hdgemm.server.database import REVISION, Database, DiskReserve, open_database
from hdgemm.server.http_server import make_service
from hdgemm.server.migrations import versions
from hdgemm.server.outputs import writer_of
from hdgemm.server.problems import OutageLog
from tests.ports import reserved_port
from tests.server import postgres
from tests.server.harness import (
    LIMIT,
    REPOSITORY,
    InProcess,
    Live,
    application,
    finished,
    live,
    make_settings,
    newest_runner,
    postgres_url,
    submit,
    upload,
    wait_until,
)
from tests.server.numpy_library import DELAY, HOLD

if TYPE_CHECKING:
    from collections.abc import Iterator

A = {"path": "a.npy"}
GEMM = "/v1/processes/gemm/execution"


def test_a_database_that_is_away_is_503_everywhere(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    np.save(settings.roots[0] / "a.npy", np.eye(3))
    with application(settings) as app, reserved_port() as port:
        client = InProcess(app)
        matrix = upload(client, np.eye(3))
        job = f"/v1/jobs/{submit(client, a=A, b=A)}"
        service = app.state.service
        away = Database(f"postgresql://u:p@127.0.0.1:{port}/none")
        working, service.database.engine = service.database.engine, away.engine
        service.database._writer = away._writer
        body = {"inputs": {"a": {"matrix": matrix}, "b": A}}
        for known in (True, False):
            # With the account cached, and without: the middleware asks the database then.
            for method, at, sent in (
                ("GET", "/readyz", None), ("GET", "/metrics", None), ("GET", "/v1/system", None),
                ("GET", "/v1/jobs", None), ("GET", f"{job}", None), ("GET", f"{job}/events", None),
                ("GET", f"{job}/log", None), ("GET", f"{job}/results", None),
                ("POST", f"{job}/cancel", None), ("DELETE", job, None), ("POST", GEMM, body),
                ("GET", "/v1/matrices", None), ("GET", f"/v1/matrices/{matrix}", None),
                ("POST", "/v1/matrices", {"shape": [3, 3]}),
                ("DELETE", f"/v1/matrices/{matrix}", None),
            ):  # fmt: skip
                if not known:
                    service._accounts.clear()
                answer = client.request(method, at, **({"json": sent} if sent else {}))
                assert answer.status_code == 503, (method, at, answer.text)
                assert answer.json()["type"] == "/problems/database-busy"
        service.database.engine = working
        away.close()


@pytest.mark.campaign
def test_a_database_that_crashes_is_waited_for(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, database_url=postgres_url())
    np.save(settings.roots[0] / "a.npy", np.eye(30))
    with live(settings, **{DELAY: "0.1"}) as server:
        ids = [submit(server.http, a=A, b=A, name=str(number)) for number in range(3)]
        wait_until(lambda: server.http.get("/v1/jobs?status=running").json()["jobs"])
        until = time.monotonic() + 3.0
        with postgres.outage():
            while time.monotonic() < until:
                for at in ("/v1/jobs", f"/v1/jobs/{ids[0]}", "/readyz"):
                    assert server.http.get(at).status_code == 503
                refused = server.http.post(GEMM, json={"inputs": {"a": A, "b": A}})
                assert refused.status_code == 503
        for job_id in ids:
            wait_until(lambda: server.http.get("/readyz").status_code == 200)
            assert finished(server.http, job_id)["status"] == "successful"


def held_job(server: Live, hold: Path) -> tuple[str, psutil.Process]:
    """Submit a job that computes while `hold` exists; return its id and its process."""
    hold.touch()
    job_id = submit(server.http, a=A, b=A, output={"path": "c.npy"})

    def look() -> psutil.Process | None:
        job = server.http.get(f"/v1/jobs/{job_id}").json()
        return newest_runner(server.settings) if job["phase"] == "multiplying" else None

    process: psutil.Process = wait_until(look)
    return job_id, process


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.ci
def test_a_database_that_is_away_for_a_lease_is_no_crash_of_the_job(tmp_path: Path) -> None:
    settings = make_settings(
        tmp_path, database_url=postgres_url(), lease_seconds=4.0, max_crashes=1
    )
    np.save(settings.roots[0] / "a.npy", np.eye(30))
    hold = tmp_path / "hold"
    with live(settings, **{HOLD: str(hold)}) as server:
        job_id, process = held_job(server, hold)
        with postgres.outage():
            wait_until(lambda: has_ended(process))
        hold.unlink()
        job = finished(server.http, job_id)
        assert (job["status"], job["attempt"] >= 2) == ("successful", True), job
        told = server.http.get(f"/v1/jobs/{job_id}/events").text
        assert "database" in told
        assert "its process died" not in told


def test_a_result_waits_for_a_database_that_comes_back(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, database_url=postgres_url())
    np.save(settings.roots[0] / "a.npy", np.eye(30))
    hold = tmp_path / "hold"
    with live(settings, **{HOLD: str(hold)}) as server:
        job_id, process = held_job(server, hold)
        log = settings.job_dir(job_id) / "log.txt"
        with postgres.outage():
            hold.unlink()
            # The job has computed, and cannot say so: the phase after that is drawn in the folder.
            wait_until(lambda: "cannot reach the database" in log.read_text())
            wait_until(lambda: list(settings.roots[0].glob(".c.hdgemm-*")))
            assert not has_ended(process)
        job = finished(server.http, job_id)
        assert (job["status"], job["attempt"]) == ("successful", 1), job
        np.testing.assert_array_equal(np.load(settings.roots[0] / "c.npy"), np.eye(30))


@pytest.mark.campaign
def test_finished_jobs_expire(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, retention_seconds=5.0)
    np.save(settings.roots[0] / "a.npy", np.eye(3))
    with live(settings) as server:
        kept = submit(server.http, a=A, b=A)
        named = submit(server.http, a=A, b=A, output={"path": "c.npy"})
        job = finished(server.http, kept)
        times = [datetime.fromisoformat(job[name]) for name in ("finished", "expires")]
        assert times[1] - times[0] == timedelta(seconds=5)
        for job_id in (kept, named):
            wait_until(lambda at=f"/v1/jobs/{job_id}": server.http.get(at).status_code == 404)
        wait_until(lambda: not settings.job_dir(kept).exists())
        assert (settings.roots[0] / "c.npy").exists()


def test_a_submit_asks_the_same_of_the_database_however_many_jobs_wait(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    np.save(settings.roots[0] / "a.npy", np.eye(3))
    statements: list[str] = []
    with application(settings) as app:
        client, engine = InProcess(app), app.state.service.database.engine
        sa.event.listen(
            engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
        )
        counts = []
        for _ in range(12):
            # The account is cached for seconds, which a busy machine takes for some submits.
            app.state.service._accounts.clear()
            statements.clear()
            submit(client, a=A, b=A)
            counts.append(len(statements))
        assert len(set(counts[1:])) == 1
        assert sum("GROUP BY" in text for text in statements) == 1
        statements.clear()
        body = {"inputs": {"a": A, "b": A}, "dry_run": True}
        assert client.post(GEMM, json=body).status_code == 200
        assert not [text for text in statements if "FROM jobs" in text]


def test_an_outage_is_logged_once_until_its_cause_changes(caplog: pytest.LogCaptureFixture) -> None:
    def failure(name: str) -> sa.exc.OperationalError:
        cause = sqlite3.OperationalError("database or disk is full")
        cause.sqlite_errorname = name
        return sa.exc.OperationalError("UPDATE jobs", {}, cause)

    outage = OutageLog(logging.getLogger("test"))
    for error in [failure("SQLITE_FULL")] * 3 + [failure("SQLITE_BUSY")] * 2:
        outage.note(error)
    for _ in range(2):
        outage.end()
    outage.note(failure("SQLITE_BUSY"))
    away = "cannot reach the database: database or disk is full"
    assert caplog.messages == [
        "the disk of the service's database is full: remove files or jobs",
        away, "the database can be used again", away,
    ]  # fmt: skip


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB, where this user may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_on_a_full_disk_deletion_still_works(small_disk: Path, tmp_path: Path) -> None:
    settings = make_settings(
        tmp_path, data_dir=small_disk / "data", min_free_disk=0,
        database_url=f"sqlite:///{small_disk / 'service.db'}",
    )  # fmt: skip
    np.save(settings.roots[0] / "a.npy", np.eye(3))
    with live(settings) as server:
        matrix = upload(server.http, np.ones((400, 400)))
        job = f"/v1/jobs/{submit(server.http, a=A, b=A)}"
        finished(server.http, job[-32:])
        filler = small_disk / "filler"
        # Files that the server removes make room again, and an answer is kept for a second.
        deadline = time.monotonic() + LIMIT
        while True:
            with pytest.raises(OSError, match="space"), filler.open("ab", buffering=0) as stream:  # noqa: PT012
                while True:
                    stream.write(bytes(1 << 12))
            ready = server.http.get("/readyz")
            if ready.status_code == 507 or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        assert (ready.status_code, ready.json().get("type")) == (507, "/problems/disk-full")
        assert server.http.get("/v1/jobs").status_code == 200
        refused = server.http.post("/v1/matrices", json={"shape": [1000, 1000]})
        assert (refused.status_code, refused.json()["type"]) == (507, "/problems/disk-full")
        for _ in range(50):
            accepted = server.http.post(GEMM, json={"inputs": {"a": A, "b": A}})
            assert accepted.status_code in {201, 507}, accepted.text
        assert server.http.delete(job).status_code == 200
        assert server.http.get(job).status_code == 404
        assert server.http.delete(f"/v1/matrices/{matrix}").status_code == 204
        filler.unlink()
        reserve = small_disk / "data" / "reserve"
        wait_until(lambda: reserve.stat().st_size == 8 << 20)


def test_space_for_deletions_is_held_back_again_as_far_as_there_is_any(small_disk: Path) -> None:
    reserve = DiskReserve(small_disk / "reserve")
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="space"), filler.open("ab", buffering=0) as stream:  # noqa: PT012
        while True:
            stream.write(bytes(1 << 16))
    for _ in range(2):
        with reserve.released():
            (small_disk / "log").write_bytes(bytes(1 << 20))
        assert (small_disk / "reserve").stat().st_size == 4 << 20
    filler.unlink()
    reserve.fill()
    assert (small_disk / "reserve").stat().st_size == 8 << 20


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://hdgemm:secret@127.0.0.1:1/none", "refused"),
        ("postgresql://hdgemm:secret@no.such.host.invalid/none", "no.such.host.invalid"),
        ("nonsense", "HDGEMM_DATABASE_URL"),
        ("mysqlx://u:secret@h/d", "mysqlx"),
        ("sqlite:////proc/none/service.db", "/proc/none"),
    ],
)
def test_a_database_that_cannot_be_opened_is_a_sentence(
    tmp_path: Path, url: str, words: str
) -> None:
    with pytest.raises(InputError, match=words) as refused:
        open_database(make_settings(tmp_path, database_url=url))
    assert "cannot open the database" in str(refused.value)
    assert "secret" not in str(refused.value)


def run(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    values = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    return subprocess.run(
        [sys.executable, "-m", "hdgemm", *arguments, "--data-dir", str(tmp_path / "data")],
        env=values, check=False, capture_output=True, text=True, timeout=400,
    )  # fmt: skip


def run_here(
    patch: pytest.MonkeyPatch, output: pytest.CaptureFixture[str], folder: Path, *arguments: str
) -> tuple[object, str]:
    """Run a command that ends at its start in this process; return its exit code and errors."""
    patch.setattr(sys, "argv", ["hdgemm", *arguments, "--data-dir", str(folder / "data")])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, output.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--device", "cuda:7"), "cuda:7"),
        (("worker", "--device", "cuda:7"), "cuda:7"),
        (("serve", "--device", "host", "--device", "odd"), "odd"),
        (("serve", "--public-url", "example"), "public_url"),
        (("serve", "--public-url", "https://example.org"), "token"),
        (("serve", "--tls-certificate", "/none.pem"), "/none.pem"),
        (("serve", "--tls-key", "/none.pem"), "--tls-certificate"),
    ],
)
def test_starts_that_cannot_be_end_with_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    code, errors = run_here(monkeypatch, capsys, tmp_path, *arguments)
    assert code == 2, errors
    assert words in errors
    assert "Traceback" not in errors


def test_a_start_without_its_database_ends_with_a_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, "serve", "--database-url", "postgresql://u:p@127.0.0.1:1/x")
    assert done.returncode == 2, done.stderr
    assert "refused" in done.stderr
    assert "Traceback" not in done.stderr
    assert "alembic" not in done.stderr


def test_a_second_server_on_an_sqlite_database_is_refused(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, database_url="")
    first = make_service(settings, "127.0.0.1")
    open_database(settings).close()  # a worker, or `hdgemm token`
    # Named by another folder, too.
    other = make_settings(tmp_path, data_dir=tmp_path / "other", database_url=settings.url)
    for second in (settings, other):
        with pytest.raises(InputError, match=f"process {os.getpid()}, has the database"):
            make_service(second, "127.0.0.1")
    first.database.close()
    make_service(settings, "127.0.0.1").database.close()


def test_a_data_folder_that_is_a_file_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").write_text("")
    code, errors = run_here(monkeypatch, capsys, tmp_path, "token", "list")
    assert (code, "data folder" in errors) == (2, True)


def make_first_schema(database: Database) -> None:
    """Make the tables as they were before versions 2 to 5 of the schema."""
    with database.write() as conn:
        tables.Table.metadata.create_all(conn)
        for statement in (
            "DROP TABLE load_samples",
            "DROP TABLE past_runs",
            *(f"DROP INDEX jobs_{name}" for name in ("queue", "reserved", "output", "finished",
                                                  "owner_finished")),
            *(f"ALTER TABLE jobs DROP COLUMN {name}"
              for name in ("response", "output_path", "volume")),
            *(f"ALTER TABLE tokens DROP COLUMN {name}"
              for name in ("max_priority", "read_roots", "write_roots")),
            "CREATE INDEX jobs_queue ON jobs (status, priority, seq)",
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)",
            "INSERT INTO alembic_version VALUES ('0001')",
        ):  # fmt: skip
            conn.exec_driver_sql(statement)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_new_database_has_the_tables_of_an_upgraded_one(tmp_path: Path, kind: str) -> None:
    url = postgres_url() if kind == "postgresql" else ""
    database = open_database(make_settings(tmp_path, database_url=url))
    database.migrate(tmp_path / "lock")
    with database.write() as conn:
        context = MigrationContext.configure(conn)
        assert compare_metadata(context, tables.Table.metadata) == []
        assert context.get_current_revision() == REVISION
    database.close()


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, database_url="")
    database = open_database(settings)
    with database.write() as conn:
        conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    with pytest.raises(InputError, match=f"to schema {REVISION}: .*9999"):
        open_database(settings)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_database_of_the_first_schema_is_migrated(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres_url() if kind == "postgresql" else ""
    settings = make_settings(tmp_path, database_url=url)
    settings.make_folders()
    database = Database(settings.url)
    make_first_schema(database)
    output = {"path": str(settings.roots[0] / "c.npy"), "shape": [3, 3]}
    old: dict[str, Any] = {
        "id": "a" * 32, "owner": "o", "process": "gemm", "name": "", "priority": 0, "inputs": {},
        "request_digest": "", "status": "accepted", "phase": "queued", "message": "",
        "created": 1.0, "updated": 1.0, "output": output, "host_bytes": 5, "disk_bytes": 7,
        "devices": ["host"], "cancel": False, "fence": 0, "crashes": 0,
    }  # fmt: skip
    with database.write() as conn:
        conn.execute(sa.insert(tables.Job).values(**old))
    with caplog.at_level(logging.INFO):
        database.migrate(tmp_path / "lock")
    with database.write() as conn:
        assert compare_metadata(MigrationContext.configure(conn), tables.Table.metadata) == []
        assert jobs.get(conn, "a" * 32, "o").disk_bytes == 7
        assert writer_of(conn, "gemm", {}, Path(output["path"])) == ("a" * 32, output["path"])
        held = jobs.reserved(conn)
    assert (held.jobs, sum(held.disk_bytes.values())) == ({"o": 1}, 7)
    assert None not in held.disk_bytes
    files = Path(versions.__file__).parent.glob("0*.py")
    assert max(file.name[:4] for file in files) == REVISION
    assert not caplog.records
    database.close()
