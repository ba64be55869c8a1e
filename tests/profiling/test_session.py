"""A small profile of this machine from end to end."""

import json

import pytest

from hdgemm.pipeline.devices.registry import DeviceInfo, open_device
from hdgemm.profiling import _environment as environment, profile
from hdgemm.profiling._contention import Contention
from hdgemm.profiling._environment import choose_target, describe_machine, measured_machine
from hdgemm.profiling._probes import NAMES, open_probes
from hdgemm.profiling.session import Effort

SMALL = Effort(idle=0.05, window=0.01, rounds=1, run=0.02, ladder=0.1, repeats=(1, 1))


@pytest.fixture(autouse=True)
def _small_caches(monkeypatch):
    monkeypatch.setattr("hdgemm.profiling._interference.cache_bytes", lambda: 1 << 20)


def test_the_host_is_profiled_from_end_to_end(tmp_path):
    seen = []
    found = profile(
        "host", effort=SMALL, folder=tmp_path, progress=lambda part, what: seen.append(part)
    )
    assert found.complete
    assert {"initial", "double-buffering", "data-reuse", "data-placement"} <= set(found.ladder)
    assert set(found.bandwidth) == {"load1", "mult1", "store2"}  # no link
    assert set(found.matrix) == {"load1", "store2", "disk", "mult1", "cores"}
    assert any("no PCIe link" in note for note in found.notes)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.0, 1.0)
    runs = [row for row in found.predictions if row.what == "whole run"]
    assert len(runs) == 4
    assert all(row.predicted > 0 and row.measured > 0 for row in found.predictions)
    found.save(tmp_path / "out")
    values = json.loads((tmp_path / "out" / "report.json").read_text())
    assert values["ladder"]["initial"]["gflops"] > 0
    assert values["product"]["m"] >= 1024
    assert (tmp_path / "out" / "trace-initial.json").exists()
    left = {path.name for path in tmp_path.iterdir()} - {"out"}
    assert not left, "matrices and probe files are removed"


def test_an_interrupt_leaves_what_was_measured(tmp_path):
    def interrupt(part, _what):
        if part > 0.1:
            raise KeyboardInterrupt

    found = profile("host", effort=SMALL, folder=tmp_path, progress=interrupt)
    assert not found.complete
    assert found.matrix
    assert not found.ladder
    assert found.verdict is not None
    assert any("interrupted" in note for note in found.notes)
    assert not list(tmp_path.iterdir())


def test_probes_give_the_machine_its_rates(tmp_path):
    device = open_device("host")
    with open_probes(device, tmp_path) as probes:
        assert set(probes) <= set(NAMES)
        contention = Contention(probes, 0.005, 1)
        list(contention.run())
    machine = measured_machine(device.spec, contention, choose_target("host"))
    assert machine.flop_rate("float64") == contention.alone("mult1").median
    assert machine.disk_read == contention.alone("disk").median
    assert machine.memory >= 2 * machine.copy
    assert not list(tmp_path.iterdir())


@pytest.fixture
def devices(monkeypatch):
    found = [DeviceInfo("host", "cores")]
    monkeypatch.setattr(environment, "list_devices", lambda: found)
    return found


def test_the_device_of_a_profile(devices):
    assert choose_target(None) == environment.Target("host", ("host",), on_host_cores=False)
    devices.append(DeviceInfo("opencl:0", "the CPU"))
    assert choose_target(None) == environment.Target("opencl:0", ("opencl:0",), on_host_cores=True)
    devices += [DeviceInfo(f"cuda:{n}", "a GPU", accelerator=True) for n in range(2)]
    assert choose_target(None).peers == ("cuda:0", "cuda:1")
    assert choose_target("cuda:1").peers == ("cuda:1", "cuda:0")
    assert choose_target("opencl:0/2:1").on_host_cores


def test_the_machine_is_described():
    assert describe_machine()["cores"] >= 1
