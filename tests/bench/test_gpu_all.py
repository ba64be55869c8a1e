"""The script of all measurements on a GPU: its parts, its time limit, its results."""

import importlib
import json
import sys

import pytest

from bench import gpu_all, harness
from bench.gpu_all import Part, main, parts


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Results go to a folder of the test; a relative path to it is never printed."""
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    return tmp_path / "gpu_all.json"


def started(monkeypatch, chosen, *arguments):
    monkeypatch.setattr(gpu_all, "parts", lambda _device: chosen)
    monkeypatch.setattr(sys, "argv", ["gpu_all", *arguments])
    return main()


def test_every_part_is_a_module_that_exists():
    for part in parts("cuda:0"):
        assert part.command[0] == "-m"
        assert importlib.util.find_spec(part.command[1]) is not None, part


def test_all_parts_fit_into_nine_minutes():
    assert sum(part.seconds for part in parts("cuda:0")) <= 540


def test_a_failed_part_leaves_the_others(results, monkeypatch, capsys):
    chosen = (
        Part("bad", 30, ("-c", "import sys; print('seen'); sys.exit('why')")),
        Part("good", 30, ("-c", "print('figure')")),
    )
    assert started(monkeypatch, chosen) == 1
    found = json.loads(results.read_text())["parts"]
    assert found["bad"]["status"] == "failed"
    assert found["bad"]["lines"] == ["seen"]
    assert found["bad"]["errors"] == ["why"]
    assert found["good"]["lines"] == ["figure"]
    assert "failed: bad" in capsys.readouterr().out


def test_a_part_without_time_is_named(results, monkeypatch, capsys):
    chosen = (Part("first", 1, ("-c", "")), Part("long", 1000, ("-c", "")))
    assert started(monkeypatch, chosen, "--limit", "60") == 0
    assert "left out: long" in capsys.readouterr().out
    found = json.loads(results.read_text())
    assert list(found["parts"]) == ["first"]
    assert [line.partition(":")[0] for line in found["left_out"]] == ["long"]
