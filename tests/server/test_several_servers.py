"""Several HTTP servers on one PostgreSQL database and data folder, any of them killed."""

import concurrent.futures
import io

import numpy as np
import pytest

from tests.reference import assert_close_in_eps
from tests.server.harness import finished, live, make_settings, postgres_url, start, submit, upload


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    settings = make_settings(tmp_path_factory.mktemp("servers"), database_url=postgres_url())
    worker = start("worker", settings)
    try:
        with live(settings, "--no-worker") as one, live(settings, "--no-worker") as two:
            yield one, two
    finally:
        worker.terminate()
        worker.wait()


def test_parts_and_jobs_may_go_to_any_server(servers):
    one, two = servers
    a = np.random.default_rng(1).standard_normal((60, 50))
    content, half = a.tobytes(), a.nbytes // 2
    made = one.http.post("/v1/matrices", json={"shape": [60, 50], "dtype": "float64"})
    at = made.headers["location"]
    for server, first, stop in ((one, 0, half), (two, half, len(content))):
        put = server.http.put(
            f"{at}/content",
            content=content[first:stop],
            headers={"Content-Range": f"bytes {first}-{stop - 1}/{len(content)}"},
        )
        assert put.status_code == 200, put.text
    assert two.http.post(f"{at}/complete").status_code == 200
    matrix = made.json()["id"]
    job = submit(two.http, a={"matrix": matrix}, b={"matrix": matrix}, trans_b=True)
    assert finished(one.http, job)["status"] == "successful"
    for server in servers:
        result = server.http.get(f"/v1/jobs/{job}/results/c")
        assert_close_in_eps(np.load(io.BytesIO(result.content)), a, a.T)


def test_one_submission_sent_to_both_is_one_job(servers):
    matrix = upload(servers[0].http, np.eye(40))
    body = {"inputs": {"a": {"matrix": matrix}, "b": {"matrix": matrix}}}

    def send(server):
        return server.http.post(
            "/v1/processes/gemm/execution", json=body, headers={"Idempotency-Key": "same"}
        ).json()["jobID"]

    with concurrent.futures.ThreadPoolExecutor() as threads:
        assert len(set(threads.map(send, servers * 3))) == 1


def test_any_server_can_be_killed(servers):
    one, two = servers
    matrix = upload(two.http, np.eye(40))
    inputs = {"a": {"matrix": matrix}, "b": {"matrix": matrix}}
    jobs = [submit(one.http, **inputs)]
    one.kill()
    jobs.append(submit(two.http, **inputs))
    assert [finished(two.http, job)["status"] for job in jobs] == ["successful"] * 2
    one.restart()
    one.wait()
    assert {job["jobID"] for job in one.http.get("/v1/jobs").json()["jobs"]} >= set(jobs)
