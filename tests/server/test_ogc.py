"""OGC API - Processes: requests, process descriptions, results, lists and dismissal."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hdgemm.server.execution import PROCESSES
from tests.server.harness import (
    InProcess,
    finished,
    submit,
)

if TYPE_CHECKING:
    from tests.server.harness import Live

A = {"path": "a.npy"}
GEMM = "/v1/processes/gemm/execution"
OGC = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0/"


def test_owslib_lists_describes_and_executes(server: Live) -> None:
    processes = pytest.importorskip("owslib.ogcapi.processes", reason="owslib is not installed")
    headers = copy.copy(processes.Collections.__init__.__globals__["REQUEST_HEADERS"])
    np.save(server.settings.roots[0] / "square.npy", np.eye(3))
    square = {"path": "square.npy"}
    ogc = processes.Processes(f"{server.url}/v1", headers=headers)
    assert [one["id"] for one in ogc.processes()] == list(PROCESSES)
    described = ogc.process("gemm")
    assert described["inputs"]["a"]["minOccurs"] == 1
    assert described["outputs"]["report"]["schema"] == {"type": "object"}
    assert any(one.endswith("/conf/core") for one in ogc.conformance()["conformsTo"])
    job = ogc.execute(
        "gemm", inputs={"a": {"value": square}, "b": {"value": square}, "alpha": 2.0},
        outputs={"c": {"transmissionMode": "reference"}}, async_=True,
    )  # fmt: skip
    assert ogc.response_headers["Preference-Applied"] == "respond-async"
    assert finished(server.http, job["jobID"])["status"] == "successful"
    results = server.http.get(f"/v1/jobs/{job['jobID']}/results").json()
    assert list(results) == ["c"]
    data = server.http.get(results["c"]["href"]).content
    assert data.endswith((2.0 * np.eye(3)).tobytes())
    raw = server.http.post(
        GEMM, json={"inputs": {"a": square, "b": square}, "response": "raw"}
    ).json()["jobID"]  # fmt: skip
    finished(server.http, raw)
    answer = server.http.get(f"/v1/jobs/{raw}/results")
    assert (answer.status_code, answer.content) == (204, b"")
    assert f"</v1/jobs/{raw}/results/c>; rel=c" in answer.headers["link"]
    assert server.http.get(f"/v1/jobs/{raw}/results/report").json()["gflops"] == 1.0


@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"response": "document", "outputs": {}}, 201),
        ({"response": "raw", "outputs": {"c": {}, "report": {"transmissionMode": "value"}}}, 201),
        ({"outputs": {"c": {"format": {"mediaType": "application/octet-stream"}}}}, 201),
        ({"subscriber": {"successUri": "http://127.0.0.1:1/done"}}, 201),
        ({"outputs": {"d": {}}}, 422),
        ({"outputs": {"c": {"transmissionMode": "value"}}}, 422),
        ({"response": "xml"}, 422),
    ],
)
def test_members_of_an_execute_request(
    client: InProcess, members: dict[str, Any], status: int
) -> None:
    body = {"inputs": {"a": A, "b": A}, **members}
    assert client.post(GEMM, json=body).status_code == status


def test_qualified_values_stand_for_values(client: InProcess) -> None:
    inputs = {"a": {"value": A, "mediaType": "application/json"}, "b": A, "alpha": {"value": 3.0}}
    kept = client.post(GEMM, json={"inputs": inputs}).json()["inputs"]
    assert (kept["a"]["path"][-5:], kept["alpha"]) == ("a.npy", 3.0)
    odd = {"a": {"value": A, "more": 1}, "b": A}
    assert client.post(GEMM, json={"inputs": odd}).status_code == 422


def test_lists_by_type_time_and_duration(client: InProcess) -> None:
    job_id = submit(client, a=A, b=A)
    created = client.get(f"/v1/jobs/{job_id}").json()["created"]
    for query, count in (
        ({"type": "process"}, 1),
        ({"datetime": f"{created[:-1]}Z"}, 1),
        ({"datetime": "2020-01-01T00:00:00Z/.."}, 1),
        ({"datetime": "../2020-01-01T00:00:00+01:00"}, 0),
        ({"datetime": "2020-01-01T00:00:00Z/2100-01-01T00:00:00Z"}, 1),
        ({"minDuration": 0}, 0),  # it has not run
        ({"maxDuration": 10}, 0),
    ):
        listed = client.get("/v1/jobs", params=query).json()["jobs"]
        assert len(listed) == count, query


def test_dismissal_and_exceptions(client: InProcess) -> None:
    job_id = submit(client, a=A, b=A)
    at = f"/v1/jobs/{job_id}"
    refused = client.get(f"{at}/results")
    assert (refused.status_code, refused.json()["type"]) == (404, f"{OGC}result-not-ready")
    dismissed = client.delete(at)
    assert (dismissed.status_code, dismissed.json()["status"]) == (200, "dismissed")
    assert client.get(at).json()["status"] == "dismissed"
    assert client.delete(at).json()["message"] == "deleted"
    assert client.get(at).json()["type"] == f"{OGC}no-such-job"
    assert client.get("/v1/processes/x").json()["type"] == f"{OGC}no-such-process"
    none = client.post("/v1/processes/x/execution", json={})
    assert (none.status_code, none.json()["type"]) == (404, f"{OGC}no-such-process")
