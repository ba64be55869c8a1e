"""Crash tests: real servers, workers and job processes are killed or stopped."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from hdgemm.errors import HdgemmError, InputError, MatrixIOError
from hdgemm.linalg import SingularMatrixError
from hdgemm.server.database import Database, open_database
from hdgemm.server.fork_server import JOB_NAME, SERVER_NAME
from hdgemm.server.references import OperandFiles
from hdgemm.server.watchdog import ORPHANED, start_with_order
from hdgemm.server.worker import WORKER_NAME
from tests.server.harness import (
    LIMIT,
    Live,
    finished,
    live,
    make_settings,
    newest_runner,
    processes,
    start,
    submit,
    upload,
    wait_until,
)
from tests.server.numpy_library import DELAY, HOLD, MODE, WRONG_ALPHA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hdgemm.server.settings import Settings

A, B = {"path": "a.npy"}, {"path": "b.npy"}


def settings_in(folder: Path) -> Settings:
    chosen = make_settings(folder, lease_seconds=6.0)
    rng = np.random.default_rng(1)
    for name in ("a", "b"):
        np.save(chosen.roots[0] / f"{name}.npy", rng.standard_normal((30, 30)))
    return chosen


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


@pytest.fixture
def own(settings: Settings) -> Iterator[Live]:
    """A server with jobs of about a second, for one test that stops it or starts more workers."""
    with live(settings, **{DELAY: "0.1"}) as server:
        yield server


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server for all tests that leave no job and no file behind."""
    settings = settings_in(tmp_path_factory.mktemp("slow"))
    with live(settings, **{DELAY: "0.02", HOLD: str(hold_of(settings))}) as server:
        yield server


def hold_of(settings: Settings) -> Path:
    return settings.data_dir / "hold"


@pytest.fixture
def hold(slow: Live) -> Iterator[Path]:
    """A file that holds jobs after their third step: on any machine they are seen running."""
    file = hold_of(slow.settings)
    file.touch()
    yield file
    file.unlink(missing_ok=True)


def expected(settings: Settings) -> Any:
    return np.load(settings.roots[0] / "a.npy") @ np.load(settings.roots[0] / "b.npy")


def result(server: Live, job_id: str) -> Any:
    answer = server.http.get(f"/v1/jobs/{job_id}/results/c")
    assert answer.status_code == 200, answer.text
    return np.load(io.BytesIO(answer.content))


def running_job(server: Live) -> psutil.Process:
    """Wait until a job multiplies; return its process."""

    def look() -> psutil.Process | None:
        jobs = server.http.get("/v1/jobs?status=running").json()["jobs"]
        if any(job["phase"] == "multiplying" for job in jobs):
            return newest_runner(server.settings)
        return None

    found: psutil.Process = wait_until(look)
    return found


@pytest.mark.campaign
def test_jobs_run_in_order_and_read_each_other(settings: Settings) -> None:
    with live(settings) as server:
        matrix = upload(server.http, np.eye(30) * 2)
        first = submit(server.http, a=A, b=B)
        second = submit(server.http, a={"job": first}, b={"matrix": matrix}, alpha=0.5,
                        c={"path": "a.npy"}, beta=1.0, output={"path": "out.npy"})  # fmt: skip
        job = finished(server.http, second)
        assert job["status"] == "successful", job
        a = np.load(settings.roots[0] / "a.npy")
        np.testing.assert_allclose(np.load(settings.roots[0] / "out.npy"), expected(settings) + a)
        np.testing.assert_allclose(result(server, first), expected(settings))
        checked = submit(server.http, "verify", a=A, b=B, c={"job": first})
        assert finished(server.http, checked)["report"]["passed"] is True
        refused = submit(server.http, "verify", a=A, b=B, c=A)
        assert finished(server.http, refused)["status"] == "failed"
        for job_id in (second, checked, refused):
            # Names of the files that a process has open are removed after its job's end.
            folder = settings.job_dir(job_id)
            wait_until(lambda own=folder: not any(each.is_symlink() for each in own.iterdir()))
        assert sorted(path.name for path in settings.roots[0].iterdir()) == [
            "a.npy", "b.npy", "out.npy",
        ]  # fmt: skip


@pytest.mark.campaign
def test_a_result_that_somebody_replaced_is_not_given_out_as_the_jobs(settings: Settings) -> None:
    with live(settings) as server:
        first = submit(server.http, a=A, b=B, output={"path": "out.npy"})
        assert finished(server.http, first)["status"] == "successful"
        assert server.http.get(f"/v1/jobs/{first}/results/c").status_code == 200
        again = {"path": "out.npy", "overwrite": True}
        second = submit(server.http, a=B, b=A, output=again)
        assert finished(server.http, second)["status"] == "successful"
        refused = server.http.get(f"/v1/jobs/{first}/results/c")
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/changed")
        reader = finished(server.http, submit(server.http, a={"job": first}, b=B))
        assert (reader["status"], reader["error"]["origin"]) == ("failed", "user")
        assert server.http.get(f"/v1/jobs/{second}/results/c").status_code == 200
        (settings.roots[0] / "out.npy").unlink()
        assert server.http.get(f"/v1/jobs/{second}/results/c").status_code == 409


def test_a_killed_job_process_is_started_again(slow: Live, hold: Path) -> None:
    job_id = submit(slow.http, a=A, b=B)
    running_job(slow).kill()
    hold.unlink()
    job = finished(slow.http, job_id)
    assert job["status"] == "successful"
    assert job["attempt"] >= 2
    np.testing.assert_allclose(result(slow, job_id), expected(slow.settings))
    assert "SIGKILL" in "".join(slow.http.get(f"/v1/jobs/{job_id}/events").text)


def test_jobs_survive_the_death_of_the_fork_server_and_the_next_one_starts(
    slow: Live, hold: Path
) -> None:
    first = submit(slow.http, a=A, b=B)
    running_job(slow)
    processes(slow.settings, SERVER_NAME)[0].kill()
    second = submit(slow.http, a=A, b=B)
    hold.unlink()
    ended = [finished(slow.http, job_id) for job_id in (first, second)]
    assert [(job["status"], job["attempt"]) for job in ended] == [("successful", 1)] * 2


def test_a_killed_worker_takes_its_job_process_along_and_the_job_is_taken_up(
    slow: Live, hold: Path
) -> None:
    job_id = submit(slow.http, a=A, b=B)
    process = running_job(slow)
    processes(slow.settings, WORKER_NAME)[0].kill()
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    hold.unlink()
    assert finished(slow.http, job_id)["status"] == "successful"
    np.testing.assert_allclose(result(slow, job_id), expected(slow.settings))


def test_a_worker_that_starts_as_its_server_dies_ends_too(settings: Settings) -> None:
    open_database(settings).close()
    order = settings.model_dump(mode="json")
    process = start_with_order("hdgemm.server.worker", order, stderr=subprocess.PIPE)
    try:
        _, errors = process.communicate(timeout=LIMIT)  # closes the pipe, as a dying server
    finally:
        process.kill()
    assert (process.returncode, errors) == (ORPHANED, b"")


def test_a_killed_server_loses_nothing_it_accepted(slow: Live, hold: Path) -> None:
    jobs = [submit(slow.http, a=A, b=B, name=str(i)) for i in range(2)]
    running_job(slow)
    slow.kill()
    hold.unlink()
    slow.restart()
    slow.wait()
    for job_id in jobs:
        assert finished(slow.http, job_id)["status"] == "successful"
        np.testing.assert_allclose(result(slow, job_id), expected(slow.settings))


def stop(server: Live, process: psutil.Process) -> None:
    """Stop a process outside its transactions: SQLite's lock would stay with it."""
    while True:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        if server.http.get("/readyz").status_code == 200:
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(0.1)


@pytest.mark.campaign
def test_a_stopped_job_process_is_replaced_and_cannot_publish_when_it_wakes(own: Live) -> None:
    job_id = submit(own.http, a=A, b=B, output={"path": "c.npy"})
    process = running_job(own)
    # As on a machine that is frozen, its worker is stopped too; another one takes the job over.
    frozen = [process, *processes(own.settings, WORKER_NAME)]
    for one in frozen:
        stop(own, one)
    other = start("worker", own.settings, **{DELAY: "0.05"})
    try:
        job = finished(own.http, job_id)
        assert (job["status"], job["attempt"]) == ("successful", 2)
        written = (own.settings.roots[0] / "c.npy").stat()
        for one in frozen:
            one.send_signal(signal.SIGCONT)
        wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
        assert (own.settings.roots[0] / "c.npy").stat() == written
        assert own.http.get(f"/v1/jobs/{job_id}").json() == job
    finally:
        other.terminate()
        other.wait(LIMIT)


@pytest.mark.ci
def test_a_job_process_that_hangs_makes_room_on_its_only_worker(slow: Live, hold: Path) -> None:
    job_id = submit(slow.http, a=A, b=B, output={"path": "c.npy"})
    running_job(slow).send_signal(signal.SIGSTOP)
    hold.unlink()
    job = finished(slow.http, job_id)
    assert job["status"] == "successful"
    assert job["attempt"] >= 2
    root = slow.settings.roots[0]
    assert sorted(path.name for path in root.iterdir()) == ["a.npy", "b.npy", "c.npy"]
    (root / "c.npy").unlink()


@pytest.mark.usefixtures("hold")
def test_cancelling_a_running_job_stops_it_and_keeps_the_record(slow: Live) -> None:
    job_id = submit(slow.http, "profile", device="host")
    wait_until(lambda: slow.http.get(f"/v1/jobs/{job_id}").json()["detail"])
    process = newest_runner(slow.settings)
    assert slow.http.post(f"/v1/jobs/{job_id}/cancel").json()["cancelRequested"]
    assert finished(slow.http, job_id)["status"] == "dismissed"
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.campaign
def test_a_check_that_does_not_listen_is_stopped_all_the_same(settings: Settings) -> None:
    with live(settings, **{DELAY: "2"}) as server:
        job_id = submit(server.http, "verify", a=A, b=B, c=A)
        wait_until(lambda: server.http.get(f"/v1/jobs/{job_id}").json()["phase"] == "verifying")
        server.http.post(f"/v1/jobs/{job_id}/cancel")
        assert finished(server.http, job_id)["status"] == "dismissed"
        assert "killed" in server.http.get(f"/v1/jobs/{job_id}").json()["message"]
        wait_until(lambda: not processes(settings, JOB_NAME))


@pytest.mark.campaign
def test_a_job_that_always_dies_fails_at_last_and_says_how(settings: Settings) -> None:
    chosen = settings.model_copy(update={"max_crashes": 2})
    with live(chosen, **{MODE: "die"}) as server:
        job = finished(server.http, submit(server.http, a=A, b=B))
        assert (job["status"], job["error"]["origin"]) == ("failed", "system")
        assert "SIGABRT" in job["error"]["detail"]


def test_a_fault_of_the_library_is_the_systems_and_its_trace_is_in_the_log(slow: Live) -> None:
    job_id = submit(slow.http, a=A, b=B, options={"strategy": "initial"})
    job = finished(slow.http, job_id)
    assert (job["status"], job["error"]["origin"]) == ("failed", "system")
    assert "RuntimeError" in slow.http.get(f"/v1/jobs/{job_id}/log").text


def test_a_product_that_its_check_finds_wrong_is_not_published(server: Live) -> None:
    root = server.settings.roots[0]
    np.save(root / "checked.npy", np.eye(3))
    a, output = {"path": "checked.npy"}, {"path": "wrong.npy"}
    options = {"verify": True}
    job_id = submit(server.http, a=a, b=a, alpha=WRONG_ALPHA, output=output, options=options)
    job = finished(server.http, job_id)
    assert (job["status"], job["error"]["origin"]) == ("failed", "system")
    assert "C is not the product; the result is not published" in job["error"]["detail"]
    assert job["verification"]["passed"] is False
    assert not [path.name for path in root.iterdir() if "wrong" in path.name]


def test_a_job_has_one_log_line_at_its_start_and_one_at_its_end(server: Live) -> None:
    np.save(server.settings.roots[0] / "logged.npy", np.eye(3))
    logged_matrix = {"path": "logged.npy"}
    job_id = submit(server.http, a=logged_matrix, b=logged_matrix, priority=3)
    log = server.settings.data_dir / "serve.log"

    def logged() -> list[dict[str, Any]]:
        text = log.read_text(encoding="utf-8")
        assert "alembic" not in text
        whole = text.rpartition("\n")[0].splitlines()
        return [json.loads(line[line.index("{") :]) for line in whole if f'"{job_id}"' in line]

    wait_until(lambda: len(logged()) > 1)
    lines = logged()
    assert [line["event"] for line in lines] == ["job_start", "job_end"]
    assert (lines[0]["priority"], lines[0]["attempt"], lines[0]["owner"]) == (3, 1, "")
    assert (lines[1]["status"], lines[1]["exit"]) == ("successful", 0)
    assert lines[1]["seconds"] > 0


@pytest.mark.usefixtures("hold")
def test_an_input_that_changed_since_is_the_users(slow: Live) -> None:
    blocker = submit(slow.http, "profile", device="host")
    changed = slow.settings.roots[0] / "changed.npy"
    np.save(changed, np.zeros((30, 30)))
    job_id = submit(slow.http, a=A, b={"path": "changed.npy"})
    np.save(changed, np.zeros((7, 7)))
    slow.http.post(f"/v1/jobs/{blocker}/cancel")
    job = finished(slow.http, job_id)
    changed.unlink()
    assert (job["status"], job["error"]["origin"]) == ("failed", "user")


def test_errors_name_files_as_the_user_does(settings: Settings, tmp_path: Path) -> None:
    path = settings.roots[0] / "a.npy"
    files = OperandFiles(settings, Database(settings.url), tmp_path)
    told = {
        "is truncated": (MatrixIOError, None, InputError),
        "cannot be read": (MatrixIOError, OSError("the disk is broken"), MatrixIOError),
        "is singular": (SingularMatrixError, None, SingularMatrixError),
    }
    with ExitStack() as stack:
        link = files.open(stack, "a", {"path": str(path)})
        out = files.name("out", 0) / ".c.hdgemm-0-1.npy"
        files.show_output(out, settings.roots[0] / "c.npy", "the result")
        for words, (raised, cause, expected) in told.items():
            text = f"{link} {words}, see {out.with_suffix('.piv.npy')}"
            with pytest.raises(HdgemmError) as caught, files.named_for_user():
                raise raised(text, path=str(link), length=3) from cause
            assert type(caught.value) is expected
            assert str(caught.value) == f"{path} {words}, see the result.piv.npy"
            assert caught.value.numbers == {"path": str(path), "length": 3}


@pytest.mark.campaign
def test_a_graceful_end_hands_running_jobs_back(settings: Settings) -> None:
    with live(settings, **{DELAY: "1.0"}) as server:
        job_id = submit(server.http, a=A, b=B)
        running_job(server)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(LIMIT)
        assert processes(settings, JOB_NAME) == []
    left = (settings.data_dir / "serve.log").read_text(encoding="utf-8")
    assert ": left" in left
    with live(settings) as again:
        job = finished(again.http, job_id)
        assert (job["status"], job["attempt"]) == ("successful", 2)
        assert "its worker was shut down" in again.http.get(f"/v1/jobs/{job_id}/events").text


@pytest.mark.campaign
def test_two_workers_share_the_queue_and_never_a_job(own: Live) -> None:
    other = start("worker", own.settings, **{DELAY: "0.1"})
    try:
        jobs = [submit(own.http, a=A, b=B) for _ in range(6)]
        ended = [finished(own.http, job_id) for job_id in jobs]
        assert {(job["status"], job["attempt"]) for job in ended} == {("successful", 1)}
        spans = [(job["started"], job["finished"]) for job in ended]
        assert any(a < d and c < b for a, b in spans for c, d in spans if (a, b) != (c, d))
    finally:
        other.terminate()
        assert other.wait(LIMIT) == 0


def test_a_restored_backup_has_all_results_and_uploads(settings: Settings, tmp_path: Path) -> None:
    # The commands of docs/how-to/service.md.
    with live(settings) as server:
        matrix = upload(server.http, np.eye(30) * 2)
        job_id = submit(server.http, a=A, b=B)
        assert finished(server.http, job_id)["status"] == "successful"
        wanted = result(server, job_id)
    backup, restored = tmp_path / "backup.tar", tmp_path / "restored"
    restored.mkdir()
    subprocess.run(["tar", "-C", tmp_path, "--format=posix", "-cpf", backup, "data"], check=True)
    shutil.rmtree(settings.data_dir)
    subprocess.run(["tar", "-C", restored, "-xpf", backup], check=True)
    changed: dict[str, object] = {"data_dir": restored / "data"}
    with live(settings.model_copy(update=changed)) as server:
        np.testing.assert_array_equal(result(server, job_id), wanted)
        reader = submit(server.http, a={"job": job_id}, b={"matrix": matrix})
        assert finished(server.http, reader)["status"] == "successful"
        np.testing.assert_allclose(result(server, reader), 2 * wanted)


def test_events_resume_where_they_broke_off(slow: Live) -> None:
    job_id = submit(slow.http, a=A, b=B)
    seen: list[int] = []
    with slow.http.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
        for line in answer.iter_lines():
            if line.startswith("id: "):
                seen.append(int(line[4:]))
            if len(seen) == 3:
                break
    finished(slow.http, job_id)
    last = {"Last-Event-ID": str(seen[-1])}
    text = slow.http.get(f"/v1/jobs/{job_id}/events", headers=last).text
    rest = [int(line[4:]) for line in text.splitlines() if line.startswith("id: ")]
    assert rest == sorted(rest)
    assert min(rest) > seen[-1]
    assert '"status": "successful"' in text
    assert "event: end" in text


def test_a_server_open_to_the_network_needs_a_token(settings: Settings) -> None:
    process = start("serve", settings, "--host", "0.0.0.0", "--port", "0")
    assert process.wait(LIMIT) != 0
    assert "token" in (settings.data_dir / "serve.log").read_text(encoding="utf-8")
    # Nothing is left running.
    time.sleep(0.1)
    assert processes(settings, WORKER_NAME) == []
