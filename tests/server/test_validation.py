"""Validation errors are sentences: the field, its value, and what is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.harness import InProcess

AB = {"a": {"path": "a.npy"}, "b": {"path": "a.npy"}}
REFERENCE = '{"path": …} or {"matrix": …} or {"job": …}'

DEVICE = 'a text like "host" or "opencl:0" or "cuda:0"'
STRATEGY = '"initial", "double-buffering", "data-reuse", "data-placement" or "hybrid"'


def errors(client: InProcess, inputs: Any, process: str = "gemm") -> dict[str, str]:
    answer = client.post(f"/v1/processes/{process}/execution", json={"inputs": inputs})
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    found = {item["field"]: item["what"] for item in problem["errors"]}
    assert problem["detail"].startswith(problem["errors"][0]["what"])
    return found


SENTENCES: dict[str, tuple[Any, str]] = {
    "priority": ({"priority": 1000}, "1000: it must be a whole number from -100 to 100"),
    "alpha": ({"alpha": "x"}, '"x": it must be a number'),
    "trans_a": ({"trans_a": "yes"}, '"yes": it must be true or false'),
    "a": ({"a": 3}, f"3: it must be {REFERENCE}"),
    "a.path": ({"a": {"path": ""}}, '"": it must be a text of 1 to 4096 characters like "a.npy"'),
    "b.matrix": (
        {"b": {"matrix": "zz"}},
        f'"zz": it must be a text of 32 characters like "{"0" * 32}"',
    ),
    "output": (
        {"output": "c.npy"},
        '"c.npy": it must be {"path": …, "format": …, "overwrite": …}, each optional',
    ),
    "b": ({"b": {"pat": "x"}}, f'{{"pat": "x"}}: it must be {REFERENCE}'),
    "options.devices": (
        {"options": {"devices": ["gpu"]}},
        f'["gpu"]: it must be "auto" or a list of items, each {DEVICE}',
    ),
    "options.host_memory": (
        {"options": {"host_memory": "lots"}},
        '"lots": it must be a whole number of at least 1 or a text like "1.5GB"',
    ),
    "options.verify": ({"options": {"verify": 3}}, '3: it must be true or false or "tiles"'),
    "options.strategy": (
        {"options": {"strategy": "fast"}},
        f'"fast": it must be {STRATEGY}',
    ),
    "options.tile": (
        {"options": {"tile": [1, 2]}},
        "[1, 2]: it must be a list of 3 items, each a whole number from 1 to 2147483648",
    ),
    "name": (
        {"name": "x" * 300},
        f'"{"x" * 58}…: it must be a text of at most 200 characters like "night run"',
    ),
}
#: Control characters, line and paragraph separators, bidirectional overrides and isolates.
UNPRINTABLE = "\n\x1b\x7f\x85\u2028\u2029\u202a\u202e\u2066\u2069"


@pytest.mark.parametrize("field", SENTENCES)
def test_each_sentence_names_field_value_and_what_is_allowed(client: InProcess, field: str) -> None:
    inputs, sentence = SENTENCES[field]
    assert errors(client, {**AB, **inputs}) == {field: f"{field} is {sentence}"}


@pytest.mark.parametrize("character", UNPRINTABLE)
def test_names_hold_printable_characters_only(client: InProcess, character: str) -> None:
    said = f"must hold printable characters only, not U+{ord(character):04X}"
    assert errors(client, {**AB, "name": f"a{character}b"})["name"].endswith(f": it {said}")
    answer = client.get("/v1/jobs", params={"name": f"a{character}b"})
    assert answer.status_code == 422
    assert said in answer.text
    described = {"name": f"a{character}b", "shape": [2, 2]}
    assert client.post("/v1/matrices", json=described).status_code == 422


@pytest.mark.parametrize("space", ["\u00a0", "\u2009", "\u202f", "\u3000"])
def test_names_hold_spaces_of_any_script(client: InProcess, space: str) -> None:
    described = {"name": f"a{space}b", "shape": [2, 2]}
    assert client.post("/v1/matrices", json=described).json()["name"] == f"a{space}b"
    jobs = client.get("/v1/jobs", params={"name": f"a{space}b"})
    assert jobs.json()["jobs"] == []


@pytest.mark.parametrize(
    ("process", "given", "kept"),
    [
        ("norm", {"ord": 1}, {"ord": "1"}),
        ("norm", {"ord": -2.0}, {"ord": "-2"}),
        ("ridge", {"b": AB["a"], "alphas": 5}, {"alphas": [5.0]}),
        ("ridge", {"b": AB["a"], "alphas": [1, 10]}, {"alphas": [1.0, 10.0]}),
    ],
)
def test_numbers_are_taken_for_choices_and_lists(
    client: InProcess, process: str, given: dict[str, Any], kept: dict[str, Any]
) -> None:
    at = f"/v1/processes/{process}/execution"
    answer = client.post(at, json={"inputs": {"a": AB["a"], **given}})
    assert answer.status_code == 201, answer.text
    assert answer.json()["inputs"].items() >= kept.items()


@pytest.mark.parametrize(
    ("process", "given", "allowed"),
    [
        ("norm", {"ord": 3}, '3: it must be "fro", "max", "nuc", "1"'),
        ("norm", {"ord": True}, 'true: it must be "fro"'),
        ("ridge", {"alphas": "1,10"}, '"1,10": it must be a list like [1, 10] of items'),
        ("ridge", {"alphas": -1}, "-1.0: it must be a number of at least 0"),
    ],
)
def test_other_numbers_are_refused_as_they_were_given(
    client: InProcess, process: str, given: dict[str, Any], allowed: str
) -> None:
    operands = {"a": AB["a"]} if process == "norm" else AB
    assert allowed in next(iter(errors(client, {**operands, **given}, process).values()))


def test_errors_of_files_and_devices_name_their_field(client: InProcess, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    for field, inputs, words in (
        ("a", {"a": {"path": "gone.npy"}}, '{"path": "gone.npy"}: cannot open'),
        ("b", {"b": {"path": "/etc/passwd"}}, "none of the folders that you may read"),
        ("b", {"b": {"path": "cut.npy"}}, "truncated: its header takes at least 10 bytes"),
        ("output.path", {"output": {"path": "c.csv"}}, '"c.csv": the name of the result must end'),
        ("output.path", {"output": {"path": "a.npy"}}, "is an input of the same job"),
        ("options.devices", {"options": {"devices": ["cuda:7"]}}, "allowed are auto, host"),
    ):
        found = errors(client, {**AB, **inputs})
        assert list(found) == [field]
        assert found[field].startswith(field)
        assert words in found[field]


def test_a_size_of_no_byte_is_refused_in_a_sentence(client: InProcess) -> None:
    what = 'options.host_memory is "0GB": it must be at least 1 byte and less than 2**62'
    found = errors(client, {**AB, "options": {"host_memory": "0GB"}})
    assert found == {"options.host_memory": what}


def test_unknown_fields(client: InProcess) -> None:
    known = "name, priority, device, quick"
    assert errors(client, {"gamma": 1}, "profile") == {
        "gamma": f"gamma is not known here; known are: {known}"
    }

    found = errors(client, {"n_components": 3, "whitten": True}, "pca")
    assert "n_components is not known here: did you mean k?" in found["n_components"]
    assert "did you mean whiten?" in found["whitten"]


def test_missing_fields_and_bodies(client: InProcess) -> None:
    found = errors(client, {})
    assert found == {name: f"{name} is missing: it must be {REFERENCE}" for name in ("a", "b")}
    answer = client.post("/v1/processes/gemm/execution", json={"dry_run": True})
    assert answer.json()["detail"].startswith("inputs is missing: it must be {")


def test_parameters_of_the_query(client: InProcess) -> None:
    answer = client.get("/v1/jobs?limit=0&minDuration=x")
    assert answer.status_code == 422
    assert "limit is " in answer.json()["detail"], answer.json()
    assert "it must be greater than or equal to 1" in answer.json()["detail"]
    answer = client.get("/v1/jobs?status=weird")
    assert answer.json()["detail"].startswith('status is "weird": it must be ')


@pytest.mark.parametrize("name", ["x", "0" * 31, "G" * 32, "%00"])
def test_malformed_identifiers_name_nothing(client: InProcess, name: str) -> None:
    """As OGC API - Processes has it for jobs, section 7.13.2."""
    for path, kind in (("jobs", "/no-such-job"), ("matrices", "/no-such-matrix")):
        answer = client.get(f"/v1/{path}/{name}")
        assert answer.status_code == 404, answer.text
        assert answer.json()["type"].endswith(kind)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/xml", None])
def test_a_body_with_another_media_type_names_the_header(
    client: InProcess, kind: str | None
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.post("/v1/processes/gemm/execution", content=b'{"inputs":{}}', headers=headers)
    assert answer.status_code == 422
    assert "give the header Content-Type: application/json" in answer.json()["detail"]


def test_a_body_that_is_no_json(client: InProcess) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.post("/v1/processes/gemm/execution", content=b"{", headers=headers)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("the body is no JSON: ")
