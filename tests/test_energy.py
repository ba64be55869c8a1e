# ruff: noqa: N802 - NVML's names
"""Energy by false trees of counters: wrap-around, vanished files, sockets, permissions."""

import gc
import json
import threading

import numpy as np
import pytest

import hdgemm
from hdgemm import energy
from hdgemm.energy import Energy, EnergyMeter


def count(file, microjoules):
    """Set a counter at once: the meter's thread must not read half a number."""
    other = file.with_name(f"{file.name}-{threading.get_ident()}")
    other.write_text(str(microjoules))
    other.replace(file)


def zone(root, number, name, microjoules, wraps=10**9):
    folder = root / f"intel-rapl:{number}"
    folder.mkdir()
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{wraps}\n")
    return folder / "energy_uj"


def test_packages_and_their_memory_are_counted_once(tmp_path):
    counters = {
        "package-0": zone(tmp_path, "0", "package-0", 5),
        "core": zone(tmp_path, "0:0", "core", 5),
        "dram": zone(tmp_path, "0:1", "dram", 7),
        "package-1": zone(tmp_path, "1", "package-1", 9),
        "psys": zone(tmp_path, "2", "psys", 9),
    }
    with EnergyMeter(powercap=tmp_path) as meter:
        for file in counters.values():
            count(file, 3000000)
    assert set(meter.result.joules) == {"package-0", "package-0 dram", "package-1"}
    assert meter.result.joules["package-0"] == pytest.approx(3 - 5e-6)
    assert meter.result.total == pytest.approx(9 - 21e-6)
    assert meter.result.watts == pytest.approx(meter.result.total / meter.result.seconds)
    assert "GFLOP/s per watt" in meter.result.line(10.0)
    assert not meter.result.missing


def test_a_counter_that_wraps_goes_on(tmp_path):
    file = zone(tmp_path, "0", "package-0", 900, wraps=1000)
    with EnergyMeter(powercap=tmp_path) as meter:
        count(file, 100)
    assert meter.result.total == pytest.approx(200e-6)


def test_a_counter_that_wraps_several_times_is_read_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "_INTERVAL", 0.001)
    file = zone(tmp_path, "0", "package-0", 0, wraps=1000)
    with EnergyMeter(powercap=tmp_path) as meter:
        for microjoules in (600, 200, 800):
            count(file, microjoules)
            [counter] = meter._counters.values()
            while counter._last != microjoules:
                pass
    assert meter.result.total == pytest.approx(1800e-6)


@pytest.mark.parametrize("damage", ["unlink", "text"])
def test_a_counter_that_vanishes_is_left_out_and_named(tmp_path, damage):
    zone(tmp_path, "0", "package-0", 0)
    file = zone(tmp_path, "1", "package-1", 0)
    with EnergyMeter(powercap=tmp_path) as meter:
        file.unlink() if damage == "unlink" else file.write_text("?")
    assert set(meter.result.joules) == {"package-0"}
    assert "lost during the run" in meter.result.missing["package-1"]
    assert "without package-1" in meter.result.line(1.0)


def test_counters_of_root_alone_name_the_remedy(tmp_path, monkeypatch):
    zone(tmp_path, "0", "package-0", 0)

    def refuse(path):
        def read():
            raise PermissionError(13, "Permission denied", str(path))

        return read

    monkeypatch.setattr(energy, "_file_reader", refuse)
    with EnergyMeter(powercap=tmp_path) as meter:
        pass
    assert meter.result.total is None
    assert meter.result.watts is None
    assert meter.result.gflops_per_watt(10.0) is None
    assert "sudo chmod" in meter.result.line(1.0)


def test_no_counters_is_not_zero(tmp_path):
    with EnergyMeter(powercap=tmp_path / "missing") as meter:
        pass
    found = meter.result.to_dict(5.0)
    assert (found["total_joules"], found["watts"], found["gflops_per_watt"]) == (None, None, None)
    assert meter.result.line(5.0).startswith("energy: not measured (RAPL: ")


class FalseNvml:
    """NVML with one GPU, whose counter goes on by 250 J each time."""

    class NVMLError(Exception):
        pass

    def __init__(self, fails=()):
        self.fails, self.millijoules = fails, 0

    def nvmlInit(self):
        if "init" in self.fails:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByPciBusId(self, address):
        assert address == "0000:17:00.0"
        return 7

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        assert handle == 7
        self.millijoules += 250_000
        if self.millijoules > 250_000 and "end" in self.fails:
            raise self.NVMLError("GPU is lost")
        return self.millijoules


@pytest.mark.parametrize(
    ("fails", "joules", "reason"),
    [((), 250.0, None), (("init",), None, "Driver Not Loaded"), (("end",), None, "GPU is lost")],
)
def test_a_gpu_counts_its_own(tmp_path, monkeypatch, fails, joules, reason):
    monkeypatch.setattr(energy, "_bus_id", {"cuda:1": "0000:17:00.0"}.__getitem__)
    with EnergyMeter(["host", "cuda:1"], powercap=tmp_path, nvml=FalseNvml(fails)) as meter:
        pass
    assert meter.result.joules.get("cuda:1") == joules
    assert reason is None or reason in meter.result.missing["cuda:1"]


def test_without_nvml_s_package_the_remedy_is_named(tmp_path, monkeypatch):
    def missing():
        raise ImportError("No module named 'pynvml'")

    monkeypatch.setattr(energy, "_nvml", missing)
    with EnergyMeter(["cuda:0"], powercap=tmp_path) as meter:
        pass
    assert "pip install nvidia-ml-py" in meter.result.missing["cuda:0"]


def test_every_report_has_it(tmp_path, monkeypatch):
    file = zone(tmp_path, "0", "package-0", 0)
    monkeypatch.setattr(energy, "_POWERCAP", tmp_path)
    monkeypatch.setattr(
        EnergyMeter.__init__, "__kwdefaults__", {"powercap": tmp_path, "nvml": None}
    )
    x = np.ones((40, 40))

    def observer(_event):
        count(file, 5000000)

    options = hdgemm.Options(devices="host", tile=(16, 16, 16))
    np.save(tmp_path / "x.npy", x)
    report = hdgemm.multiply(
        tmp_path / "x.npy", x, out=tmp_path / "c.npy", options=options, observer=observer
    )
    assert report.energy.joules == {"package-0": 5.0}
    assert json.loads(report.to_json())["energy"]["total_joules"] == 5.0
    assert "energy: 5.0 J" in str(report)


def rising(tmp_path, monkeypatch):
    """A package of which the counter says 5 J as soon as something is observed."""
    file = zone(tmp_path, "0", "package-0", 0)
    monkeypatch.setattr(
        EnergyMeter.__init__, "__kwdefaults__", {"powercap": tmp_path, "nvml": None}
    )
    return lambda _event: count(file, 5000000)


@pytest.mark.parametrize("name", ["cholesky", "lu_factor", "qr", "inv"])
def test_reports_of_factorisations_have_it(tmp_path, monkeypatch, name):
    observer, reports = rising(tmp_path, monkeypatch), []
    function = getattr(hdgemm.linalg, name)
    a = np.eye(12) * 3
    function(a, options=hdgemm.Options(devices="host"), observer=observer, report=reports.append)
    assert reports[0].energy.joules == {"package-0": 5.0}
    assert "energy: 5.0 J" in str(reports[0])


def test_a_failed_factorisation_reads_no_counter_any_more(tmp_path, monkeypatch):
    rising(tmp_path, monkeypatch)
    with pytest.raises(np.linalg.LinAlgError):
        hdgemm.linalg.cholesky(-np.eye(5), report=print, options=hdgemm.Options(devices="host"))
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "hdgemm-energy":
            thread.join(240)
            assert not thread.is_alive()


def test_the_energy_of_runs_in_turn_is_added():
    first = Energy({"package-0": 2.0, "cuda:0": 1.0}, 3.0, {})
    second = Energy({"package-0": 4.0}, 5.0, {"cuda:0": "lost"})
    both = Energy.of_runs([first, second])
    assert both == Energy({"package-0": 6.0}, 8.0, {"cuda:0": "lost"})
    assert Energy.of_runs([]).total is None


def test_a_report_without_counters_says_so():
    assert Energy(missing={"RAPL": "none"}).line(1.0) == "energy: not measured (RAPL: none)"


def test_an_interrupted_start_leaves_no_thread_that_reads_counters(tmp_path, monkeypatch):
    zone(tmp_path, "0", "package-0", 5)
    meter, start = EnergyMeter(powercap=tmp_path), threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        meter.start()
    meter._thread.join(240)
    assert not meter._thread.is_alive()
