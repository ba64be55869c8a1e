"""Figures of this machine: plausible, cached, and measured again when the cache is damaged."""

import json
import random
import threading
from dataclasses import asdict, replace

import pytest

from hdgemm.errors import CancelledRunError
from hdgemm.machine import calibration
from hdgemm.machine.cache import cache_folder
from hdgemm.machine.calibration import Figures, calibrate, machine_for, measure, with_figures
from hdgemm.machine.rates import H200, HOST
from hdgemm.options import Options
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem
from hdgemm.planning.planner import plan_for

LARGE = Problem(5000, 5000, 5000, a=OperandSpec(place="file"))
SMALL = Problem(100, 100, 100)
FIGURES = Figures(
    gemm=5e10, side_half=8.0, copy=4e9, memory=2e10, disk_read=1e9, disk_write=None,
    operation=7e-5, drawn_blocks=1.1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "machine.json"


@pytest.fixture
def measurements(monkeypatch):
    """Count measurements instead of taking them."""
    taken = []

    def take(folder, threads, progress, cancel):
        taken.append((folder, threads))
        return FIGURES

    monkeypatch.setattr(calibration, "measure", take)
    return taken


def test_measured_figures_are_rates(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "MOST_SECONDS", 0.3)
    figures = measure(tmp_path, 2)
    assert 1e8 < figures.gemm < 1e15
    assert 1 <= figures.side_half <= 64
    assert 1e-6 < figures.operation < 1
    assert 0.01 < figures.drawn_blocks < 100
    # A disk that is busy with other requests has moved nothing yet: nothing is read.
    measured = [figures.copy, figures.memory, figures.disk_write, figures.disk_read]
    for rate in measured if figures.disk_read else measured[:-1]:
        assert 1e6 < rate < 1e13
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_has_no_disk_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "MOST_SECONDS", 0.3)
    figures = measure(tmp_path / "missing", 1)
    assert figures.disk_read is figures.disk_write is None


def test_figures_are_measured_once(tmp_path, measurements):
    assert [calibrate(tmp_path) for _ in range(2)] == [FIGURES, FIGURES]
    assert len(measurements) == 1


def discard(folder):
    calibration.discard_low_rates(DeviceSpec(), folder, None, "float64", 1e17)


def times(figures, factors):
    """Return figures with each rate multiplied by a factor."""
    rates = asdict(figures).items()
    return Figures(
        **{name: rate and rate * next(factors) for name, rate in rates}  # a disk may have none
    )


def test_plans_stay_the_same_where_rates_are_measured_again(tmp_path, monkeypatch, measurements):
    """A product had 56 steps, then 64: a run had shown the cached rates to be too low."""
    first, rng = calibrate(tmp_path), random.Random(0)
    options = Options(host_memory="100MB")
    plan = plan_for(LARGE, options, DeviceSpec(), machine_for(LARGE, DeviceSpec(), tmp_path))
    for _ in range(20):
        discard(tmp_path)
        # Small products are not measured for: they are planned with the figures that are doubted.
        assert machine_for(SMALL, DeviceSpec(), tmp_path).copy == first.copy
        found = times(FIGURES, iter(lambda: rng.uniform(0.81, 1.24), None))
        monkeypatch.setattr(calibration, "measure", lambda *_, found=found: found)
        machine = machine_for(LARGE, DeviceSpec(), tmp_path)
        assert calibrate(tmp_path) == first
        assert plan_for(LARGE, options, DeviceSpec(), machine) == plan


def test_figures_that_differ_replace_earlier_ones(tmp_path, monkeypatch, measurements):
    calibrate(tmp_path)
    discard(tmp_path)
    other = replace(FIGURES, gemm=2 * FIGURES.gemm, copy=1.1 * FIGURES.copy, disk_write=1e9)
    monkeypatch.setattr(calibration, "measure", lambda *_: other)
    assert calibrate(tmp_path) == replace(other, copy=FIGURES.copy)
    monkeypatch.setattr(calibration, "measure", lambda *_: FIGURES)
    assert calibrate(tmp_path).gemm == other.gemm  # measured once more, and settled


def test_figures_for_other_threads_are_measured_for_themselves(tmp_path, measurements):
    calibrate(tmp_path, threads=1)
    calibrate(tmp_path, threads=1)
    calibrate(tmp_path, threads=3)
    assert [threads for _, threads in measurements] == [1, 3]
    assert machine_for(LARGE, DeviceSpec(), tmp_path, threads=3).cores == 3


DAMAGE = {
    "empty": "",
    "cut off": "{",
    "a list": "[]",
    "another entry": '{"x": 1}',
    "deep": "[" * 100_000,
    "not text": b"\xff\xfe{",
}
WRONG = {"negative": -1, "zero": 0, "text": "fast", "NaN": float("nan"), "infinite": float("inf"),
         "huge": 10**400, "true": True, "none": None, "a list": [1.0]}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_measured_again(tmp_path, cache, measurements, damage):
    calibrate(tmp_path)
    text = DAMAGE[damage]
    cache.write_bytes(text if isinstance(text, bytes) else text.encode())
    check_measured_again(tmp_path, measurements)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_cached_figure_that_is_no_rate_is_measured_again(tmp_path, cache, measurements, wrong):
    calibrate(tmp_path)
    entries = json.loads(cache.read_text())
    spoilt = {key: entry | {"gemm": WRONG[wrong]} for key, entry in entries.items()}
    cache.write_text(json.dumps(spoilt))
    check_measured_again(tmp_path, measurements)


def check_measured_again(folder, measurements):
    assert [calibrate(folder) for _ in range(2)] == [FIGURES, FIGURES]
    assert len(measurements) == 2


def test_an_entry_without_the_executor_s_figure_is_measured_again(tmp_path, cache, measurements):
    calibrate(tmp_path)
    entries = json.loads(cache.read_text())
    old = {name: rate for name, rate in asdict(FIGURES).items() if name != "operation"}
    cache.write_text(json.dumps(dict.fromkeys(entries, old)))
    check_measured_again(tmp_path, measurements)


def test_progress_names_each_benchmark_and_ends_with_one(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "MOST_SECONDS", 0.1)
    seen = []
    calibrate(tmp_path, progress=lambda part, what: seen.append((part, what)))
    assert [what for _, what in seen] == ["disk", "BLAS", "drawing", "copies", "executor", "done"]
    parts = [part for part, _ in seen]
    assert parts == sorted(parts)
    assert (parts[0], parts[-1]) == (0.0, 1.0)


def test_a_cancelled_calibration_caches_nothing(tmp_path, cache):
    cancel = threading.Event()

    def progress(part, what):
        if what == "BLAS":
            cancel.set()

    with pytest.raises(CancelledRunError, match="calibration"):
        calibrate(tmp_path, progress=progress, cancel=cancel)
    assert not cache.exists()


def test_other_machines_keep_their_entries(tmp_path, cache, measurements):
    cache.parent.mkdir()
    cache.write_text('{"another machine": {}}')
    calibrate(tmp_path)
    assert "another machine" in json.loads(cache.read_text())


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, cache, measurements):
    cache.parent.write_text("in the way")
    assert calibrate(tmp_path) == FIGURES


def test_small_products_are_not_worth_a_measurement(tmp_path, measurements):
    small = Problem(100, 100, 100)
    assert machine_for(small, DeviceSpec(), tmp_path).gemm == HOST.gemm
    assert not measurements
    machine_for(LARGE, DeviceSpec(), tmp_path)
    assert len(measurements) == 1
    assert machine_for(small, DeviceSpec(), tmp_path).gemm["float64"] == 5e10


def test_the_host_memory_limit_comes_with_the_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "default_host_bytes", lambda: 12_345_678)
    small = Problem(100, 100, 100)
    assert machine_for(small, DeviceSpec(), tmp_path).host_bytes == 12_345_678


def test_a_product_in_place_asks_the_system_for_nothing(monkeypatch):
    def asked(*_):
        raise AssertionError("a product in place must not wait for the disk or /proc")

    monkeypatch.setattr(calibration, "default_host_bytes", asked)
    monkeypatch.setattr(calibration, "_stored", asked)
    monkeypatch.setattr(calibration, "measure", asked)
    resident = OperandSpec(path="resident")
    huge = Problem(10**5, 10**5, 10**5, a=resident, b=resident, c=resident)
    assert machine_for(huge, DeviceSpec()) == HOST


def test_the_host_s_figures_leave_a_device_s_own_alone():
    host = with_figures(HOST, DeviceSpec(), FIGURES)
    assert (host.gemm["float64"], host.copy, host.disk_read) == (5e10, 4e9, 1e9)
    assert host.operation_seconds == 7e-5
    assert host.disk_write == HOST.disk_write
    gpu = with_figures(H200, DeviceSpec("cuda:0", unified=False), FIGURES)
    assert (gpu.gemm, gpu.pcie_up, gpu.copy) == (H200.gemm, H200.pcie_up, 4e9)


def test_the_cache_lies_in_the_user_s_folder(monkeypatch):
    monkeypatch.delenv("HDGEMM_CACHE")
    assert "hdgemm" in cache_folder().parts


def test_the_host_s_edges_cost_what_was_measured():
    assert with_figures(HOST, DeviceSpec(), FIGURES).side_half == FIGURES.side_half
    gpu = DeviceSpec("cuda:0", unified=False)
    assert with_figures(H200, gpu, FIGURES).side_half == H200.side_half


@pytest.mark.parametrize(("dtype", "flops", "nbytes"), [("float64", 2, 8), ("complex128", 8, 16)])
def test_a_step_of_the_host_costs_what_its_tile_of_c_takes_of_memory(dtype, flops, nbytes):
    host = with_figures(HOST, DeviceSpec(), FIGURES)
    kb, area, problem = 256, 1e24, Problem(1, 1, 1, dtype)
    multiplying = flops * area * kb / FIGURES.gemm / host.efficiency(1e12, 1e12, kb)
    moving = 2 * nbytes * area / FIGURES.memory
    seconds = flops * area * kb / host.kernel_rate(problem, 1e12, 1e12, kb)
    assert seconds == pytest.approx(multiplying + moving)


def test_only_the_host_s_steps_move_c_over_its_memory_bus():
    gpu = DeviceSpec("cuda:0", unified=False)
    assert not with_figures(H200, gpu, FIGURES).moves_c
    assert with_figures(H200, gpu, FIGURES).depth_half == H200.depth_half
