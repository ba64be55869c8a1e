"""Jobs whose products the workers of a Dask cluster compute: `hdgemm serve --cluster`."""

import io
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.processes import scheduler, worker
from tests.reference import assert_close_in_eps
from tests.server.harness import (
    LIMIT,
    finished,
    live,
    make_settings,
    newest_runner,
    submit,
    upload,
    wait_until,
)

distributed = pytest.importorskip("distributed")

LIBRARY = "hdgemm.server.hdgemm_backend:HdgemmLibrary"


@pytest.fixture(scope="module")
def scheduler_file(tmp_path_factory, own_cache):
    running, file = scheduler(tmp_path_factory.mktemp("scheduler"))
    with (
        running,
        distributed.Client(scheduler_file=file) as client,
        worker(client.scheduler.address, name="computes"),
    ):
        client.wait_for_workers(1, timeout=LIMIT)
        yield file


@pytest.fixture(scope="module")
def service(tmp_path_factory, scheduler_file):
    settings = make_settings(tmp_path_factory.mktemp("service"), library=LIBRARY, job_niceness=0)
    with live(settings, "--cluster", scheduler_file, HDGEMM_CLUSTER=scheduler_file) as server:
        yield server, settings


@pytest.fixture(scope="module")
def operands():
    rng = np.random.default_rng(2)
    return rng.standard_normal((60, 40)), rng.standard_normal((40, 50))


def test_a_product_is_computed_by_the_cluster(service, operands):
    server, settings = service
    a, b = operands
    root = settings.roots[0]
    np.save(root / "B.npy", b)
    inputs = {"a": {"matrix": upload(server.http, a)}, "b": {"path": "B.npy"}, "alpha": 2.0}
    kept = finished(server.http, submit(server.http, **inputs))
    assert kept["status"] == "successful", kept["message"]
    assert kept["plan"]["strategy"] == kept["report"]["plan"]["strategy"] == "cluster"
    assert [name for name in kept["report"]["devices"] if name.endswith("/computes")]
    result = server.http.get(f"/v1/jobs/{kept['jobID']}/results/c")
    assert_close_in_eps(np.load(io.BytesIO(result.content)), a, b, alpha=2.0)
    placed = finished(server.http, submit(server.http, **inputs, output={"path": "C.npy"}))
    assert placed["status"] == "successful", placed["message"]
    assert_close_in_eps(np.load(root / "C.npy"), a, b, alpha=2.0)
    assert sorted(path.name for path in root.iterdir()) == ["B.npy", "C.npy"]


def test_other_processes_run_at_the_worker(service, operands):
    server, _ = service
    a, _ = operands
    job = submit(server.http, "qr", a={"matrix": upload(server.http, a)})
    assert finished(server.http, job)["status"] == "successful"


def test_a_scheduler_that_cannot_be_reached_fails_the_job_by_name(
    service, operands, scheduler_file
):
    server, _ = service
    matrix = {"matrix": upload(server.http, operands[0])}
    away = Path(scheduler_file).rename(f"{scheduler_file}.away")
    try:
        job = finished(server.http, submit(server.http, a=matrix, b=matrix, trans_b=True))
    finally:
        away.rename(scheduler_file)
    assert job["status"] == "failed"
    assert f"--cluster {scheduler_file}" in job["message"]


@pytest.mark.campaign
def test_a_killed_jobs_product_goes_on(service, operands):
    server, settings = service
    rng = np.random.default_rng(3)
    a = rng.standard_normal((900, 700))
    matrix = {"matrix": upload(server.http, a)}
    # Many small tiles, so that the job runs for a while.
    job = submit(server.http, a=matrix, b=matrix, trans_b=True, options={"tile": [32, 32, 32]})
    wait_until((settings.job_dir(job) / "journal").exists)
    wait_until(lambda: newest_runner(settings)).kill()
    kept = finished(server.http, job)
    assert kept["status"] == "successful", kept["message"]
    assert kept["attempt"] >= 2
    result = server.http.get(f"/v1/jobs/{job}/results/c")
    assert_close_in_eps(np.load(io.BytesIO(result.content)), a, a.T)
