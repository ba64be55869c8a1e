"""Limits of tokens: folders, priority; error kinds; headers and JSON bodies."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hdgemm.server
from hdgemm.matrices.draft import no_space
from hdgemm.server import tokens, validation
from hdgemm.server.tokens import Account
from tests.server.harness import REPOSITORY, InProcess, application, make_settings, submit
from tests.server.numpy_library import NumpyLibrary

if TYPE_CHECKING:
    from fastapi import FastAPI

    from hdgemm.server.settings import Settings

GEMM = "/v1/processes/gemm/execution"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    chosen = make_settings(tmp_path)
    root = chosen.roots[0]
    for name in ("shared", "mine", "theirs"):
        (root / name).mkdir()
        np.save(root / name / "a.npy", np.eye(3))
    return chosen


def client_of(app: FastAPI, account: Account) -> InProcess:
    database = app.state.service.database
    with database.write() as conn:
        return InProcess(app, tokens.create(conn, account, database.now(conn)))


def test_a_disk_without_room_for_a_plan_is_full(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*_given: object) -> Any:
        raise no_space(Path("/tmp/c.npy"), 2**60, OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(NumpyLibrary, "plan", plan)
    a = {"path": "shared/a.npy"}
    refused = client_of(app, Account(name="me")).post(
        GEMM, json={"inputs": {"a": a, "b": a}, "dry_run": True}
    )
    assert (refused.status_code, refused.json()["type"]) == (507, "/problems/disk-full")
    assert refused.json()["requested"] == 2**60


def test_tokens_read_and_write_in_their_folders_alone(app: FastAPI, settings: Settings) -> None:
    root = settings.roots[0]
    mine = Account(name="me", read_roots=[str(root / "shared")], write_roots=[str(root / "mine")])
    client = client_of(app, mine)
    described = client.get("/v1").json()
    assert described["roots"] == [str(root / "shared"), str(root / "mine")]
    assert described["write_roots"] == [str(root / "mine")]
    statuses = {}
    for source, target in (("shared", "mine"), ("mine", "mine"), ("theirs", "mine"),
                           ("shared", "shared"), ("shared", "theirs")):  # fmt: skip
        a = {"path": str(root / source / "a.npy")}
        output = {"path": str(root / target / f"{source}.npy"), "overwrite": True}
        answer = client.post(GEMM, json={"inputs": {"a": a, "b": a, "output": output}})
        statuses[source, target] = answer.status_code
    assert statuses == {
        ("shared", "mine"): 201, ("mine", "mine"): 201, ("theirs", "mine"): 422,
        ("shared", "shared"): 422, ("shared", "theirs"): 422,
    }  # fmt: skip
    path = {"path": str(root / "theirs" / "a.npy")}
    assert client.get("/v1/files", params=path).status_code == 422


def test_a_token_without_a_folder_to_write_overwrites_nothing(app: FastAPI) -> None:
    client = client_of(app, Account(name="reader", write_roots=[]))
    a = {"path": "theirs/a.npy"}
    output = {"path": "mine/a.npy", "overwrite": True}
    refused = client.post(GEMM, json={"inputs": {"a": a, "b": a, "output": output}})
    assert (refused.status_code, "may write" in refused.json()["detail"]) == (422, True)
    submit(client, a=a, b=a)


def test_folders_of_a_token_beyond_the_roots_count_for_nothing(app: FastAPI) -> None:
    client = client_of(app, Account(name="odd", read_roots=["/etc"], write_roots=["/"]))
    assert client.get("/v1").json()["roots"] == []


def test_priority_is_capped_by_token(app: FastAPI) -> None:
    client = client_of(app, Account(name="me", max_priority=5))
    a = {"path": "mine/a.npy"}
    assert submit(client, a=a, b=a, priority=5)
    refused = client.post(GEMM, json={"inputs": {"a": a, "b": a, "priority": 6}})
    assert refused.status_code == 403
    assert (refused.json()["type"], refused.json()["limit"]) == ("/problems/priority-too-high", 5)


def test_priority_above_the_default_needs_a_token_that_allows_it(app: FastAPI) -> None:
    a = {"path": "mine/a.npy"}
    local = InProcess(app)
    assert submit(local, a=a, b=a, priority=100)
    client = client_of(app, Account(name="me"))
    assert client.get("/v1/system").json()["account"]["max_priority"] == 0
    assert submit(client, a=a, b=a, priority=0)
    refused = client.post(GEMM, json={"inputs": {"a": a, "b": a, "priority": 1}})
    assert (refused.status_code, refused.json()["limit"]) == (403, 0)


def test_one_token_does_not_fill_the_queue(tmp_path: Path) -> None:
    a = {"path": "a.npy"}
    body = {"inputs": {"a": a, "b": a}}
    chosen = make_settings(tmp_path, max_queue=5, max_queue_per_token=2)
    np.save(chosen.roots[0] / "a.npy", np.eye(3))
    with application(chosen) as app:
        local = InProcess(app)
        assert [local.post(GEMM, json=body).status_code for _ in range(3)] == [201] * 3
        greedy = client_of(app, Account(name="greedy"))
        assert greedy.post(GEMM, json=body).status_code == 201
        assert greedy.get("/v1/system").json()["account"]["max_jobs"] == 2
        assert greedy.post(GEMM, json=body).status_code == 201
        refused = greedy.post(GEMM, json=body)
        assert (refused.status_code, refused.json()["limit"]) == (429, 5)
    with application(chosen.model_copy(update={"max_queue": 10})) as app:
        again = InProcess(app)
        assert again.get("/v1/jobs").status_code == 401
        third = client_of(app, Account(name="third"))
        assert [third.post(GEMM, json=body).status_code for _ in range(3)] == [201, 201, 429]
        larger = client_of(app, Account(name="larger", max_jobs=3))
        assert [larger.post(GEMM, json=body).status_code for _ in range(3)] == [201] * 3


def test_every_error_kind_is_documented() -> None:
    sources = Path(hdgemm.server.__file__).parent.rglob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    pairs = set(re.findall(r'ProblemError\(\s*(\d{3}), "([a-z-]+)"', text))
    pairs |= {("404", "result-not-ready"), ("404", "no-result"), ("422", "does-not-fit")}
    table = (REPOSITORY / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| ([\d, ]+) \| (.*) \|$", table, re.MULTILINE)
    rows = {status: row for statuses, row in found for status in statuses.split(", ")}
    wrong = {(s, kind) for s, kind in pairs if f"`{kind}`" not in rows.get(s, "")}
    assert not wrong, sorted(wrong)


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"inputs": ' * 10_000,
        '{"inputs": {"alpha": 1' + "0" * 5000 + "}}",
        "{",
        b"\xff",
    ],
)
def test_json_that_cannot_be_read_is_bad_json(app: FastAPI, body: str | bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = InProcess(app).post(GEMM, content=body, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/bad-json")


def test_deep_json_that_can_be_read_is_invalid(app: FastAPI) -> None:
    for depth in (50, 200, 800):
        deep = json.loads("[" * depth + "]" * depth)
        answer = InProcess(app).post(GEMM, json={"inputs": {"a": deep, "b": {"value": deep}}})
        assert answer.status_code in {400, 422}


@pytest.mark.parametrize(
    "inputs", [{"a": dict.fromkeys(map(str, range(2000)))}, {"a": [[]] * 2000}]
)
def test_a_body_of_many_values_is_refused_before_it_is_validated(
    app: FastAPI, inputs: dict[str, Any]
) -> None:
    answer = InProcess(app).post(GEMM, json={"inputs": inputs})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/too-many-values")


def test_many_errors_of_one_field_are_described_once(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = []
    by_schema = validation._by_schema

    def counting(field: str, *others: Any) -> str:
        described.append(field)
        return by_schema(field, *others)

    monkeypatch.setattr(validation, "_by_schema", counting)
    many = dict.fromkeys(map(str, range(900)), "x" * 100)
    answer = InProcess(app).post(GEMM, json={"inputs": {"a": many, "b": {"path": "a.npy"}}})
    assert (answer.status_code, len(answer.json()["errors"]), described) == (422, 1, ["a"])
    described.clear()
    answer = InProcess(app).post(GEMM, json={"inputs": {"c" * 1200 + str(i): 1 for i in range(90)}})
    assert (answer.status_code, len(described)) == (422, 20)
    assert len(answer.content) < 20_000


def test_headers_are_limited_as_written(app: FastAPI) -> None:
    client = InProcess(app)
    # A short enough address comes as far as the check of its parameters.
    for size, status, of_parameter in ((30 << 10, 200, 400), (40 << 10, 431, 431)):
        assert client.get("/v1/jobs", headers={"X-Long": "x" * size}).status_code == status
        assert client.get("/v1/jobs", params={"x": "y" * size}).status_code == of_parameter


def test_bounds_of_factors_stand_in_the_schema(app: FastAPI) -> None:
    schemas = InProcess(app).get("/openapi.json").json()["components"]["schemas"]
    for name in ("alpha", "beta"):
        shown = schemas["GemmInputs"]["properties"][name]
        assert (shown["minimum"], shown["maximum"]) == (-1.7e308, 1.7e308)


def test_a_proxy_that_the_server_does_not_know_is_refused(app: FastAPI) -> None:
    headers = {"X-Forwarded-For": "192.0.2.1"}
    refused = InProcess(app).get("/v1/jobs", headers=headers)
    assert (refused.status_code, "--public-url" in refused.json()["detail"]) == (421, True)
    assert client_of(app, Account(name="me")).get("/v1/jobs", headers=headers).status_code == 200
