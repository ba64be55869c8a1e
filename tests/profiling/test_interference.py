"""Resources that other processes take: from given figures, and from watching this machine."""

import os
import subprocess
import sys
import time

import pytest

from hdgemm.profiling import _interference as interference, other_load
from hdgemm.profiling._interference import (
    Bus,
    Slice,
    cache_bytes,
    find_interference,
    measure_bus,
    unsteady_load,
)
from hdgemm.profiling.other_load import BusyProcess, LoadMeter, OtherLoad

SMALL = BusyProcess(7, "spinner", 1.0, 1 << 20)
LARGE = BusyProcess(8, "copier", 1.0, 4 * cache_bytes())
QUIET = OtherLoad(cores=0.1, stolen=0.0, disk=1e6)
#: Measured: a free bus, and one that another process holds by copying.
FREE, TAKEN = Bus(32e9, 22.5e9), Bus(24.7e9, 22e9)


def load(*processes, disk=0.0, disk_busy=0.0):
    return OtherLoad(sum(each.cores for each in processes), 0.0, disk, disk_busy, processes)


def found(seen, bus=FREE, disk_rate=2e9):
    return [each.resource for each in find_interference(seen, bus, disk_rate, cores=2)]


@pytest.mark.parametrize("bus", [FREE, TAKEN, None])
def test_a_quiet_machine_has_no_interference(bus):
    assert found(QUIET, bus) == []


def test_a_busy_bus_is_named_with_the_process_that_holds_it():
    (taken,) = find_interference(load(LARGE), TAKEN, 2e9, cores=2)
    assert taken.resource == "host_memory"
    assert taken.taken is None
    assert "copier (8)" in taken.evidence
    assert "89%" in taken.evidence


def test_a_busy_core_is_not_taken_for_a_busy_bus():
    assert found(load(SMALL)) == ["cores"]
    assert found(load(LARGE)) == ["cores"]  # large, but the bus is free
    assert found(load(LARGE), None) == ["cores"]  # not measured


def test_a_process_that_fits_the_caches_does_not_hold_the_bus():
    assert found(load(SMALL), TAKEN) == ["cores"]


def test_a_busy_core_among_small_jobs_is_a_busy_core():
    jobs = tuple(BusyProcess(20 + n, "job", 0.2, 4 * cache_bytes()) for n in range(2))
    assert found(OtherLoad(2.0, 0.0, 0.0, 0.0, (SMALL, *jobs)), TAKEN)[0] == "cores"


def test_load_of_invisible_processes_counts_as_cores():
    assert found(OtherLoad(1.0, 0.0, 0.0), TAKEN) == ["cores"]


def test_a_busy_disk_comes_before_the_memory_that_its_traffic_uses():
    (disk,) = find_interference(load(LARGE, disk=1.5e9, disk_busy=0.4), TAKEN, 2e9, cores=2)
    assert disk.resource == "disk"
    assert disk.taken == pytest.approx(1.5 / 3.5)
    assert "1.50 GB/s" in disk.evidence


def test_many_small_requests_keep_a_disk_busy_too():
    assert found(load(disk=2e6, disk_busy=0.8)) == ["disk"]
    assert found(load(disk=2e6, disk_busy=0.1)) == []
    assert found(OtherLoad(0.1, 0.0, None, 0.9)) == []  # no disk below that folder


def test_cores_beyond_the_one_that_explains_a_busy_bus_are_named_as_well():
    assert found(load(LARGE, SMALL), TAKEN) == ["host_memory", "cores"]
    assert found(load(SMALL, disk=1.5e9)) == ["disk"]


def test_stolen_time_counts_as_cores():
    (stolen,) = find_interference(OtherLoad(0.0, 1.0, 0.0), FREE, 2e9, cores=2)
    assert stolen.resource == "cores"
    assert "hypervisor" in stolen.evidence


def test_a_load_that_varies_is_reported():
    assert unsteady_load([QUIET, QUIET], cores=2) == ()
    assert unsteady_load([], cores=2) == ()
    (varies,) = unsteady_load([QUIET, load(SMALL)], cores=2)
    assert "0.1 to 1.0 of 2 cores" in varies
    assert "spinner (7)" in varies


def test_slices_count_by_the_threads_that_had_a_core():
    alone = [Slice(30.0, 1.0, 0.0)] * 9 + [Slice(3.0, 0.5, 0.0)] * 99  # reader without a core
    beside = [Slice(20.0, 1.0, 1.0)] * 9 + [Slice(25.0, 1.0, 0.5)] * 99  # copier without a core
    assert Bus.of([*alone, *beside]) == Bus(30.0, 20.0)
    assert Bus.of(alone) is None


def test_the_bus_of_this_machine_is_measured(monkeypatch):
    monkeypatch.setattr(interference, "cache_bytes", lambda: 1 << 20)
    slices = measure_bus(1)
    assert all(each.rate > 0 for each in slices)
    assert max(each.beside for each in slices) > 0
    monkeypatch.setattr(interference, "available_bytes", lambda: 100 << 20)
    assert measure_bus(1) == []


def test_the_typical_sample_has_the_median_load():
    samples = [OtherLoad(0.0, 0.0, 5.0), OtherLoad(2.0, 0.0, None), load(SMALL)]
    assert OtherLoad.typical(samples) == samples[2]
    assert OtherLoad.typical([]).disk is None


def test_a_busy_process_is_seen_with_its_memory(tmp_path):
    code = "b = bytearray(80_000_000)\nprint(1, flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            deadline = time.monotonic() + 240
            processes = {}
            while child.pid not in processes and time.monotonic() < deadline:
                meter = LoadMeter(tmp_path)
                time.sleep(0.5)
                seen = meter.read()
                processes = {each.pid: each for each in seen.processes}
        finally:
            child.kill()
    assert processes[child.pid].memory > 80_000_000
    assert processes[child.pid].cores > 0
    assert os.getpid() not in processes
    assert "busy processes" in seen.words()


def test_the_load_of_others_is_measured(tmp_path):
    seen = LoadMeter(tmp_path).read()
    assert seen.cores >= 0
    assert seen.disk is None or seen.disk >= 0
    assert 0 <= seen.disk_busy <= 1


def test_a_folder_in_memory_has_no_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(other_load, "_BLOCK_DEVICES", tmp_path)
    monkeypatch.setattr(other_load, "_file_system", lambda _: "tmpfs")
    assert LoadMeter(tmp_path).read().disk is None
