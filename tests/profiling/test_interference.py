"""Who takes what away: from made-up figures, and from watching this machine."""

import os
import subprocess
import sys
import time

import pytest

from hdgemm.profiling import bus as bus_module
from hdgemm.profiling.best import BestKnown
from hdgemm.profiling.bus import Bus, Slice, cache_bytes, watch_bus
from hdgemm.profiling.interference import BUS_ALONE, BUS_LOSS, bus_figures, find_interference, noise
from hdgemm.profiling.other_load import Others, Watch, describe_machine
from hdgemm.profiling.processes import Busy, ProcessWatch, typical

SMALL = Busy(7, "spinner", 1.0, 1 << 20)
LARGE = Busy(8, "copier", 1.0, 4 * cache_bytes())
QUIET = Others(cores=0.1, stolen=0.0, disk=1e6)
#: As measured: a free bus, and one that a copy by another process holds.
FREE, TAKEN = Bus(32e9, 22.5e9), Bus(24.7e9, 22e9)
BEST = {"disk": 2e9, **bus_figures(FREE)}


def others(*processes, disk=0.0, disk_busy=0.0):
    return Others(sum(each.cores for each in processes), 0.0, disk, disk_busy, processes)


def found(seen, bus=FREE, disk_rate=2e9, best=BEST):
    return [
        each.resource for each in find_interference(seen, bus, disk_rate, best, cores=2)
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("best", [BEST, {}])
@pytest.mark.parametrize("bus", [FREE, TAKEN, None])
def test_a_quiet_machine_is_left_in_peace(bus, best):
    assert found(QUIET, bus, best=best) == []


@pytest.mark.parametrize("best", [BEST, {}])
def test_a_hammered_bus_is_named_with_and_without_earlier_figures(best):
    (taken,) = find_interference(others(LARGE), TAKEN, 2e9, best, cores=2)
    assert taken.resource == "host_memory"
    assert taken.taken == (pytest.approx(1 - 24.7 / 32) if best else None)
    assert "copier (8)" in taken.evidence


@pytest.mark.parametrize("best", [BEST, {}])
def test_a_pinned_core_is_not_taken_for_a_hammered_bus(best):
    assert found(others(SMALL), best=best) == ["cores"]
    assert found(others(LARGE), best=best) == ["cores"]  # large, but the bus is free


def test_who_fits_the_caches_does_not_hold_the_bus():
    assert found(others(SMALL), TAKEN) == ["cores"]
    assert found(others(SMALL), TAKEN, best={}) == ["cores"]


def test_a_pinned_core_among_many_small_jobs_is_a_pinned_core():
    jobs = tuple(Busy(20 + n, "job", 0.2, 4 * cache_bytes()) for n in range(2))
    assert found(Others(2.0, 0.0, 0.0, 0.0, (SMALL, *jobs)), TAKEN)[0] == "cores"


def test_who_cannot_be_seen_may_hold_the_bus():
    assert found(Others(1.0, 0.0, 0.0), TAKEN) == ["host_memory"]


def test_a_reader_as_fast_as_ever_takes_a_process_that_is_seen():
    apart = Bus(31.5e9, 31e9)  # the copy does not reach this reader: nor may the other's
    assert found(others(LARGE), apart) == ["host_memory"]
    assert found(Others(1.0, 0.0, 0.0), apart) == ["cores"]


def test_a_bus_that_a_copy_never_slowed_is_judged_by_its_rate():
    wide = {BUS_ALONE: 32e9, BUS_LOSS: 1.02}
    assert found(others(LARGE), Bus(31e9, 30.5e9), best=wide) == ["cores"]
    assert found(others(LARGE), Bus(24e9, 21e9), best=wide) == ["host_memory"]


def test_a_hammered_disk_comes_before_the_memory_its_traffic_goes_through():
    (disk,) = find_interference(others(LARGE, disk=1.5e9, disk_busy=0.4), TAKEN, 1e9, BEST, cores=2)
    assert disk.resource == "disk"
    assert disk.taken == pytest.approx(1.5 / 3.5)
    assert "1.50 GB/s" in disk.evidence
    assert "50% of its best" in disk.evidence


def test_many_small_requests_keep_a_disk_busy_too():
    assert found(others(disk=2e6, disk_busy=0.8)) == ["disk"]
    assert found(others(disk=2e6, disk_busy=0.1)) == []
    assert found(Others(0.1, 0.0, None, 0.9)) == []  # no disk below that folder


def test_cores_beyond_those_that_a_hammer_needs_are_named_as_well():
    assert found(others(LARGE, SMALL), TAKEN) == ["host_memory", "cores"]
    assert found(others(SMALL, disk=1.5e9)) == ["disk"]


def test_stolen_time_counts_as_cores():
    (stolen,) = find_interference(Others(0.0, 1.0, 0.0), FREE, 2e9, BEST, cores=2)
    assert stolen.resource == "cores"
    assert "hypervisor" in stolen.evidence


def test_what_varies_or_was_not_seen_is_called_too_noisy():
    assert noise([QUIET, QUIET], FREE, cores=2) == ()
    assert noise([], None, cores=2) == ()
    (varies,) = noise([QUIET, others(SMALL)], FREE, cores=2)
    assert "0.1 to 1.0 of 2 cores" in varies
    assert "spinner (7)" in varies
    (disk,) = noise([QUIET, others(disk_busy=0.9)], FREE, cores=2)
    assert "its disk" in disk
    (bus,) = noise([QUIET], None, cores=2)
    assert "memory bandwidth" in bus
    assert noise([QUIET], None, cores=1) == ()


def test_slices_count_by_who_had_a_core():
    alone = [Slice(30.0, 1.0, 0.0)] * 9 + [Slice(3.0, 0.5, 0.0)] * 99  # the reader was off
    beside = [Slice(20.0, 1.0, 1.0)] * 9 + [Slice(25.0, 1.0, 0.5)] * 99  # the copier was, at times
    assert Bus.of([*alone, *beside]) == Bus(30.0, 20.0)
    assert Bus.of(alone) is None


def test_this_machines_bus_is_watched(monkeypatch):
    monkeypatch.setattr(bus_module, "cache_bytes", lambda: 1 << 20)
    slices = watch_bus(2, 0.01)
    assert {each.rate > 0 for each in slices} == {True}
    assert max(each.beside for each in slices) > 0
    monkeypatch.setattr(bus_module, "available_bytes", lambda: 100 << 20)
    assert watch_bus(1, 0.01) == []


def test_the_middle_of_several_looks():
    looks = [Others(0.0, 0.0, 5.0), Others(2.0, 0.0, None), Others(1.0, 0.5, 9.0, 0.3, (SMALL,))]
    assert Others.median(looks) == Others(1.0, 0.0, 7.0)
    assert Others.median([]).disk is None


def test_who_is_busy_most_of_the_time_is_typical():
    once = Busy(9, "once", 2.0, 0)
    later = Busy(7, "spinner", 0.6, 1 << 20)
    assert typical([(SMALL,), (later, once), (LARGE, later)]) == (later,)
    assert typical([]) == ()


def test_a_process_at_work_is_seen_with_its_memory():
    code = "b = bytearray(80_000_000)\nprint(1, flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            watch = ProcessWatch()
            time.sleep(0.3)
            seen = {busy.pid: busy for busy in watch.read(0.3)}
        finally:
            child.kill()
    assert seen[child.pid].memory > 80_000_000
    assert seen[child.pid].cores > 0
    assert os.getpid() not in seen


def test_others_are_watched(tmp_path):
    seen = Watch(tmp_path).read()
    assert seen.cores >= 0
    assert seen.disk is None or seen.disk >= 0
    assert 0 <= seen.disk_busy <= 1
    assert describe_machine()["cores"] >= 1


def test_a_folder_in_memory_has_no_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("hdgemm.profiling.other_load._BLOCKS", tmp_path)
    monkeypatch.setattr("hdgemm.profiling.other_load._file_system", lambda _: "tmpfs")
    assert Watch(tmp_path).read().disk is None


def test_the_best_is_remembered_for_a_disk(tmp_path):
    BestKnown(tmp_path).keep({"disk": 2.0, "bus": 5.0})
    BestKnown(tmp_path).keep({"disk": 1.0, "bus": 6.0})
    assert BestKnown(tmp_path).figures == {"disk": 2.0, "bus": 6.0}
    (tmp_path / "cache" / "best.json").write_text('{"nonsense": [1]}')
    assert BestKnown(tmp_path).figures == {}
