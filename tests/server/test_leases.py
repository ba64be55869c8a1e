"""The queue, transaction by transaction: claims, leases, fences, fair share, reservations."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sqlalchemy as sa

from hdgemm.errors import InputError
from hdgemm.server import fair_share, jobs, leases, tables
from hdgemm.server.capacity import Capacity, free_on_machines
from hdgemm.server.database import open_database
from hdgemm.server.leases import Held, LeaseObserver
from hdgemm.server.outputs import writer_of
from hdgemm.server.publication import Publication, described, open_finished, publish
from hdgemm.server.tables import WorkerRow
from tests.server.harness import make_settings, postgres_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.server.database import Database
    from hdgemm.server.tables import Job


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """SQLite and, where it is installed, PostgreSQL."""
    url = postgres_url() if request.param == "postgresql" else ""
    opened = open_database(make_settings(tmp_path, database_url=url))
    yield opened
    opened.close()


def add(database: Database, **values: Any) -> str:
    request: dict[str, Any] = {
        "owner": "", "name": "", "priority": 0, "request_digest": "", "idempotency_key": None,
    }  # fmt: skip
    request = {name: values.pop(name, default) for name, default in request.items()}
    admission: dict[str, Any] = {
        "process": "gemm", "inputs": {"options": {"host_memory": 1}}, "output": {"path": None},
        "host_bytes": 100, "devices": ("host",), **values,
    }  # fmt: skip
    with database.queue() as conn:
        submission, admitted = jobs.Submission(**request), jobs.Admission(**admission)
        return jobs.insert(conn, submission, admitted, database.now(conn))


def capacity(**values: Any) -> Capacity:
    devices = frozenset(values.pop("devices", ("host", "cuda:0")))
    idle = frozenset(values.pop("idle", devices))
    return Capacity("w", values.pop("memory", 1000), values.pop("all_memory", 1000), idle, devices)


def claim(database: Database, lease: float = 10.0, **values: Any) -> Job | None:
    with database.queue() as conn:
        return leases.claim(conn, capacity(**values), lease, database.now(conn))


def look(database: Database, job_id: str) -> Job:
    with database.read() as conn:
        found = jobs.find(conn, job_id)
    assert found is not None
    return found


def take_back(database: Database, observer: LeaseObserver, clock: float) -> list[str]:
    with database.write() as conn:
        return list(observer.take_back(conn, database.now(conn), clock))


def test_jobs_are_claimed_by_priority_and_then_age(database: Database) -> None:
    old, young, urgent = add(database), add(database), add(database, priority=5)
    order = [job.id if (job := claim(database)) else None for _ in range(4)]
    assert order == [urgent, old, young, None]


def test_owners_share_at_equal_priority(database: Database) -> None:
    first = [add(database, owner="a") for _ in range(3)]
    second = [add(database, owner="b") for _ in range(2)]
    urgent = add(database, owner="a", priority=1)
    order = []
    for seconds in (30.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        taken = claim(database)
        assert taken is not None
        order.append(taken.id)
        with database.write() as conn:
            now = database.now(conn)
            Held(taken.id, taken.fence).update(conn, now, started=now - seconds)
            Held(taken.id, taken.fence).finish(conn, now, "successful", "done")
    # Owner a used 30 seconds with its urgent job, so that owner b is served first.
    assert order == [urgent, *second, *first]


def test_old_use_is_forgotten(database: Database) -> None:
    add(database, owner="a")
    taken = claim(database)
    assert taken is not None
    with database.write() as conn:
        now = database.now(conn)
        held = Held(taken.id, taken.fence)
        held.update(conn, now, started=now - 9000)
        held.finish(conn, now - 4000, "successful", "done")
    older, newer = add(database, owner="a"), add(database, owner="b")
    assert [claim(database).id for _ in range(2)] == [older, newer]  # type: ignore[union-attr]


def test_a_claim_looks_beyond_its_first_page(database: Database) -> None:
    for _ in range(50):
        add(database, devices=("cuda:1",))
    last = add(database)
    taken = claim(database)
    assert taken is not None
    assert taken.id == last


def test_reservations_are_added_up_by_the_database(database: Database) -> None:
    for number in range(300):
        where = {"volume": "/x", "output": {"path": f"/x/{number}.npy"}} if number % 2 else {}
        add(database, owner="ab"[number % 2], disk_bytes=10, **where)
    statements: list[str] = []
    sa.event.listen(
        database.engine, "before_cursor_execute", lambda *values: statements.append(values[2])
    )
    with database.read() as conn:
        held = jobs.reserved(conn)
        assert writer_of(conn, "gemm", {}, Path("/x/7.npy")) is not None
        assert writer_of(conn, "gemm", {}, Path("/x/8.npy")) is None
    assert held.jobs == {"a": 150, "b": 150}
    assert held.disk_bytes == {None: 1500, "/x": 1500}
    assert sum("SELECT" in text for text in statements) == 3


def test_a_busy_device_is_passed_over_and_short_memory_is_waited_for(database: Database) -> None:
    big = add(database, host_bytes=900)
    small = add(database, host_bytes=10)
    on_gpu = add(database, host_bytes=10, devices=("cuda:0",))
    assert claim(database, memory=500) is None
    taken = claim(database, idle=("cuda:0",))
    assert taken is not None
    assert taken.id == on_gpu
    order = [job.id if (job := claim(database)) else None for _ in range(2)]
    assert order == [big, small]


def register(database: Database, name: str, host: str, memory: int) -> None:
    with database.write() as conn:
        now = database.now(conn)
        conn.execute(
            sa.insert(WorkerRow).values(
                id=name, host=host, pid=1, memory=memory, devices=["host"], started=now, seen=now
            )
        )


def test_workers_of_one_machine_share_its_memory(database: Database) -> None:
    for name, host, memory in (("one", "m", 1000), ("two", "m", 800), ("far", "n", 800)):
        register(database, name, host, memory)
    first, second, third = (add(database, host_bytes=700) for _ in range(3))
    small = add(database, host_bytes=200)

    def take(worker: str, memory: int) -> str | None:
        with database.queue() as conn:
            own = Capacity(worker, memory, memory, frozenset({"host"}), frozenset({"host"}))
            job = leases.claim(conn, own, 10.0, database.now(conn))
        return None if job is None else job.id

    assert take("one", 1000) == first
    assert take("two", 800) is None  # 300 bytes of the machine are free
    assert take("far", 800) == second
    with database.read() as conn:
        assert free_on_machines(conn) == {"one": 300, "two": 300, "far": 100}
    with database.write() as conn:
        conn.execute(sa.update(tables.Job).where(tables.Job.id == third).values(priority=-1))
    assert take("two", 800) == small
    with database.write() as conn:
        assert Held(first, 1).finish(conn, database.now(conn), "successful", "")
    assert take("two", 800) == third


def test_auto_waits_for_all_devices_and_what_fits_no_worker_blocks_nobody(
    database: Database,
) -> None:
    auto, huge = add(database, devices=("auto",)), add(database, host_bytes=5000, priority=9)
    assert claim(database, idle=("host",)) is None
    taken = claim(database)
    assert taken is not None
    assert taken.id == auto
    assert look(database, huge).status == "accepted"


def test_a_job_waits_for_its_inputs_and_fails_with_them(database: Database) -> None:
    first = add(database, priority=-1)
    second = add(database, reads=frozenset({("job", first)}))
    taken = claim(database)
    assert taken is not None
    assert taken.id == first
    assert claim(database) is None
    with database.write() as conn:
        Held(first, taken.fence).finish(conn, database.now(conn), "failed", "no")
    assert claim(database) is None
    lost = look(database, second)
    assert (lost.status, (lost.error or {})["origin"]) == ("failed", "user")


def run_for(database: Database, job_id: str, seconds: float) -> None:
    """Let a job have run for so long, and end it now."""
    with database.write() as conn:
        now = database.now(conn)
        times = {"status": "successful", "started": now - seconds, "finished": now}
        conn.execute(sa.update(tables.Job).where(tables.Job.id == job_id).values(**times))


@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_seconds_of_deleted_jobs_count_for_the_fair_share(database: Database, how: str) -> None:
    done = add(database, owner="busy")
    run_for(database, done, 100.0)
    with database.queue() as conn:
        if how == "deleted":
            jobs.delete(conn, done, "busy", database.now(conn))
        else:
            assert jobs.expire(conn, 0.0, 10, database.now(conn) + 1) == [done]
    add(database, owner="busy")
    other = add(database, owner="other")
    claimed = claim(database)
    assert claimed is not None
    assert claimed.id == other


def test_times_of_deleted_jobs_are_kept_for_an_hour(database: Database) -> None:
    done = add(database, owner="busy")
    run_for(database, done, 7200.0)
    with database.queue() as conn:
        now = database.now(conn)
        jobs.delete(conn, done, "busy", now)
        assert 3500 < fair_share.used_seconds(conn, now)["busy"] <= 3600
        fair_share.keep_times(conn, [], now + 7200)
        assert fair_share.used_seconds(conn, now) == {}


def test_an_expired_lease_is_taken_over_and_the_old_holder_can_write_nothing(
    database: Database,
) -> None:
    job_id = add(database)
    old, observer = claim(database, lease=5.0), LeaseObserver(5.0, 50)
    assert old is not None
    assert [take_back(database, observer, clock) for clock in (100.0, 104.9)] == [[], []]
    assert take_back(database, observer, 105.1) == [job_id]
    new = claim(database)
    assert new is not None
    assert new.fence == old.fence + 1
    stale = Held(job_id, old.fence)
    with database.write() as conn:
        now = database.now(conn)
        assert not stale.renew(conn, now, 10.0, {"percent": 1.0})
        assert not stale.finish(conn, now, "successful", "mine")
        assert not stale.hand_back(conn, now, "mine", crashed=True)
        assert not stale.enter(conn, now, "publishing")
    assert look(database, job_id).status == "running"
    with database.write() as conn:
        assert Held(job_id, new.fence).finish(conn, database.now(conn), "successful", "done")
    assert look(database, job_id).status == "successful"


def test_a_renewed_lease_is_never_taken(database: Database) -> None:
    job_id, observer = add(database), LeaseObserver(5.0, 50)
    taken = claim(database, lease=5.0)
    assert taken is not None
    for turn in range(1, 5):
        assert take_back(database, observer, turn * 4.0) == []
        with database.write() as conn:
            assert Held(job_id, taken.fence).renew(conn, database.now(conn) + turn, 5.0, None)


@pytest.mark.parametrize("step", [-1e6, 1e6])
def test_a_calendar_that_is_set_ends_no_living_lease_and_keeps_no_dead_one(
    database: Database, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    job_id, observer = add(database), LeaseObserver(5.0, 50)
    taken = claim(database, lease=5.0)
    assert taken is not None
    assert take_back(database, observer, 0.0) == []
    real = database.now
    monkeypatch.setattr(database, "now", lambda conn: real(conn) + step)
    assert take_back(database, observer, 4.0) == []
    with database.write() as conn:
        assert Held(job_id, taken.fence).renew(conn, database.now(conn), 5.0, None)
    assert take_back(database, observer, 6.0) == []
    assert take_back(database, observer, 10.0) == []
    assert take_back(database, observer, 11.1) == [job_id]


def test_a_job_that_kills_every_worker_fails_at_last(database: Database) -> None:
    job_id, observer = add(database), LeaseObserver(0.5, 3)
    for turn in range(3):
        assert claim(database) is not None
        for clock in (0.0, 1.0):
            take_back(database, observer, 10.0 * turn + clock)
    ended = look(database, job_id)
    assert (ended.status, (ended.error or {})["origin"]) == ("failed", "system")


def test_who_lost_a_lease_is_told_from_who_ended_a_job(database: Database) -> None:
    held = []
    for _ in range(3):
        add(database)
        taken = claim(database)
        assert taken is not None
        held.append(Held(taken.id, taken.fence))
    with database.write() as conn:
        now = database.now(conn)
        held[0].finish(conn, now, "successful", "done")
        held[1].hand_back(conn, now, "its worker died", crashed=False)
        assert leases.lost(conn, held) == {held[1].job_id}
    claim(database)
    with database.read() as conn:
        assert leases.lost(conn, held) == {held[1].job_id}


def test_many_jobs_for_another_worker_hide_none_for_this_one(database: Database) -> None:
    for _ in range(300):
        add(database, devices=("cuda:9",), priority=1)
    mine = add(database)
    taken = claim(database)
    assert taken is not None
    assert taken.id == mine


def test_a_job_without_a_limit_of_its_own_fits_a_smaller_worker(database: Database) -> None:
    add(database, host_bytes=5000, inputs={"options": {"host_memory": 5000}})
    elastic = add(database, host_bytes=5000, inputs={"options": {"host_memory": None}})
    assert claim(database, memory=999) is None
    taken = claim(database)
    assert taken is not None
    assert taken.id == elastic


def publication(folder: Path, *, overwrite: bool) -> Publication:
    temporary = folder / ".c.hdgemm-x-1.npy"
    temporary.write_bytes(b"result")
    found = temporary.stat()
    return Publication(
        str(temporary), str(folder / "c.npy"), found.st_ino, 6, found.st_mtime_ns, "", overwrite
    )


@pytest.mark.parametrize("overwrite", [False, True])
def test_publishing_again_changes_nothing(tmp_path: Path, overwrite: bool) -> None:
    folder = tmp_path.resolve()
    if overwrite:
        (folder / "c.npy").write_bytes(b"old")
    made = publication(folder, overwrite=overwrite)
    assert publish(made, (folder,))
    assert [path.name for path in folder.iterdir()] == ["c.npy"]
    assert publish(made, (folder,))
    assert (folder / "c.npy").read_bytes() == b"result"


def test_publishing_half_done_is_finished(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    made = publication(folder, overwrite=False)
    (folder / "c.npy").hardlink_to(made.temporary)
    assert publish(made, (folder,))
    assert [path.name for path in folder.iterdir()] == ["c.npy"]


def test_a_late_publisher_finds_nothing_to_publish(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    made = publication(folder, overwrite=True)
    assert publish(made, (folder,))
    (folder / "c.npy").unlink()
    np.save(folder / "c.npy", np.zeros(3))
    assert not publish(made, (folder,))
    assert np.load(folder / "c.npy").shape == (3,)


def test_a_file_that_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    made = publication(folder, overwrite=False)
    (folder / "c.npy").write_bytes(b"someone's")
    with pytest.raises(InputError, match="appeared"):
        publish(made, (folder,))
    assert (folder / "c.npy").read_bytes() == b"someone's"


def factorisation(folder: Path, *, overwrite: bool) -> Publication:
    """A finished factorisation with one file beside it."""
    made = publication(folder, overwrite=overwrite)
    pivots = folder / ".c.hdgemm-x-1.piv.npy"
    pivots.write_bytes(b"pivots")
    with open_finished(pivots) as stream:
        return replace(made, beside=[described(stream, pivots, folder / "c.piv.npy")])


def test_pivots_that_appeared_meanwhile_are_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    made = factorisation(folder, overwrite=False)
    (folder / "c.piv.npy").write_bytes(b"someone's")
    with pytest.raises(InputError, match=r"c\.piv\.npy appeared"):
        publish(made, (folder,))
    assert (folder / "c.piv.npy").read_bytes() == b"someone's"
    assert not (folder / "c.npy").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_publishing_pivots_again_changes_nothing(tmp_path: Path, overwrite: bool) -> None:
    folder = tmp_path.resolve()
    made = factorisation(folder, overwrite=overwrite)
    for _ in range(2):
        assert publish(Publication(**json.loads(json.dumps(asdict(made)))), (folder,))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "c.npy": b"result",
        "c.piv.npy": b"pivots",
    }


def test_a_late_publisher_leaves_the_pivots_of_another_job(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    made = factorisation(folder, overwrite=True)
    (folder / ".c.hdgemm-x-1.npy").unlink()
    (folder / "c.piv.npy").write_bytes(b"another job's")
    assert not publish(made, (folder,))
    assert (folder / "c.piv.npy").read_bytes() == b"another job's"
