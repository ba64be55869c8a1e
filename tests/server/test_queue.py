"""The queue's view, the samples of load, folders and the history of a job."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sqlalchemy as sa

from hdgemm.pipeline.timeline import Event
from hdgemm.server import activity, jobs, load, tokens
from hdgemm.server.database import open_database
from hdgemm.server.heartbeat import History, RecentOperations
from hdgemm.server.tables import Job, LoadSample, WorkerRow
from tests.server.harness import (
    InProcess,
    application,
    finished,
    live,
    make_settings,
    newest_runner,
    submit,
    wait_until,
)
from tests.server.numpy_library import HOLD_DRAWING

if TYPE_CHECKING:
    from pathlib import Path

    from hdgemm.server.database import Database
    from hdgemm.server.settings import Settings
    from tests.server.harness import Live

A = {"path": "a.npy"}
GB = 10**9


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    chosen = make_settings(tmp_path)
    np.save(chosen.roots[0] / "a.npy", np.eye(30))
    return chosen


def change(client: InProcess, job_id: str, **values: Any) -> None:
    database = client.app.state.service.database
    with database.write() as conn:
        conn.execute(sa.update(Job).where(Job.id == job_id).values(**values))


def add_worker(client: InProcess, **values: Any) -> None:
    database = client.app.state.service.database
    with database.write() as conn:
        now = database.now(conn)
        row = {"id": "w", "host": "h", "pid": 1, "memory": 4 * GB, "devices": ["host"],
               "started": now, "seen": now, **values}  # fmt: skip
        conn.execute(sa.insert(WorkerRow).values(**row))


def look(client: InProcess, **query: int) -> dict[str, Any]:
    client.app.state.service.statuses._known.clear()
    text = "&".join(f"{name}={value}" for name, value in query.items())
    answer = client.get(f"/v1/queue?{text}")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def reasons(client: InProcess) -> list[str]:
    return [job["reason"] for job in look(client)["waiting"]]


def test_waiting_jobs_come_in_the_queues_order_with_what_they_wait_for(client: InProcess) -> None:
    late = submit(client, a=A, b=A, name="late", priority=-1)
    first = submit(client, a=A, b=A, name="first", priority=5)
    second = submit(client, a=A, b={"job": first}, name="second", priority=5)
    assert reasons(client)[0] == "no worker is running"
    add_worker(client)
    found = look(client)
    assert [job["jobID"] for job in found["waiting"]] == [first, second, late]
    assert [job["ahead"] for job in found["waiting"]] == [0, 1, 2]
    assert [job["reason"] for job in found["waiting"]] == [
        "it starts within seconds",
        f"its input, job {first[:8]}, is waiting",
        "2 jobs are before it",
    ]
    assert found["counts"] == {"accepted": 3}
    assert (found["waiting_total"], found["waiting_of_all"]) == (3, 3)
    assert [job["jobID"] for job in look(client, offset=1, limit=1)["waiting"]] == [second]
    change(client, first, status="running", worker="w", devices=["host"], progress={"eta": 7.0})
    found = look(client)
    assert found["running"][0]["jobID"] == first
    assert found["waiting"][0]["reason"] == f"its input, job {first[:8]}, is running"
    assert found["waiting"][1]["reason"] == "every device is busy; 1 job is before it"


def test_reasons_of_memory_and_devices(client: InProcess) -> None:
    add_worker(client, devices=["host", "cuda:0"])
    job = submit(client, a=A, b=A, options={"host_memory": "1MB"})
    other = submit(client, a=A, b=A, options={"devices": ["host"]})
    change(client, other, status="running", worker="w", host_bytes=3 * GB)
    change(client, job, host_bytes=2 * GB, devices=["host"])
    assert reasons(client) == ["host is busy"]
    change(client, job, devices=["cuda:0"])
    assert reasons(client) == ["it needs 2.00 GB of memory, 1.00 GB are free"]
    change(client, job, host_bytes=9 * GB)
    assert reasons(client) == ["it needs 9.00 GB of memory, the largest worker has 4.00 GB"]
    change(client, job, devices=["cuda:1"])
    assert reasons(client) == ["no running worker has cuda:1"]


def test_start_times_add_up_what_is_known(client: InProcess) -> None:
    add_worker(client)
    ids = [submit(client, a=A, b=A) for _ in range(4)]
    for job_id, seconds in zip(ids[:3], (10.0, 20.0, 30.0), strict=True):
        change(client, job_id, plan={"expected_seconds": seconds})
    change(client, ids[3], plan={})
    assert [job["startsIn"] for job in look(client)["waiting"]] == [0.0, 10.0, 30.0, 60.0]
    change(client, ids[0], status="running", worker="w", progress={"eta": 4.0})
    assert [job["startsIn"] for job in look(client)["waiting"]] == [4.0, 24.0, 54.0]
    change(client, ids[0], status="successful", report={"seconds": 5.0}, started=1.0, finished=8.0)
    assert [job["startsIn"] for job in look(client)["waiting"]] == [0.0, 22.0, 54.0]


def two_jobs(client: InProcess) -> tuple[str, str, float]:
    """Submit two jobs beside a worker that takes none; return their ids, and the time."""
    add_worker(client)
    first, second = (submit(client, a=A, b=A) for _ in range(2))
    database = client.app.state.service.database
    with database.read() as conn:
        return first, second, database.now(conn)


def test_no_start_time_follows_a_job_that_is_overdue(client: InProcess) -> None:
    first, second, now = two_jobs(client)
    change(client, first, status="running", worker="w", fence=1, plan={"expected_seconds": 0.011})

    def starts_in(**values: Any) -> float | None:
        change(client, first, **values)
        [waiting] = look(client)["waiting"]
        assert waiting["jobID"] == second
        found: float | None = waiting["startsIn"]
        return found

    assert starts_in(started=now) == pytest.approx(0.0, abs=0.011)
    assert starts_in(started=now - 88.0) is None
    assert starts_in(plan={"expected_seconds": 1e6}) == pytest.approx(1e6 - 88.0, abs=60.0)
    assert starts_in(progress={"elapsed": 80.0, "eta": 1e5}) == pytest.approx(1e5 - 8, abs=60.0)
    assert starts_in(progress={"elapsed": 80.0, "eta": 0.0}) is None
    # A later attempt did not begin when the job started.
    assert starts_in(progress={"elapsed": 1.0, "eta": 2.0}, fence=2) == 2.0
    assert starts_in(progress=None) is None


def test_no_start_time_is_shown_while_idle_workers_take_nothing(client: InProcess) -> None:
    first, second, now = two_jobs(client)
    change(client, first, updated=now - 88.0)
    change(client, second, status="successful", report={"seconds": 1.0}, started=now - 9.0,
           finished=now)  # fmt: skip
    assert look(client)["waiting"][0]["startsIn"] == 0.0
    change(client, second, finished=now - 8.0)
    [waiting] = look(client)["waiting"]
    assert (waiting["startsIn"], waiting["reason"]) == (None, "no worker has taken it yet")


def test_a_running_job_says_how_long_its_process_is_silent(client: InProcess) -> None:
    add_worker(client)
    job = submit(client, a=A, b=A)
    change(client, job, status="running", worker="w")
    assert look(client)["running"][0]["silent"] is None
    database, lease = client.app.state.service.database, client.app.state.service.settings
    with database.read() as conn:
        now = database.now(conn)
    change(client, job, lease_until=now + lease.lease_seconds - 5.0)
    assert 5.0 <= look(client)["running"][0]["silent"] < 300.0


def test_other_tokens_jobs_show_only_how_loaded_the_machine_is(settings: Settings) -> None:
    database = open_database(settings)
    with database.write() as conn:
        secrets = [tokens.create(conn, tokens.Account(name=name), 0.0) for name in ("ann", "bob")]
    database.close()
    with application(settings) as app:
        ann, bob = (InProcess(app, secret) for secret in secrets)
        job = submit(ann, a=A, b=A, name="secret")
        change(ann, job, status="running", worker="w", progress={"percent": 5.0, "eta": 3.0})
        submit(ann, a=A, b=A)
        mine = submit(bob, a=A, b=A, priority=-5)
        found = look(bob)
        assert found["running"][0]["owner"] == "ann"
        assert {found["running"][0][name] for name in ("jobID", "name", "inputs")} == {None}
        assert "secret" not in bob.get("/v1/queue").text
        assert [(one["jobID"], one["ahead"]) for one in found["waiting"]] == [(mine, 1)]
        assert (found["waiting_total"], found["waiting_of_all"]) == (1, 2)
        assert look(ann)["running"][0]["jobID"] == job


def test_search_finds_parts_of_names_and_beginnings_of_ids(client: InProcess) -> None:
    job = submit(client, a=A, b=A, name="Night run 100%")
    submit(client, a=A, b=A, name="day_run")
    expected = {"night": 1, "RUN": 2, "100%25": 1, "%25": 1, job[:6]: 1, "y_": 1, "t_": 0}
    for text, count in expected.items():
        assert len(client.get(f"/v1/jobs?search={text}").json()["jobs"]) == count, text


def test_ten_thousand_waiting_jobs_are_counted_and_paged(client: InProcess) -> None:
    submit(client, a=A, b=A)
    database = client.app.state.service.database
    with database.write() as conn:
        row = dict(conn.execute(sa.select(Job)).one()._mapping)
        del row["seq"]
        rows = [{**row, "id": f"{number:032x}"} for number in range(9_999)]
        conn.execute(sa.insert(Job), rows)
    add_worker(client)
    found = look(client, offset=9_990, limit=50)
    assert len(found["waiting"]) == 10
    assert found["waiting"][-1]["ahead"] == 9_999
    assert found["waiting"][-1]["startsIn"] is None
    assert found["counts"] == {"accepted": 10_000}


def test_folders_list_matrices_and_stay_inside_the_roots(
    client: InProcess, settings: Settings, tmp_path: Path
) -> None:
    root = settings.roots[0]
    (root / "sub").mkdir()
    (root / ".hidden").mkdir()
    (root / "broken.npy").write_bytes(b"no header")
    (root / "notes.txt").write_text("")
    np.save(root / "sub" / "v.npy", np.ones(3))
    (root / "outside").symlink_to(tmp_path)
    os.mkfifo(root / "pipe.npy")
    (root / "link.npy").symlink_to("a.npy")
    (root / "not UTF-8 \udcff").mkdir()
    (root / "\udcff.npy").write_bytes(b"no header")
    assert client.get("/v1/folders").json()["folders"] == [str(root)]
    listed = client.get(f"/v1/folders?path={root}").json()
    assert listed["folders"] == [str(root / "sub")]
    assert listed["parent"] is None
    files = {file["name"]: (file["shape"], file["dtype"]) for file in listed["files"]}
    assert files == {"a.npy": ([30, 30], "float64"), "broken.npy": (None, None)}
    below = client.get("/v1/folders?path=sub").json()
    assert (below["parent"], below["files"][0]["shape"]) == (str(root), None)
    for path in ("..", "/etc", "outside", "a.npy", "missing"):
        assert client.get(f"/v1/folders?path={path}").status_code == 422, path


def test_load_is_sampled_and_kept_for_an_hour(settings: Settings) -> None:
    quick = settings.model_copy(update={"sample_seconds": 1e-9, "devices": ("host", "cuda:0")})
    quick.make_folders()
    database = open_database(quick)
    meter = load.LoadMeter("w", quick)
    meter.note({"host"})
    with database.write() as conn:
        meter.store(conn, 1.0)
        meter.store(conn, 5000.0)
        meter.store(conn, 5001.0)
        found = load.history(conn, 5001.0)["w"]
        assert conn.execute(sa.select(sa.func.count()).select_from(LoadSample)).scalar() == 2
        assert load.history(conn, 9000.0) == {}
    database.close()
    assert found["taken"] == [5000.0, 5001.0]
    assert found["devices"]["cuda:0"] == [0.0, 0.0]
    assert all(0.0 <= share <= 1.0 for share in found["devices"]["host"])
    assert all(0 < used < found["memory_total"][0] for used in found["memory_used"])


def test_the_last_day_shows_queue_and_throughput(client: InProcess) -> None:
    hour, now = 3600.0, 1e6
    ran = {"status": "successful", "report": {"gflops": 5.0, "seconds": hour}}
    jobs_of_the_day = [
        # Waited for an hour, ran for an hour.
        {"created": now - 4 * hour, "started": now - 3 * hour, "finished": now - 2 * hour, **ran},
        # Runs for half an hour, at 8 GFLOP/s.
        {"created": now - hour, "started": now - hour / 2, "status": "running",
         "progress": {"gflops": 8.0, "elapsed": hour / 2}},
        {"created": now - 40 * hour, "finished": now - hour / 4, "status": "dismissed"},
        {"created": now - hour / 2, "report": {}, "progress": {}},
        {"created": now, "started": now - 60 * hour, "finished": now - 25 * hour, **ran},
    ]  # fmt: skip
    first = submit(client, a=A, b=A)
    database = client.app.state.service.database
    with database.write() as conn:
        row = dict(conn.execute(sa.select(Job)).one()._mapping)
        del row["seq"]
        conn.execute(sa.delete(Job).where(Job.id == first))
        assert activity.last_day(conn, now)["waiting"] == [0] * 97
        for number, values in enumerate(jobs_of_the_day):
            conn.execute(sa.insert(Job).values(**row | {"id": str(number)} | values))
        day = activity.last_day(conn, now)
    times = [round(4 * at / hour) for at in day["at"]]
    assert times == list(range(-96, 1))
    at = {quarter: place for place, quarter in enumerate(times)}
    waiting = [day["waiting"][at[quarter]] for quarter in (-96, -17, -16, -11, -4, -2, -1, 0)]
    assert waiting == [1, 1, 2, 1, 2, 2, 2, 1]
    running = [day["running"][at[quarter]] for quarter in (-13, -12, -9, -8, -7, -3, -2, 0)]
    assert running == [0, 1, 1, 1, 0, 0, 1, 1]
    busy = {quarter: day["gflops"][place] for quarter, place in at.items() if day["gflops"][place]}
    assert busy == pytest.approx({-11: 5.0, -10: 5.0, -9: 5.0, -8: 5.0, -1: 8.0, 0: 8.0})
    assert {quarter for quarter, place in at.items() if day["finished"][place]} == {-8, -1}
    document = client.get("/v1/system/activity").json()
    assert document.keys() == day.keys()


def test_history_drops_every_second_point_when_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr("hdgemm.server.heartbeat.time.monotonic", lambda: float(next(clock)))
    history = History()
    history.save(tmp_path)
    assert not (tmp_path / "history.json").exists()
    for number in range(10_000):
        history.add({"elapsed": float(number), "percent": float("nan"), "eta": 1.0})
    assert 100 < len(history._points) <= 400
    assert history._points[0]["elapsed"] == 0.0
    history.save(tmp_path)
    assert '"percent": null' in (tmp_path / "history.json").read_text()


def test_the_last_operations_of_a_run_are_bounded(tmp_path: Path) -> None:
    recent = RecentOperations()
    recent.save(tmp_path)
    assert not (tmp_path / "operations.json").exists()
    for number in range(1000):
        recent.add(Event("host", "mult1", number, number // 4, number, number, number + 0.5, 0, 0))
    recent.add(Event("host", "store2", 0, 3, 0, 12.25, 13.0, 0, 0))
    recent.save(tmp_path)
    kept = json.loads((tmp_path / "operations.json").read_text())
    assert kept["lanes"]["host store2"] == [[12.25, 13.0, 3]]
    assert len(kept["lanes"]["host mult1"]) == kept["most"]
    assert kept["lanes"]["host mult1"][-1] == [999, 999.5, 249]


def drawing_job(server: Live) -> tuple[str, Path]:
    """Run a job up to its picture, of which a part is written; return its id and that file."""
    job_id = submit(server.http, a=A, b=A)
    assert finished(server.http, job_id)["status"] == "successful"
    folder = server.settings.job_dir(job_id)
    (folder / "trace.json").write_text("{}", encoding="utf-8")
    draft = folder / ".gantt.png"
    draft.write_bytes(bytes(50_000))
    assert server.http.get(f"/v1/jobs/{job_id}/trace").status_code == 404
    return job_id, draft


def test_a_determinant_is_known_before_its_pictures_are_drawn(settings: Settings) -> None:
    hold = settings.roots[0].parent / "hold"
    hold.touch()
    database = open_database(settings)
    with live(settings, **{HOLD_DRAWING: str(hold)}) as server:
        job_id = submit(server.http, "det", a=A)
        job = finished(server.http, job_id)
        assert job["status"] == "successful"
        assert "drawing" not in [each["phase"] for each in job["phases"]]
        assert job_row(database, job_id).is_drawing
        hold.unlink()
        wait_until(lambda: not job_row(database, job_id).is_drawing)
        assert server.http.get(f"/v1/jobs/{job_id}/gantt.png").status_code == 200
    database.close()


@pytest.mark.ci
def test_drafts_of_a_process_that_dies_are_removed_and_whole_pictures_are_kept(
    settings: Settings,
) -> None:
    hold = settings.roots[0].parent / "hold"
    hold.touch()
    database = open_database(settings)
    with live(settings, **{HOLD_DRAWING: str(hold)}) as server:
        killed, draft = drawing_job(server)
        process = newest_runner(settings)
        assert process is not None
        process.kill()
        wait_until(lambda: not job_row(database, killed).is_drawing)
        assert not draft.exists()
        assert server.http.get(f"/v1/jobs/{killed}/trace").json() == {}
        assert server.http.get(f"/v1/jobs/{killed}/gantt.png").status_code == 404
        assert 0 < job_row(database, killed).disk_bytes < 50_000
        left, draft = drawing_job(server)
    # The worker has ended, too, while the process drew.
    assert job_row(database, left).is_drawing
    with live(settings) as server:
        wait_until(lambda: not job_row(database, left).is_drawing)
        assert server.http.get(f"/v1/jobs/{left}/trace").json() == {}
    assert not draft.exists()
    assert 0 < job_row(database, left).disk_bytes < 50_000
    database.close()


def job_row(database: Database, job_id: str) -> Job:
    with database.read() as conn:
        job = jobs.find(conn, job_id)
    assert job is not None
    return job


def test_jobs_are_finished_before_their_pictures_are_drawn(settings: Settings) -> None:
    """The next job starts meanwhile; a deleted job's pictures go with it."""
    hold = settings.roots[0].parent / "hold"
    hold.touch()
    with live(settings, **{HOLD_DRAWING: str(hold)}) as server:
        ids = [submit(server.http, a=A, b=A) for _ in range(2)]
        for job_id in ids:
            assert finished(server.http, job_id)["status"] == "successful"
            assert server.http.get(f"/v1/jobs/{job_id}/gantt.png").status_code == 404
        assert server.http.delete(f"/v1/jobs/{ids[0]}").status_code == 200
        hold.unlink()
        wait_until(lambda: newest_runner(settings) is None)
        assert server.http.get(f"/v1/jobs/{ids[1]}/gantt.png").status_code == 200
        assert [path.name for path in (settings.data_dir / "jobs").iterdir()] == [ids[1]]


def test_a_finished_jobs_history_phases_and_load(server: Live) -> None:
    np.save(server.settings.roots[0] / "queued.npy", np.eye(30))
    queued = {"path": "queued.npy"}
    job_id = submit(server.http, a=queued, b=queued, options={"verify": True})
    job = finished(server.http, job_id)
    assert job["status"] == "successful", job["error"]
    assert job["verification"]["summary"] == "C is the product"
    points = server.http.get(f"/v1/jobs/{job_id}/history").json()["points"]
    assert points[0]["percent"] == 10.0
    stream = server.http.get(f"/v1/jobs/{job_id}/events").text
    phases = ["queued", "starting", "opening", "multiplying", "verifying", "hashing",
              "publishing", "successful"]  # fmt: skip
    # Phases are recorded as they begin, however short they are.
    recorded = job["phases"]
    assert [one["phase"] for one in recorded] == phases
    assert [one["at"] for one in recorded] == sorted(one["at"] for one in recorded)
    places = [stream.index(f'"phase": "{phase}"') for phase in phases]
    assert places == sorted(places)
    assert '"at": ' in stream
    # The Gantt picture replaces the operations of a running job.
    assert server.http.get(f"/v1/jobs/{job_id}/operations").json()["lanes"] == {}
    loads = wait_until(lambda: server.http.get("/v1/system/load").json()["workers"])
    assert set(next(iter(loads.values()))["devices"]) == {"host"}
