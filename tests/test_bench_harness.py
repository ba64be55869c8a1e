"""The measurements' own machinery: limits that bind, endings told apart, results that say where."""

import json
import os
import sys
from pathlib import Path

import pytest

from bench import harness

MB = 10**6
V1 = Path("/sys/fs/cgroup/memory")
PYTHON = [sys.executable, "-c"]


def can_make_cgroups():
    if V1.exists():
        return os.access(V1, os.W_OK)
    return os.access("/sys/fs/cgroup/cgroup.subtree_control", os.W_OK)


needs_cgroup = pytest.mark.skipif(
    not can_make_cgroups(), reason="needs the right to make a memory cgroup"
)


@needs_cgroup
def test_a_command_within_its_limit_is_done():
    with harness.MemoryCgroup(200 * MB) as cgroup:
        outcome = cgroup.run([*PYTHON, "x = b'1' * 50_000_000; print('hello')"], timeout=240)
    assert (outcome.status, outcome.stdout) == ("done", "hello\n")
    assert 50 * MB < outcome.peak_bytes < 200 * MB


@needs_cgroup
def test_a_command_beyond_its_limit_is_killed():
    with harness.MemoryCgroup(100 * MB) as cgroup:
        outcome = cgroup.run([*PYTHON, "x = b'1' * 300_000_000"], timeout=240)
    assert outcome.status == "killed"


@needs_cgroup
def test_the_cgroup_is_gone_afterwards():
    with harness.MemoryCgroup(100 * MB) as cgroup:
        folder = cgroup._folder
        assert folder.is_dir()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", "done"),
        ("raise SystemExit(3)", "failed"),
        ("import time; time.sleep(60)", "not finished"),
    ],
    ids=["done", "failed", "not finished"],
)
def test_endings_are_told_apart(code, status):
    timeout = 0.5 if status == "not finished" else 240
    assert harness.run([*PYTHON, code], timeout=timeout).status == status


def test_results_say_where_they_come_from(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    saved = json.loads(harness.save("x", {"y": 1}, harness.environment()).read_text())
    assert saved["y"] == 1
    assert saved["environment"]["cores"] >= 1
    assert "numpy" in saved["environment"]["versions"]
    assert {"cpu", "commit", "command", "when", "memory_bytes"} <= set(saved["environment"])


def test_spread():
    assert harness.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "count": 3}
