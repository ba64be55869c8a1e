"""Several devices on one product: right whatever the split, whoever is slow, whoever fails."""

import itertools
import re
import threading
import time

import numpy as np
import pytest

import hdgemm
from hdgemm.cli.arguments import make_options
from hdgemm.pictures.gantt import save_gantt
from hdgemm.pictures.tilemap import save_tilemap
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.pipeline.devices.recording import Fault, RecordingDevice
from hdgemm.pipeline.plan import Problem
from hdgemm.run import session as sessions
from hdgemm.run._learned_rates import Learned, learn_alone, load_rates
from hdgemm.run.split_report import LeftOut
from tests.counting import nth_call
from tests.reference import assert_close_in_eps


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def machine(monkeypatch):
    """A machine with the devices that a test puts into it."""
    devices = {"host": HostDevice}
    opened = {}

    def open_device(name, memory_bytes=None, **_more):
        opened[name] = devices[name]()
        return opened[name]

    monkeypatch.setattr(sessions, "open_device", open_device)
    devices["opened"] = opened
    return devices


def paced(name, seconds_per_gflop, hold=None, **keywords):
    """A device with products of this speed; `hold` gets the number of each before it starts."""

    def device():
        numbers = itertools.count()

        def pace(kind, amount):
            if kind != "gemm":
                return 0.0
            if hold is not None:
                hold(next(numbers))
            return amount * 1e-9 * seconds_per_gflop

        return RecordingDevice(name=name, pace=pace, **keywords)

    return device


def meeting():
    """Two devices that it holds begin together: neither computes all before the other's start."""
    both = threading.Barrier(2, timeout=240)
    return lambda number: number == 0 and both.wait()


def product(n=96, beta=0.5, seed=0):
    rng = np.random.default_rng(seed)
    return (*(rng.standard_normal((n, n)) for _ in range(3)), beta)


def run(devices, operands, *, tile=(16, 24, 32), in_place=True, progress=None, **keywords):
    a, b, c, beta = operands
    out = c.copy() if in_place else np.empty_like(c)
    report = hdgemm.multiply(
        a, b, beta=beta, c=out if in_place else c, out=out, progress=progress,
        options=hdgemm.Options(devices=devices, tile=tile, host_memory="64MB", **keywords),
    )  # fmt: skip
    assert_close_in_eps(out, a, b, beta=beta, c=c)
    return out, report


@pytest.mark.parametrize("speeds", [(1, 1), (1, 10), (30, 1)])
def test_every_split_is_right(machine, speeds):
    hold = meeting()
    for name, speed in zip(("x", "y"), speeds, strict=True):
        machine[name] = paced(name, 20.0 * speed, hold)
    _, report = run(("x", "y"), product())
    shares = report.split.shares
    assert sum(share.elements for share in shares.values()) == 96 * 96
    assert report.moved_bytes == report.planned_bytes
    assert {event.device for event in report.timeline.events} == {"x", "y"}
    assert all(device.buffers == 0 for device in machine["opened"].values())


def test_progress_tells_which_device_stored_which_part(machine):
    machine["x"], machine["y"] = paced("x", 20.0), paced("y", 20.0)
    seen = []
    operands = product(90)
    _, report = run(("x", "y"), operands, progress=seen.append)
    grid = seen[-1].tiles
    assert grid.devices == ("x", "y")
    assert [len(row) for row in grid.rows] == [24] * 24
    tiles = {name: share.tiles for name, share in report.split.shares.items()}
    for row, cells in enumerate(grid.rows):
        for col, cell in enumerate(cells):
            i, j = (2 * row + 1) * 90 / 48, (2 * col + 1) * 90 / 48  # the centre of the cell
            name = grid.devices["ab".index(cell)]
            assert any(
                t.row <= i <= t.row + t.rows and t.col <= j <= t.col + t.cols for t in tiles[name]
            )


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
def test_a_device_that_fails_is_taken_over(machine, caplog, in_place, late, call):
    def hold(number):
        # After its first tile, without which x gets only one, too.
        while number >= 3 and len(machine["opened"]["x"].calls) <= call:
            time.sleep(0.001)

    machine["x"] = paced("x", 20.0, fault=Fault(call, late=late))
    machine["y"] = paced("y", 20.0, hold)
    _, report = run(("x", "y"), product(), in_place=in_place)
    assert re.search("x failed .* go to y", caplog.text)
    assert report.split.shares["x"].failed
    assert all(device.buffers == 0 for device in machine["opened"].values())


def test_with_no_device_left_there_is_one_error(machine):
    for name in ("x", "y"):
        machine[name] = paced(name, 20.0, fault=Fault(25))
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
    with pytest.raises(hdgemm.InputError, match="named twice"):
        run(("x", "x"), product())


def test_cancelling_ends_all_devices(machine):
    for name in ("x", "y"):
        machine[name] = paced(name, 500.0)
    cancel = threading.Event()
    a, b, c, _ = product()
    options = hdgemm.Options(devices=("x", "y"), tile=(8, 8, 16), host_memory="64MB")
    with pytest.raises(hdgemm.CancelledRunError):
        hdgemm.multiply(
            a, b, out=c, options=options, cancel=cancel, observer=lambda _: cancel.set()
        )
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
    hold = meeting()
    machine["x"], machine["y"] = paced("x", 10.0, hold), paced("y", 100.0, hold)
    _, first = run(("x", "y"), product())
    # Whatever they are: on a busy machine they include its pauses.
    learned = load_rates(["x", "y"], Problem(96, 96, 96)).found
    rates = [learned[name].flop_rate for name in ("x", "y")]
    shares = [first.split.shares[name] for name in ("x", "y")]
    assert rates == [(share.dropped or share).flop_rate for share in shares]
    _, second = run(("x", "y"), product())
    planned = [report.split.shares["x"].planned for report in (first, second)]
    assert planned == pytest.approx([0.5, rates[0] / sum(rates)])


def test_damaged_rates_are_no_error(machine, tmp_path):
    machine["x"], machine["y"] = paced("x", 10.0), paced("y", 10.0)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "rates.json").write_text('{"a": [1], "b": {"x": "fast"}}')
    run(("x", "y"), product())
    run(("x", "y"), product())


@pytest.mark.parametrize("in_place", [True, False])
def test_units_of_a_single_step_do_not_stall(machine, in_place):
    """All that a lane has enqueued may be what the next draw waits for."""
    for name in ("x", "y"):
        machine[name] = paced(name, 5.0)
    run(("x", "y"), product(), tile=(16, 24, 96), in_place=in_place)


def test_events_of_all_devices_lie_on_one_time_axis(machine):
    machine["x"], machine["y"] = paced("x", 20.0), paced("y", 20.0)
    _, report = run(("x", "y"), product())
    assert min(event.start for event in report.timeline.events) >= 0
    assert max(event.end for event in report.timeline.events) <= report.seconds


def test_a_share_that_fell_to_zero_recovers(machine):
    machine["x"], machine["y"] = paced("x", 10.0), paced("y", 1e5)
    _, first = run(("x", "y"), product())
    machine["y"] = paced("y", 10.0)
    later = (run(("x", "y"), product())[1].split.shares["y"].used for _ in range(12))
    assert first.split.shares["y"].used < 0.2
    # The runs take milliseconds each, so that a busy machine can spoil some of them.
    assert any(used > 0.25 for used in later)


def problem():
    return Problem(1000, 1000, 1000)


def test_a_dropped_device_is_tried_again_and_a_known_one_is_not():
    rates = load_rates(["x", "y"], problem())
    rates.learn({"x": Learned(2e9), "y": Learned(1e6, known=False)})
    again = load_rates(["x", "y"], problem())
    assert again.found.get("x") == Learned(2e9)
    assert not again.found["y"].known


def test_a_set_that_is_slower_than_one_alone_leaves_the_others_out():
    learn_alone("x", problem(), 2.0, None)
    learn_alone("y", problem(), 0.5, None)  # too short to tell
    load_rates(["x", "y"], problem()).learn({"x": Learned(4e8), "y": Learned(4e8)})
    rates = load_rates(["x", "y"], problem())
    assert rates.alone == {"x": 1e9}
    assert rates.left_out(["x", "y"]) == {"y": LeftOut(8e8, "x", 1e9)}
    assert "left out" in str(rates.left_out(["x", "y"])["y"])
    for _ in range(20):
        rates.learn(rates.rested(["y"]))
        rates = load_rates(["x", "y"], problem())
        if not rates.left_out(["x", "y"]):
            return
    pytest.fail("a device that was left out is never tried again")


def test_a_set_that_is_faster_keeps_all():
    learn_alone("x", problem(), 2.0, None)
    load_rates(["x", "y"], problem()).learn({"x": Learned(9e8), "y": Learned(4e8)})
    assert not load_rates(["x", "y"], problem()).left_out(["x", "y"])


def test_one_that_is_left_out_is_reported(machine):
    machine["x"], machine["y"] = paced("x", 10.0), paced("y", 10.0)
    this = Problem(96, 96, 96)
    load_rates(["x", "y"], this).learn({"x": Learned(4e8), "y": Learned(4e8)})
    learn_alone("x", this, 1.0, None)
    load_rates(["x"], this).learn({"x": Learned(1e15)})
    _, report = run(("x", "y"), product())
    assert set(report.split.shares) == {"x"}
    assert report.split.left_out["y"].best == "x"
    assert "y was left out" in str(report.split)
    assert report.to_dict()["split"]["left_out"]["y"]["best"] == "x"


def test_a_device_that_spoiled_the_old_c_ends_the_run(machine, monkeypatch):
    begun, second = threading.Event(), nth_call(2)
    # Until the host is at its second product, which is of the same tile.
    machine["x"] = paced("x", 50.0, lambda _: begun.wait(240))
    gemm = HostDevice.gemm

    def fails(self, *args, **keywords):
        if second():
            begun.set()
            raise hdgemm.DeviceError("host: injected fault")
        return gemm(self, *args, **keywords)

    monkeypatch.setattr(HostDevice, "gemm", fails)
    with pytest.raises(hdgemm.DeviceError, match="host: injected"):
        run(("x", "host"), product())


def test_pictures_of_two_devices(machine, tmp_path):
    pytest.importorskip("matplotlib")
    machine["x"], machine["y"] = paced("x", 20.0), paced("y", 60.0)
    _, report = run(("x", "y"), product())
    save_tilemap(report.split.tiles, (96, 96), tmp_path / "tiles.png", title="C")
    save_gantt(report.timeline, tmp_path / "gantt.png")
    for name in ("tiles.png", "gantt.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_table_and_the_lines_tell_all(machine):
    machine["x"], machine["y"] = paced("x", 20.0), paced("y", 60.0)
    _, report = run(("x", "y"), product())
    text = str(report.split)
    assert "\nx " in text
    assert "of alone" in text
    assert "–" in text  # neither was ever run by itself
    assert "imbalance" in text
    assert text in str(report)


@pytest.mark.parametrize("texts", [["host"], ["=0.5"], ["host=much"], ["x=0.1", "x=0.2"]])
def test_shares_that_cannot_be_read_are_refused(texts):
    with pytest.raises(hdgemm.InputError, match="share"):
        make_options(split=texts)


def test_shares_are_read():
    found = make_options(split=["opencl:0/2:1=0.25", "host=0.75"]).split
    assert found == {"opencl:0/2:1": 0.25, "host": 0.75}
    assert make_options().split is None


def test_a_fixed_split_of_files(machine, tmp_path):
    machine["x"], machine["y"] = paced("x", 5.0), paced("y", 5.0)
    a, b, _, _ = product()
    for name, matrix in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", matrix)
    options = hdgemm.Options(devices=("x", "y"), split={"x": 0.5}, host_memory="64MB")
    report = hdgemm.multiply(
        tmp_path / "a.npy", tmp_path / "b.npy", out=tmp_path / "c.npy", options=options
    )
    assert report.split.shares["x"].used == report.split.shares["x"].planned == 0.5
    assert_close_in_eps(np.load(tmp_path / "c.npy"), a, b)
