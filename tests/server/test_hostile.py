"""Hostile and malformed requests are refused with a problem document and leave nothing."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
import sqlalchemy as sa

from hdgemm.errors import InputError
from hdgemm.server import jobs, leases, paths
from hdgemm.server.capacity import Capacity
from hdgemm.server.leases import Held
from hdgemm.server.middleware import _limited
from hdgemm.server.tables import WorkerRow
from tests.server.harness import (
    InProcess,
    served,
    submit,
    token,
    upload,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx
    from fastapi import FastAPI

    from hdgemm.server.settings import Settings
    from hdgemm.server.tables import Job

A = {"path": "a.npy"}
GEMM = "/v1/processes/gemm/execution"


def refused(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    assert answer.status_code in statuses, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == answer.status_code
    return document


@pytest.mark.parametrize(
    "number",
    ["NaN", "Infinity", "-Infinity", "1e999", "true", "false", '"1"', "[]", "{}",
     "1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 400 + ".0", "1" + "0" * 5000],
    ids=lambda text: text[:9],
)  # fmt: skip
def test_no_number_that_is_none(client: InProcess, number: str) -> None:
    gemm = '{"inputs": {"a": {"path": "a.npy"}, "b": {"path": "a.npy"}, %s}}'
    bodies = [(GEMM, gemm % f'"{name}": {number}') for name in ("alpha", "beta", "priority")]
    bodies += [
        (GEMM, gemm % f'"options": {{"{name}": {number}}}')
        for name in ("threads", "host_memory", "device_memory")
        if (name, number) not in {("host_memory", '"1"'), ("device_memory", '"1"')}
    ]
    bodies += [
        (GEMM, gemm % f'"options": {{"tile": [1, 1, {number}]}}'),
        ("/v1/processes/profile/execution", f'{{"inputs": {{"priority": {number}}}}}'),
        ("/v1/matrices", f'{{"shape": [{number}, 3]}}'),
        ("/v1/matrices", f'{{"shape": [3, 3], "size": {number}}}'),
    ]
    headers = {"Content-Type": "application/json"}
    for at, body in bodies:
        refused(client.post(at, content=body, headers=headers), 400, 422)
    assert client.get("/v1/jobs").json()["jobs"] == []
    assert client.get("/v1/matrices").json()["matrices"] == []


def test_a_body_without_a_length_ends_at_the_limit(client: InProcess) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1 << 16
            yield b" " * (1 << 16)

    refused(client.post(GEMM, content=endless()), 413)
    assert sent <= (1 << 20) + (1 << 17)


def test_other_requests_are_served_between_two_bodies() -> None:
    order: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def serve() -> None:
        turn = anyio.Lock()

        async def take_body() -> None:
            await _limited(receive, 2, turn)()
            order.append("body")  # the framework validates it here

        async def take_another() -> None:
            for _ in range(30):
                order.append("other")
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(take_body)
            group.start_soon(take_another)

    anyio.run(serve)
    assert order.count("body") == 5
    assert not any(pair == ("body", "body") for pair in itertools.pairwise(order))


def test_compressed_bodies_are_not_unpacked(client: InProcess) -> None:
    matrix = client.post("/v1/matrices", json={"shape": [3, 3]}).headers["location"]
    for encoding in ("gzip", "br", "deflate, gzip", "zstd"):
        headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
        refused(client.post(GEMM, content=b"\x1f\x8b\x08", headers=headers), 415)
        refused(client.put(f"{matrix}/content", content=b"\x1f\x8b", headers=headers), 415)


@pytest.mark.parametrize(
    "path",
    ["../../etc/passwd", "/etc/passwd", "/proc/self/environ", "x/../../data/service.db", "..", "/",
     "a.npy/../../data", "~/a.npy", "file:///etc/passwd", "http://127.0.0.1/a.npy"],
)  # fmt: skip
def test_paths_lead_nowhere_else(client: InProcess, path: str) -> None:
    told = refused(client.get("/v1/files", params={"path": path}), 422)
    assert "root:" not in told["detail"]
    inputs = {"a": A, "b": {"path": path}}
    refused(client.post(GEMM, json={"inputs": inputs}), 422)
    out = {"a": A, "b": A, "output": {"path": f"{path}/c.npy", "overwrite": True}}
    refused(client.post(GEMM, json={"inputs": out}), 422)


@pytest.mark.parametrize(
    "path",
    ["/static/..%2fapp.py", "/static/%2e%2e/app.py", "/v1/jobs/..%2f..%2fservice.db",
     "/v1/jobs/%2e%2e/log", "/v1/matrices/../../service.db/content", "//etc/passwd"],
)  # fmt: skip
def test_addresses_lead_nowhere_else(client: InProcess, path: str) -> None:
    refused(client.get(path), 404, 422)


def test_a_folder_swapped_for_a_link_is_no_way_out(settings: Settings, tmp_path: Path) -> None:
    root = settings.roots[0]
    (tmp_path / "secret").mkdir()
    np.save(tmp_path / "secret" / "a.npy", np.zeros((3, 3)))
    (root / "folder").mkdir()
    np.save(root / "folder" / "a.npy", np.eye(3))
    real = paths.resolve("folder/a.npy", settings.roots)
    shutil.rmtree(root / "folder")
    (root / "folder").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError), paths.opened(real, settings.roots):
        pass
    (root / "folder").unlink()
    (root / "folder").mkdir()
    real.symlink_to(tmp_path / "secret" / "a.npy")
    words = r"a\.npy: it was replaced by a symbolic link"
    with pytest.raises(InputError, match=words), paths.opened(real, settings.roots):
        pass


def test_of_many_at_once_one_gets_the_output_and_one_key_makes_one_job(settings: Settings) -> None:
    body = {"inputs": {"a": A, "b": A, "output": {"path": "c.npy"}}}
    keyed = {"inputs": {"a": A, "b": A}}
    with served(settings) as server, ThreadPoolExecutor(12) as pool:
        codes = [
            answer.status_code
            for answer in pool.map(lambda _: server.http.post(GEMM, json=body), range(12))
        ]
        assert sorted(codes) == [201] + [409] * 11
        key = {"Idempotency-Key": "one"}
        answers = pool.map(lambda _: server.http.post(GEMM, json=keyed, headers=key), range(12))
        ids = {answer.json()["jobID"] for answer in answers}
        assert len(ids) == 1
        assert len(server.http.get("/v1/jobs").json()["jobs"]) == 2


@pytest.mark.parametrize("length", [244, 251])
def test_names_beside_a_result_may_not_be_too_long(client: InProcess, length: int) -> None:
    inputs = {"a": A, "output": {"path": f"{'y' * length}.npy"}}
    answer = client.post("/v1/processes/lu/execution", json={"inputs": inputs})
    told = refused(answer, 422)
    assert f"cannot store {'y' * length}." in told["detail"]
    assert "beside the result: File name too long; choose another name" in told["detail"]
    assert told["errors"][0]["field"] == "output.path"


def test_a_fault_of_the_server_has_its_cause_in_the_log(
    client: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "scandir", fail)
    refused(client.get("/v1/folders?path=."), 500)
    assert "the disk is broken" in caplog.text


def test_a_full_disk_is_told_and_loses_nothing(
    client: InProcess, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        assert (
            "space" in refused(client.post("/v1/matrices", json={"shape": [3, 3]}), 507)["detail"]
        )
    assert client.get("/v1/matrices").json()["matrices"] == []
    assert list(settings.matrices_dir.iterdir()) == []
    at = client.post("/v1/matrices", json={"shape": [3, 3]}).headers["location"]
    data = np.eye(3).tobytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        refused(client.put(f"{at}/content", content=data), 507)
    assert client.get(at).json()["received"] == []
    assert client.put(f"{at}/content", content=data).status_code == 200
    assert client.post(f"{at}/complete").json()["complete"]


def test_room_that_jobs_were_promised_is_not_given_to_uploads(
    client: InProcess, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = settings.min_free_disk + 20_000
    usage = shutil.disk_usage(settings.data_dir)._replace(free=free)
    monkeypatch.setattr("hdgemm.server.quotas.shutil.disk_usage", lambda _: usage)
    big = {"shape": [1, 1900]}
    assert client.post("/v1/matrices", json={"shape": [1, 1]}).status_code == 201
    submit(client, a=A, b=A)
    told = refused(client.post("/v1/matrices", json=big), 507)
    assert told["reserved"] == 9 * 8 + 4096
    assert told["missing"] == told["requested"] - told["available"] > 0


def test_results_count_against_the_quota_wherever_they_lie(app: FastAPI) -> None:
    client = InProcess(app, token(app, "me", max_bytes=15_000))
    refused_body = {"inputs": {"a": A, "b": A, "output": {"path": "d.npy"}}}
    first = submit(client, a=A, b=A, output={"path": "c.npy"})
    told = refused(client.post(GEMM, json=refused_body), 507)
    assert (told["type"], told["limit"]) == ("/problems/quota-exceeded", 15_000)
    client.post(f"/v1/jobs/{first}/cancel")
    assert client.post(GEMM, json=refused_body).status_code == 201


def test_made_up_secrets_and_methods_are_not_remembered(app: FastAPI) -> None:
    token(app, "me")
    for number in range(3):
        assert InProcess(app, f"{number}" * 20_000).get("/v1/jobs").status_code == 401
        assert InProcess(app).request(f"MADE{'X' * number}UP", "/healthz").status_code == 405
    assert max(map(len, app.state.service._accounts)) <= 100
    figures = app.state.metrics.text().decode()
    assert "MADE" not in figures
    assert 'method="other"' in figures


def test_a_job_for_more_than_any_worker_has_is_refused(app: FastAPI, settings: Settings) -> None:
    client, database = InProcess(app), app.state.service.database
    with database.write() as conn:
        for name, memory in (("small", 200), ("large", 400)):
            conn.execute(
                sa.insert(WorkerRow).values(
                    id=name, host="h", pid=1, memory=memory, devices=["host"],
                    started=0.0, seen=database.now(conn),
                )
            )  # fmt: skip
    np.save(settings.roots[0] / "b.npy", np.eye(5))
    body = {"inputs": {"a": {"path": "b.npy"}, "b": {"path": "b.npy"}}}
    told = refused(client.post(GEMM, json=body), 422)
    assert (told["requested"], told["available"]) == (600, 400)
    assert client.post(GEMM, json={"inputs": {"a": A, "b": A}}).status_code == 201


def claimed(app: FastAPI) -> Job:
    database = app.state.service.database
    devices = frozenset({"host"})
    with database.queue() as conn:
        capacity = Capacity("w", 1 << 30, 1 << 30, devices, devices)
        job = leases.claim(conn, capacity, 10.0, database.now(conn))
    assert job is not None
    return job


def test_cancelling_what_waits_runs_and_is_over(app: FastAPI) -> None:
    client, database = InProcess(app), app.state.service.database
    waiting = submit(client, a=A, b=A)
    assert client.post(f"/v1/jobs/{waiting}/cancel").json()["status"] == "dismissed"
    assert client.post(f"/v1/jobs/{waiting}/cancel").json()["status"] == "dismissed"
    running = submit(client, a=A, b=A)
    held = claimed(app)
    for _ in range(2):
        asked = client.post(f"/v1/jobs/{running}/cancel").json()
        assert (asked["status"], asked["cancelRequested"]) == ("running", True)
    assert client.delete(f"/v1/jobs/{running}").json()["message"] == "stopping"
    assert client.get(f"/v1/jobs/{running}").json()["status"] == "running"
    with database.write() as conn:
        Held(held.id, held.fence).finish(conn, database.now(conn), "successful", "done")
    assert "successful" in refused(client.post(f"/v1/jobs/{running}/cancel"), 409)["detail"]
    with database.read() as conn:
        assert jobs.get(conn, running, "").status == "successful"


@pytest.mark.parametrize("last", ["-1", "x", "1" * 19, "1e3", " "])
def test_event_numbers_that_are_none(client: InProcess, last: str) -> None:
    job_id = submit(client, a=A, b=A)
    headers = {"Last-Event-ID": last}
    refused(client.get(f"/v1/jobs/{job_id}/events", headers=headers), 422)


def test_events_after_a_number_of_the_future_end_with_the_job(client: InProcess) -> None:
    job_id = submit(client, a=A, b=A)
    client.post(f"/v1/jobs/{job_id}/cancel")
    for last, shown in (("0", True), ("999999999999999999", False)):
        headers = {"Last-Event-ID": last}
        text = client.get(f"/v1/jobs/{job_id}/events", headers=headers).text
        assert ("dismissed" in text) is shown
        assert text.endswith("event: end\ndata: {}\n\n")


def test_a_matrix_that_a_queued_job_needs_cannot_be_taken_away(client: InProcess) -> None:
    matrix = upload(client, np.eye(3))
    job_id = submit(client, a={"matrix": matrix}, b=A)
    told = refused(client.delete(f"/v1/matrices/{matrix}"), 409)
    assert told["jobs"] == [job_id]
    assert client.get(f"/v1/matrices/{matrix}/content").status_code == 200
