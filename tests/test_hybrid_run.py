"""Several devices on one product: right whatever the split, whoever is slow, whoever fails."""

import threading
import warnings

import numpy as np
import pytest

import hdgemm
from hdgemm.hybrid import run as hybrid_run
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.pipeline.devices.recording import Fault, RecordingDevice
from tests.reference import assert_close_in_eps

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def machine(monkeypatch):
    """A machine with the devices that a test puts into it."""
    devices = {"host": HostDevice}
    opened = {}

    def open_device(name, memory_bytes=None):
        opened[name] = devices[name]()
        return opened[name]

    monkeypatch.setattr(hybrid_run, "open_device", open_device)
    devices["opened"] = opened
    return devices


def paced(name, seconds_per_gflop, **keywords):
    def pace(kind, amount):
        return amount * 1e-9 * seconds_per_gflop if kind == "gemm" else 0.0

    return lambda: RecordingDevice(name=name, pace=pace, **keywords)


def product(n=96, beta=0.5, seed=0):
    rng = np.random.default_rng(seed)
    return (*(rng.standard_normal((n, n)) for _ in range(3)), beta)


def run(devices, operands, *, tile=(16, 24, 32), in_place=True, **keywords):
    a, b, c, beta = operands
    out = c.copy() if in_place else np.empty_like(c)
    report = hdgemm.multiply(
        a, b, beta=beta, c=out if in_place else c, out=out,
        options=hdgemm.Options(devices=devices, tile=tile, host_memory="64MB", **keywords),
    )  # fmt: skip
    assert_close_in_eps(out, a, b, beta=beta, c=c)
    return out, report


@pytest.mark.parametrize("speeds", [(1, 1), (1, 10), (30, 1)])
def test_every_split_is_right(machine, speeds):
    for name, speed in zip(("x", "y"), speeds, strict=True):
        machine[name] = paced(name, 20.0 * speed)
    _, report = run(("x", "y"), product())
    shares = report.split.shares
    assert sum(share.cells for share in shares.values()) == 96 * 96
    assert report.moved_bytes == report.planned_bytes
    assert {event.device for event in report.timeline.events} == {"x", "y"}
    assert all(device.buffers == 0 for device in machine["opened"].values())


def test_the_host_takes_a_share(machine):
    machine["x"] = paced("x", 30.0)
    _, report = run(("x", "host"), product(200), tile=(32, 40, 50))
    assert report.devices == ("x", "host")
    assert sum(len(share.tiles) for share in report.split.shares.values()) > 4


def test_hybrid_adds_the_host(machine):
    machine["x"] = paced("x", 5.0)
    _, report = run(("x",), product(), strategy="hybrid")
    assert report.devices == ("x", "host")


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("call", [0, 9, 20, 45])
def test_a_device_that_fails_is_taken_over(machine, in_place, late, call):
    machine["x"] = paced("x", 20.0, fault=Fault(call, late=late))
    machine["y"] = paced("y", 20.0)
    with pytest.warns(RuntimeWarning, match="x failed .* go to y"):
        _, report = run(("x", "y"), product(), in_place=in_place)
    assert report.split.shares["x"].failed
    assert all(device.buffers == 0 for device in machine["opened"].values())


def test_with_no_device_left_there_is_one_error(machine):
    for name in ("x", "y"):
        machine[name] = paced(name, 20.0, fault=Fault(25))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(hdgemm.DeviceError, match="injected"):
            run(("x", "y"), product())
    assert all(device.buffers == 0 for device in machine["opened"].values())


def test_a_fixed_split_gives_the_same_bits(machine):
    for name in ("x", "y"):
        machine[name] = paced(name, 10.0)
    runs = [run(("x", "y"), product(), split={"x": 0.3}) for _ in range(2)]
    assert runs[0][0].tobytes() == runs[1][0].tobytes()
    tiles = [report.split.shares["x"].tiles for _, report in runs]
    assert tiles[0] == tiles[1]
    assert abs(runs[0][1].split.shares["x"].used - 0.3) < 0.01


@pytest.mark.parametrize("split", [{"z": 1.0}, {"x": 0.4, "y": 0.4}, {"x": 1.5}, {"x": -0.5}])
def test_splits_that_make_no_sense_are_refused(machine, split):
    for name in ("x", "y"):
        machine[name] = paced(name, 1.0)
    with pytest.raises(hdgemm.InputError, match="split"):
        run(("x", "y"), product(), split=split)


def test_a_device_named_twice_is_refused(machine):
    machine["x"] = paced("x", 1.0)
    with pytest.raises(hdgemm.InputError, match="each device once"):
        run(("x", "x"), product())


def test_cancelling_ends_all_devices(machine):
    for name in ("x", "y"):
        machine[name] = paced(name, 500.0)
    cancel = threading.Event()
    a, b, c, _ = product()
    options = hdgemm.Options(devices=("x", "y"), tile=(8, 8, 16), host_memory="64MB")
    threading.Timer(0.3, cancel.set).start()
    with pytest.raises(hdgemm.CancelledRunError):
        hdgemm.multiply(a, b, out=c, options=options, cancel=cancel)
    assert all(device.buffers == 0 for device in machine["opened"].values())


def test_a_matrix_that_cannot_be_read_ends_all_devices(machine, tmp_path):
    for name in ("x", "y"):
        machine[name] = paced(name, 100.0)
    a, b, _, _ = product()
    path = tmp_path / "a.npy"
    np.save(path, a)

    def shrink(event):
        if event.number > 2:
            with path.open("r+b") as stream:
                stream.truncate(200)

    options = hdgemm.Options(devices=("x", "y"), tile=(8, 8, 16), host_memory="64MB")
    with pytest.raises(hdgemm.MatrixIOError, match=r"a\.npy"):
        hdgemm.multiply(path, b, out=tmp_path / "c.npy", options=options, observer=shrink)
    assert not (tmp_path / "c.npy").exists()
    assert all(device.buffers == 0 for device in machine["opened"].values())


def test_rates_are_learned_and_start_the_next_run(machine):
    machine["x"], machine["y"] = paced("x", 10.0), paced("y", 100.0)
    _, first = run(("x", "y"), product())
    _, second = run(("x", "y"), product())
    planned = [report.split.shares["x"].planned for report in (first, second)]
    assert abs(planned[0] - 0.5) < 0.01
    assert planned[1] > 0.6


def test_damaged_rates_are_no_error(machine, tmp_path):
    machine["x"], machine["y"] = paced("x", 10.0), paced("y", 10.0)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "rates.json").write_text('{"a": [1], "b": {"x": "fast"}}')
    run(("x", "y"), product())
    run(("x", "y"), product())


def test_a_durable_run_takes_one_device(machine, tmp_path):
    machine["x"], machine["y"] = paced("x", 10.0), paced("y", 10.0)
    a, b, _, _ = product()
    options = hdgemm.Options(devices=("x", "y"))
    with pytest.raises(hdgemm.InputError, match="one device"):
        hdgemm.multiply(a, b, out=tmp_path / "c.npy", options=options, checkpoint=True)
