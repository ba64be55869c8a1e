"""Limits of memory and cores where the system tells them, and where it does not."""

import os
import tempfile

import psutil
import pytest

from hdgemm.machine import limits
from hdgemm.machine.cache import cache_folder, read_entries, write_entry
from hdgemm.machine.peak_memory import PeakMemory, resident_bytes


def refuse(*_, **__):
    raise FileNotFoundError(2, "No such file or directory", "/proc/meminfo")


def test_without_proc_limits_are_assumed(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    monkeypatch.setattr(limits, "_cgroup_folders", list)
    assert limits.available_bytes() == 1 << 30
    assert 64 << 20 <= limits.default_host_bytes() < 1 << 30


def test_without_proc_the_peak_is_zero(monkeypatch, tmp_path):
    monkeypatch.setattr("hdgemm.machine.peak_memory._STATUS", tmp_path / "status")
    monkeypatch.setattr(psutil, "Process", refuse)
    assert resident_bytes() == 0
    with PeakMemory() as peak:
        pass
    assert peak.nbytes == 0


def test_without_affinity_all_cores_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert limits.cores() == os.cpu_count()


@pytest.mark.parametrize("text", ["", "max", "-", "12 34", "\x00"])
def test_a_cgroup_file_without_a_number_is_ignored(monkeypatch, tmp_path, text):
    for name in ("memory.max", "memory.current", "memory.stat"):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(
        limits, "_cgroup_folders", lambda: [(tmp_path, "memory.max", "memory.current")]
    )
    assert limits.available_bytes() > 0


def test_a_cgroup_limits_the_free_memory(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("100000")
    (tmp_path / "memory.current").write_text("60000")
    (tmp_path / "memory.stat").write_text("inactive_file 7000\nfile 9000\n")
    monkeypatch.setattr(
        limits, "_cgroup_folders", lambda: [(tmp_path, "memory.max", "memory.current")]
    )
    assert limits.available_bytes() == 100000 - (60000 - 7000)


def test_the_use_of_a_cgroup_without_a_limit_is_not_read(monkeypatch, tmp_path):
    (tmp_path / "limit").write_text("9223372036854771712")
    monkeypatch.setattr(limits, "_cgroup_folders", lambda: [(tmp_path, "limit", "used")])
    monkeypatch.setattr(limits, "_reclaimable", refuse)
    (tmp_path / "used").write_text("60000")
    assert limits.available_bytes() > 0


def test_a_full_disk_leaves_the_old_cache_and_no_draft(monkeypatch, tmp_path):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path))
    write_entry("some.json", "key", 1)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    original = tempfile.NamedTemporaryFile

    def on_a_full_disk(**keywords):
        file = original(**keywords)
        file.write = full
        return file

    monkeypatch.setattr("hdgemm.machine.cache.tempfile.NamedTemporaryFile", on_a_full_disk)
    write_entry("some.json", "key", 2)
    assert read_entries("some.json") == {"key": 1}
    assert [path.name for path in cache_folder().iterdir()] == ["some.json"]
