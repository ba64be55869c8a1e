"""The service with hdgemm itself: products of files, their check, their pictures, a profile."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hdgemm
from hdgemm.client import Client
from hdgemm.errors import CancelledRunError
from hdgemm.matrices.layout import as_dtype
from hdgemm.options import Options
from hdgemm.profiling.results import Profile
from hdgemm.server.backend import Call, JobWatch
from hdgemm.server.fork_server import SERVER_NAME
from hdgemm.server.hdgemm_backend import HdgemmLibrary
from tests.server.harness import (
    LIMIT,
    Live,
    finished,
    newest_runner,
    processes,
    submit,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

A, B = {"path": "a.npy"}, {"path": "b.npy"}


def test_jobs_are_forked_from_a_process_that_has_loaded_no_driver(real: Live) -> None:
    assert finished(real.http, submit(real.http, a=A, b=B))["status"] == "successful"
    (server,) = processes(real.settings, SERVER_NAME)
    loaded = Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8")
    assert not re.findall(r"/(?:libcuda|libOpenCL|libpocl|libmpi)\S*", loaded)
    assert server.num_threads() == 1


def test_a_trace_is_whole_although_the_chart_could_not_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object, path: Path, **__: object) -> None:
        path.write_bytes(b"a part")
        raise OSError("stopped")

    monkeypatch.setattr("hdgemm.pictures.gantt.save_gantt", stop)
    matrix, out = tmp_path / "a.npy", tmp_path / "c.npy"
    np.save(matrix, np.eye(50))
    watch = JobWatch(lambda _: None, threading.Event())
    parameters = {"alpha": 1.0, "beta": 0.0, "trans_a": False, "trans_b": False}
    call = Call(process="gemm", operands={"a": matrix, "b": matrix}, out=out, parameters=parameters)
    drawn = tmp_path / "job"
    drawn.mkdir()
    with pytest.raises(OSError, match="stopped"):
        HdgemmLibrary().run(call, Options(devices="host"), watch).draw(drawn)
    assert [path.name for path in drawn.iterdir()] == ["trace.json"]
    assert json.loads((drawn / "trace.json").read_text(encoding="utf-8"))["traceEvents"]


def test_a_product_file_to_file_with_less_memory_than_it_has(real: Live) -> None:
    root = real.settings.roots[0]
    inputs = {
        "a": A, "b": B, "alpha": -2.0, "output": {"path": "c.npy"},
        "options": {"host_memory": "4MB", "verify": True, "threads": 1},
    }  # fmt: skip
    at = "/v1/processes/gemm/execution"
    planned = real.http.post(at, json={"inputs": inputs, "dry_run": True}).json()["plan"]
    job_id = submit(real.http, **inputs)
    job = finished(real.http, job_id)
    assert job["status"] == "successful", job["error"]
    assert job["plan"] == planned
    expected = -2.0 * np.load(root / "a.npy") @ np.load(root / "b.npy")
    np.testing.assert_allclose(np.load(root / "c.npy"), expected, atol=1e-10)
    assert job["needs"]["host_bytes"] <= 4_000_000
    assert job["verification"] == job["report"]["verification"]
    assert job["verification"]["summary"].startswith("C is the product: ")
    assert job["report"]["stages"]["mult1"]["flops"] == 2 * 700 * 600 * 500
    assert job["report"]["moved_bytes"] == job["report"]["planned_bytes"]
    wait_until(lambda: newest_runner(real.settings) is None)  # its pictures are drawn
    trace = real.http.get(f"/v1/jobs/{job_id}/trace").content
    assert json.loads(trace)["traceEvents"]
    assert real.http.get(f"/v1/jobs/{job_id}/gantt.png").content.startswith(b"\x89PNG")
    drawn = real.http.get(f"/v1/jobs/{job_id}/map").json()
    assert sum(rows * cols for _, _, rows, cols in drawn["units"]) == 700 * 600
    checked = submit(real.http, "verify", a=A, b=B, c={"job": job_id}, alpha=-2.0)
    assert finished(real.http, checked)["report"]["passed"] is True
    checked = submit(real.http, "verify", a=A, b=B, c={"job": job_id})
    wrong = finished(real.http, checked)
    assert (wrong["status"], wrong["error"]["origin"]) == ("failed", "user")
    assert wrong["verification"]["passed"] is False
    assert wrong["error"]["detail"] == wrong["report"]["summary"]


@pytest.mark.parametrize(
    "stored", [("int8", "int8"), ("float16", "bfloat16"), ("int64", "float32")]
)
def test_products_of_every_stored_dtype_are_the_library_s(
    real: Live, tmp_path: Path, stored: tuple[str, str]
) -> None:
    pytest.importorskip("ml_dtypes")
    numbers = np.random.default_rng(8).integers(-9, 10, (2, 12, 12))
    a, b = (x.astype(as_dtype(name)) for x, name in zip(numbers, stored, strict=True))
    np.save(tmp_path / "b.npy", b)
    expected = hdgemm.matmul(a, b)
    with Client(real.url, patience=LIMIT) as client:
        c = client.multiply(a, tmp_path / "b.npy")
        again = client.submit(a, b)
        doubled = client.multiply(again.wait(), np.eye(12))
        description = again.info["output"]
    assert c.dtype == expected.dtype
    np.testing.assert_array_equal(c, expected)
    assert description["dtype"] == expected.dtype.name
    np.testing.assert_array_equal(doubled, expected)


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (
            {"trans_a": True, "a": {"path": "at.npy"}, "c": {"path": "c0.npy"}, "beta": 0.5},
            {"host_memory": "5MB", "threads": 1, "verify": "tiles"},
        ),
        ({}, {}),
    ],
    ids=["transposed-beta-tiles", "default-memory"],
)
def test_the_plan_of_a_dry_run_is_the_plan_that_runs(
    real: Live, inputs: dict[str, Any], options: dict[str, Any]
) -> None:
    root = real.settings.roots[0]
    np.save(root / "c0.npy", np.ones((700, 600)))
    np.save(root / "at.npy", np.load(root / "a.npy").T.copy())
    body = {"inputs": {"a": A, "b": B, "options": options, **inputs}}
    at = "/v1/processes/gemm/execution"
    planned = real.http.post(at, json={**body, "dry_run": True}).json()["plan"]
    job = finished(real.http, real.http.post(at, json=body).json()["jobID"])
    assert job["status"] == "successful", job["error"]
    assert job["plan"] == planned
    assert job["report"]["plan"] == planned


def test_what_fits_no_plan_is_refused_with_the_missing_bytes(real: Live) -> None:
    body = {"inputs": {"a": A, "b": B, "options": {"host_memory": 1000}}}
    refused = real.http.post("/v1/processes/gemm/execution", json=body)
    assert refused.status_code == 422
    problem = refused.json()
    assert problem["type"] == "/problems/does-not-fit"
    assert problem["missing"] == problem["requested"] - problem["available"] > 0


def test_tiles_of_one_element_are_planned(real: Live) -> None:
    body = {"inputs": {"a": A, "b": B, "options": {"tile": [1, 1, 1]}}, "dry_run": True}
    plan = real.http.post("/v1/processes/gemm/execution", json=body).json()["plan"]
    assert (plan["units"], plan["steps"]) == (700 * 600, 700 * 600 * 500)


def test_linpack_is_a_job_with_a_report(real: Live) -> None:
    job_id = submit(real.http, "linpack", n=300, nb=32, depth=2, threads=2)
    report = finished(real.http, job_id)["report"]
    assert report["passed"] is True
    assert (report["n"], report["nb"], report["variant"]) == (300, 32, "WR20R2R8")
    energy = report["energy"]
    assert set(energy) >= {"joules", "missing", "gflops_per_watt"}
    figures = real.http.get("/metrics").text
    measured = f'hdgemm_gflops_per_watt{{process="linpack"}} {energy["gflops_per_watt"]}'
    assert (measured in figures) == (energy["gflops_per_watt"] is not None)
    assert ("hdgemm_energy_not_measured{" in figures) == bool(energy["missing"])
    mixed = submit(real.http, "linpack", n=200, nb=32, mxp=True)
    assert finished(real.http, mixed)["report"]["steps"] >= 1


def test_a_system_in_single_precision_needs_half_of_the_bytes() -> None:
    double, single = (
        HdgemmLibrary().linpack_bytes({"n": 10_000, "nb": 64, "depth": 1, "mxp": mixed})
        for mixed in (False, True)
    )
    assert 0.5 < single / double < 0.51


def test_a_system_larger_than_every_worker_is_refused_with_the_missing_bytes(real: Live) -> None:
    body = {"inputs": {"n": 1_000_000}}
    refused = real.http.post("/v1/processes/linpack/execution", json=body)
    assert refused.status_code == 422
    problem = refused.json()
    assert problem["missing"] == problem["requested"] - problem["available"] > 0


@pytest.mark.campaign
def test_a_profile_is_a_job_with_a_report_to_look_at(real: Live) -> None:
    job_id = submit(real.http, "profile", name="the host")
    with real.http.stream("GET", f"/v1/jobs/{job_id}/events", timeout=LIMIT) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        told = [json.loads(line[6:]) for line in lines]
    assert told[-2]["status"] == "successful"
    assert any("doing" in each for each in told)
    at = f"/v1/jobs/{job_id}"
    result = real.http.get(f"{at}/results").json()
    assert "c" not in result
    assert set(result["report"]["value"]["ladder"]) >= {"initial", "data-placement"}
    page = real.http.get(f"{at}/report.html")
    assert page.headers["content-type"].startswith("text/html")
    assert "script" not in page.headers["content-security-policy"]
    assert "<html" in page.text
    assert "data:image/png" in page.text
    assert real.http.get(f"{at}/gantt.png").content.startswith(b"\x89PNG")
    assert real.http.get(f"{at}/trace").json()["traceEvents"]
    assert real.http.get(f"{at}/results/c").status_code == 404
    folder = real.settings.job_dir(job_id)
    left = {"gantt.png", "history.json", "log.txt", "report.html", "trace.json"}
    assert {path.name for path in folder.iterdir()} == left


def test_a_profile_tells_its_progress_and_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Mapping[str, Any]] = []
    watch = JobWatch(seen.append, threading.Event())

    def profile(*, device: str, progress: Callable[[float, str], None], **_: object) -> Profile:
        progress(0.5, "ladder")
        return Profile(complete=True, setting={"device": device})

    monkeypatch.setattr("hdgemm.profiling.profile", profile)
    call = Call(process="profile", parameters={"device": "host", "quick": True})
    outcome = HdgemmLibrary().run(call, Options(), watch)
    assert outcome.report["device"] == "host"
    assert seen == [{"percent": 50.0, "doing": "ladder"}]
    watch.cancel.set()
    with pytest.raises(CancelledRunError):
        HdgemmLibrary().run(call, Options(), watch)


def test_empty_products(real: Live) -> None:
    root = real.settings.roots[0]
    np.save(root / "none.npy", np.zeros((700, 0)))
    job_id = submit(
        real.http, a={"path": "none.npy"}, b={"path": "none.npy"}, trans_b=True,
        output={"path": "zeros.npy"},
    )  # fmt: skip
    job = finished(real.http, job_id)
    assert job["status"] == "successful", job["error"]
    np.testing.assert_array_equal(np.load(root / "zeros.npy"), np.zeros((700, 700)))
