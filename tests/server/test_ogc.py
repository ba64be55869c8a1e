"""OGC API - Processes: requests, process descriptions, results, lists and dismissal."""

from __future__ import annotations

import copy
import json
from email import message_from_bytes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hdgemm.server.execution import PROCESSES
from tests.server.harness import (
    InProcess,
    finished,
    npy,
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


@pytest.mark.parametrize(
    ("outputs", "status", "media_type"),
    [
        ({"c": {}}, 200, "application/octet-stream"),
        ({"c": {"transmissionMode": "value"}}, 200, "application/octet-stream"),
        ({"report": {}}, 200, "application/json"),
        ({"c": {"transmissionMode": "reference"}}, 204, None),
        ({}, 200, "multipart/related"),
        ({"c": {}, "report": {"transmissionMode": "value"}}, 200, "multipart/related"),
    ],
)
def test_raw_results(
    server: Live, outputs: dict[str, Any], status: int, media_type: str | None
) -> None:
    np.save(server.settings.roots[0] / "square.npy", np.eye(3))
    square = {"path": "square.npy"}
    body = {"inputs": {"a": square, "b": square}, "response": "raw", "outputs": outputs}
    job = server.http.post(GEMM, json=body).json()["jobID"]
    finished(server.http, job)
    answer = server.http.get(f"/v1/jobs/{job}/results")
    assert answer.status_code == status
    if media_type is None or media_type.startswith("multipart"):
        assert f"</v1/jobs/{job}/results/c>; rel=c" in answer.headers["link"]
    if media_type is None:
        assert answer.content == b""
        return
    assert answer.headers["content-type"].startswith(media_type)
    if media_type == "application/json":
        assert answer.json()["gflops"] == 1.0
    elif media_type == "application/octet-stream":
        assert answer.content == npy(np.eye(3))
    else:
        head = f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode()
        report, c = message_from_bytes(head + answer.content).get_payload()
        assert json.loads(report.get_payload())["gflops"] == 1.0
        assert server.http.get(c["Content-Location"]).content == npy(np.eye(3))


def test_a_document_has_no_null_where_ogc_has_none(client: InProcess) -> None:
    job = client.get(f"/v1/jobs/{submit(client, a=A, b=A)}").json()
    assert not {"started", "finished"} & job.keys()
    assert all(isinstance(value, str) for link in job["links"] for value in link.values())


def test_processes_are_listed_by_pages(client: InProcess) -> None:
    found, at = [], "/v1/processes?limit=1"
    while at:
        page = client.get(at).json()
        assert len(page["processes"]) == 1
        found += [one["id"] for one in page["processes"]]
        at = next((link["href"] for link in page["links"] if link["rel"] == "next"), "")
    assert found == list(PROCESSES)
    assert len(client.get("/v1/processes?limit=100000").json()["processes"]) == len(PROCESSES)
    for query in ("limit=0", "limit=x", "cursor=x"):
        assert client.get(f"/v1/processes?{query}").status_code == 422


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
