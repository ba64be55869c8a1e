"""The API without sockets or workers: documents, references, admission, errors."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hdgemm.routines.registry import commands
from hdgemm.server.routes.jobs import make_cursor
from tests.server.harness import InProcess, application, make_settings, npy, submit, upload

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from hdgemm.server.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


@pytest.fixture
def root(settings: Settings) -> Path:
    folder = settings.roots[0]
    np.save(folder / "a.npy", np.arange(12.0).reshape(3, 4))
    np.save(folder / "b.npy", np.arange(20.0).reshape(4, 5))
    return folder


A, B = {"path": "a.npy"}, {"path": "b.npy"}
OGC = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0/"


def execute(
    client: InProcess, headers: dict[str, str] | None = None, **inputs: Any
) -> httpx.Response:
    body = {"inputs": inputs}
    return client.post("/v1/processes/gemm/execution", json=body, headers=headers or {})


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert document["type"].startswith(("/problems/", OGC))
    assert document["detail"]
    return document


def test_processes_describe_their_inputs(client: InProcess) -> None:
    listed = client.get("/v1/processes").json()["processes"]
    names = [process["id"] for process in listed]
    assert names == ["gemm", *commands(), "verify", "profile", "linpack"]
    inputs = client.get("/v1/processes/gemm").json()["inputs"]
    assert {"a", "b", "c", "alpha", "beta", "trans_a", "output", "options"} <= set(inputs)
    assert [name for name in inputs if inputs[name]["minOccurs"]] == ["a", "b"]
    assert "$ref" not in json.dumps(inputs)
    assert inputs["alpha"]["schema"]["maximum"] == 1.7e308
    unknown = client.get("/v1/processes/eig").json()
    assert unknown["type"].endswith("/1.0/no-such-process")
    assert "known are: gemm, " in unknown["detail"]


def test_execution_answers_with_the_job(client: InProcess, root: Path) -> None:
    answer = execute(client, a=A, b=B, alpha=2.0, name="night run", priority=3)
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['jobID']}"
    assert (job["status"], job["phase"], job["name"]) == ("accepted", "queued", "night run")
    assert job["inputs"]["a"] == {"path": str(root / "a.npy")}
    assert job["output"]["shape"] == [3, 5]
    assert job["needs"]["host_bytes"] == 8 * (12 + 20 + 15)
    found = client.get(f"/v1/jobs/{job['jobID']}").json()
    assert [one["phase"] for one in found["phases"]] == ["queued"]
    assert {**found, "phases": None} == job


def test_dry_run_plans_and_accepts_nothing(client: InProcess, root: Path) -> None:
    body = {"inputs": {"a": A, "b": B}, "dry_run": True}
    answer = client.post("/v1/processes/gemm/execution", json=body)
    assert answer.status_code == 200
    assert answer.json()["plan"]["m"] == 3
    assert client.get("/v1/jobs").json()["jobs"] == []


def test_every_route_refuses_query_parameters_that_it_does_not_have(
    client: InProcess, root: Path
) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    routes = [(method, path, op) for path, ops in paths.items() for method, op in ops.items()]
    hidden = [("get", path, {}) for path in ("/", "/static/app.js", "/openapi.json")]
    for method, path, operation in [*routes, *hidden]:
        at = re.sub(r"\{\w+_id\}", "0" * 32, path).replace("{array}", "piv")
        known = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}
        found = problem(client.request(method.upper(), f"{at}?limits=1"), 400)
        assert found["type"] == "/problems/unknown-parameter", at
        assert (found["parameter"], set(found["accepted"])) == ("limits", known)
        assert "limits" in found["detail"]
        assert all(name in found["detail"] for name in known)
    body = {"inputs": {"a": A, "b": B}}
    problem(client.post("/v1/processes/gemm/execution?dry_run=true", json=body), 400)
    assert client.get("/v1/jobs").json()["jobs"] == []
    absent = f"/v1/jobs/{'0' * 32}/results/c"
    assert client.request("HEAD", f"{absent}?rows=0:1").status_code == 404
    assert client.request("HEAD", f"{absent}?row=0:1").status_code == 400


def test_idempotency_key_replays_and_refuses_another_body(client: InProcess, root: Path) -> None:
    key = {"Idempotency-Key": "k-1"}
    first, again = (execute(client, key, a=A, b=B) for _ in range(2))
    assert first.status_code == again.status_code == 201
    assert first.json()["jobID"] == again.json()["jobID"]
    assert problem(execute(client, key, a=A, b=B, alpha=3.0), 422)["type"].endswith("key-reused")
    assert len(client.get("/v1/jobs").json()["jobs"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        '{"inputs": {"a": {"path": "a.npy"}, "b": {"path": "b.npy"}, "alpha": ' + alpha + "}}"
        for alpha in ("NaN", "Infinity", "-Infinity", "1e999", "true", '"2"', "null", "[1]",
                      "1" + "0" * 400, "1" + "0" * 5000)
    ] + [
        "{", "", "[]", "null", "[" * 50_000, '{"inputs": {}}', '{"inputs": {"a": 1}}',
        '{"inputs": {"a": {"path": "\\ud800"}, "b": {"path": "b.npy"}}}',
        '{"inputs": {"a": {"path": "a\\u0000b"}, "b": {"path": "b.npy"}}}',
        '{"inputs": {"a": {"path": "a.npy"}, "b": {"path": "b.npy"}, "trans_a": 1}}',
        '{"inputs": {"a": {"path": "a.npy"}, "b": {"path": "b.npy"}, "priority": 1.0}}',
        '{"inputs": {"a": {"path": "a.npy"}, "b": {"path": "b.npy"}, "surplus": 1}}',
        '{"inputs": {"a": {"path": "a.npy", "job": "x"}, "b": {"path": "b.npy"}}}',
        (
            '{"inputs": {"a": {"path": "x"}, "b": {"path": "y"},'
            ' "options": {"host_memory": "9999999TB"}}}'
        ),
    ],
)  # fmt: skip
def test_bodies_that_are_not_requests(client: InProcess, root: Path, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.post("/v1/processes/gemm/execution", content=body, headers=headers)
    assert answer.status_code in {400, 422}, answer.text
    problem(answer, answer.status_code)
    assert client.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"a": A, "b": A}, "3×4"),
        ({"a": A, "b": B, "trans_a": True}, "4×3"),
        ({"a": A, "b": B, "beta": 1.0}, "beta is 1.0, but there is no C to multiply: give c"),
        ({"a": A, "b": B, "c": A}, "C is 3×4"),
        ({"a": {"path": "missing.npy"}, "b": B}, "missing.npy"),
        ({"a": {"path": "/etc/passwd"}, "b": B}, "none of the folders"),
        ({"a": {"path": "../data/service.db"}, "b": B}, "none of the folders"),
        ({"a": A, "b": B, "output": {"path": "../c.npy"}}, "none of the folders"),
        ({"a": A, "b": B, "output": {"path": "c.txt"}}, ".npy"),
        ({"a": A, "b": B, "output": {"path": "no/c.npy"}}, "no folder"),
        ({"a": A, "b": B, "output": {"path": "a.npy", "overwrite": True}}, "input"),
        ({"a": A, "b": B, "options": {"devices": ["cuda:7"]}}, "cuda:7"),
    ],
)
def test_jobs_that_cannot_be(
    client: InProcess, root: Path, inputs: dict[str, Any], words: str
) -> None:
    assert words in problem(execute(client, **inputs), 422)["detail"]


def test_a_path_that_leads_out_by_a_link_is_refused(
    client: InProcess, root: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "secret.npy", np.zeros((3, 4)))
    (root / "link.npy").symlink_to(tmp_path / "secret.npy")
    (root / "folder").symlink_to(tmp_path)
    for path in ("link.npy", "folder/secret.npy", str(root / "folder" / "secret.npy")):
        assert (
            "none of the folders" in problem(execute(client, a={"path": path}, b=B), 422)["detail"]
        )
    (root / "inside.npy").symlink_to(root / "a.npy")
    assert execute(client, a={"path": "inside.npy"}, b=B).status_code == 201


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        npy(np.zeros((3, 4)))[:-1],
        npy(np.zeros(12)),
        npy(np.zeros((3, 4), "u8")),
        b"\x93NUMPY\x01\x00\x76\x00" + b"__import__('os').system('true')".ljust(0x75) + b"\n",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        npy(np.zeros((3, 4))).replace(b"(3, 4)", b"(9**9**9, 4)"[:6]),
    ],
)
def test_files_that_are_no_matrices(client: InProcess, root: Path, content: bytes) -> None:
    (root / "bad.npy").write_bytes(content)
    problem(execute(client, a={"path": "bad.npy"}, b=B), 422)


def test_pickled_files_are_never_loaded(client: InProcess, root: Path) -> None:
    np.save(root / "objects.npy", np.array([[object()]], dtype=object), allow_pickle=True)
    detail = problem(execute(client, a={"path": "objects.npy"}, b=B), 422)["detail"]
    assert "pickled" in detail


def test_what_does_not_fit_is_refused_with_the_numbers(client: InProcess, root: Path) -> None:
    needed = 8 * (12 + 20 + 15)
    refused = problem(execute(client, a=A, b=B, options={"host_memory": 100}), 422)
    assert refused["type"] == "/problems/does-not-fit"
    assert (refused["requested"], refused["available"]) == (needed, 100)
    refused = problem(execute(client, a=A, b=B, options={"host_memory": "2GB"}), 422)
    assert (refused["requested"], refused["available"]) == (2 * 10**9, 1 << 30)


def test_a_result_without_disk_is_refused_with_the_numbers(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, min_free_disk=1 << 60)
    with application(settings) as app:
        client = InProcess(app)
        np.save(settings.roots[0] / "a.npy", np.zeros((3, 3)))
        refused = problem(execute(client, a=A, b=A), 507)
        assert refused["requested"] == 9 * 8 + 4096
        assert refused["missing"] > 0
        problem(client.post("/v1/matrices", json={"shape": [1, 1]}), 507)


def test_disk_is_reserved_for_accepted_jobs(client: InProcess, root: Path) -> None:
    submit(client, a=A, b=B)
    answer = problem(client.post("/v1/matrices", json={"shape": [1 << 24, 1 << 24]}), 507)
    assert answer["available"] < answer["requested"] == (1 << 51) + 4096


def test_outputs_are_not_overwritten_unless_asked(client: InProcess, root: Path) -> None:
    taken = {"path": "a2.npy"}
    np.save(root / "a2.npy", np.zeros((3, 5)))
    problem(execute(client, a=A, b=B, output=taken), 409)
    assert execute(client, a=A, b=B, output={**taken, "overwrite": True}).status_code == 201
    problem(execute(client, a=A, b=B, output={**taken, "overwrite": True}), 409)


def test_jobs_are_listed_in_pages_and_filtered(client: InProcess, root: Path) -> None:
    ids = [submit(client, a=A, b=B, name=f"job {i % 2}") for i in range(7)]
    seen, at = [], "/v1/jobs?limit=3"
    while at:
        page = client.get(at).json()
        seen += [job["jobID"] for job in page["jobs"]]
        at = next((link["href"] for link in page["links"] if link["rel"] == "next"), "")
    assert seen == ids[::-1]
    odd = client.get("/v1/jobs", params={"name": "job 1", "status": "accepted"}).json()["jobs"]
    assert [job["jobID"] for job in odd] == ids[5::-2]
    assert client.get("/v1/jobs?status=failed&processID=gemm").json()["jobs"] == []
    assert len(client.get("/v1/jobs?limit=100000").json()["jobs"]) == 7
    for bad in ("status=done", "limit=0", "cursor=%00", "cursor=zzzz", "limit=x", "type=x",
                "sortby=name", f"sortby=-finished&cursor={make_cursor(3)}", "cursor=W3RydWVd",
                "datetime=2026-02-31T00:00:00Z/..", "minDuration=-1"):  # fmt: skip
        problem(client.get(f"/v1/jobs?{bad}"), 422)


def test_jobs_that_have_ended_are_listed_by_their_end(client: InProcess, root: Path) -> None:
    ids = [submit(client, a=A, b=B) for _ in range(4)]
    for number in (2, 0, 3):
        client.post(f"/v1/jobs/{ids[number]}/cancel")
    seen, at = [], "/v1/jobs?sortby=-finished&limit=1"
    while at:
        page = client.get(at).json()
        seen += [job["jobID"] for job in page["jobs"]]
        at = next((link["href"] for link in page["links"] if link["rel"] == "next"), "")
    assert seen == [ids[3], ids[0], ids[2]]


def test_cancelling_and_deleting(client: InProcess, root: Path) -> None:
    at = f"/v1/jobs/{submit(client, a=A, b=B)}"
    assert problem(client.get(f"{at}/results"), 404)["type"].endswith("/1.0/result-not-ready")
    for _ in range(2):
        cancelled = client.post(f"{at}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "dismissed")
    problem(client.get(f"{at}/results"), 404)
    assert client.delete(at).json()["status"] == "dismissed"
    for method, path in (("GET", at), ("DELETE", at), ("POST", f"{at}/cancel"),
                         ("GET", f"{at}/log"), ("GET", f"{at}/events")):  # fmt: skip
        problem(client.request(method, path), 404)


def test_what_an_unfinished_job_reads_stays(client: InProcess, root: Path) -> None:
    matrix = upload(client, np.ones((3, 3)))
    first = submit(client, a={"matrix": matrix}, b={"matrix": matrix})
    second = submit(client, a={"job": first}, b={"matrix": matrix})
    problem(client.delete(f"/v1/matrices/{matrix}"), 409)
    client.post(f"/v1/jobs/{second}/cancel")
    client.post(f"/v1/jobs/{first}/cancel")
    problem(execute(client, a={"job": first}, b={"matrix": matrix}), 409)
    assert client.delete(f"/v1/matrices/{matrix}").status_code == 204
    problem(execute(client, a={"matrix": matrix}, b=B), 404)


def test_unknown_paths_methods_and_types_answer_with_problems(
    client: InProcess, root: Path
) -> None:
    problem(client.get("/nope"), 404)
    problem(client.get("/static/../app.py"), 404)
    refused = client.put("/v1/jobs")
    problem(refused, 405)
    assert refused.headers["allow"] == "GET"
    refused = client.put(f"/v1/jobs/{'0' * 32}")
    assert refused.headers["allow"] == "DELETE, GET"
    text = json.dumps({"inputs": {"a": A, "b": B}})
    at = "/v1/processes/gemm/execution"
    problem(client.post(at, content=text, headers={"Content-Type": "text/plain"}), 422)
    zipped = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    problem(client.post(at, content=b"\x1f\x8b" + b"\x00" * 100, headers=zipped), 415)
    problem(client.post(at, content=b" " * ((128 << 10) + 1)), 413)


def test_health_and_figures(client: InProcess, root: Path) -> None:
    submit(client, a=A, b=B)
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "no-worker")
    figures = client.get("/metrics").text
    assert 'hdgemm_jobs{process="gemm",status="accepted"} 1.0' in figures
    assert 'hdgemm_disk_bytes{kind="free"}' in figures
    assert client.get("/v1/system").json()["account"]["unfinished_jobs"] == 1
    assert client.get("/v1").json()["roots"] == [str(root)]


def test_openapi_knows_every_status_that_routes_give(client: InProcess) -> None:
    document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert {"422", "500"} <= set(operation["responses"]), path
    execution = document["paths"]["/v1/processes/gemm/execution"]["post"]["responses"]
    assert {"200", "201", "404", "409", "413", "429", "507"} <= set(execution)


def test_a_fault_of_the_server_is_a_problem_too(
    client: InProcess, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("hdgemm.server.routes.jobs.jobs.page", fail)
    document = problem(client.get("/v1/jobs"), 500)
    assert "ZeroDivisionError" in document["detail"]
