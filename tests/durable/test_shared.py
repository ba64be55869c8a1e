"""Durable runs on several devices: interrupted at any moment, resumed, same result."""

import numpy as np
import pytest

import hdgemm
from hdgemm.pipeline.devices.recording import Fault, RecordingDevice
from hdgemm.run import session as sessions
from tests.reference import assert_close_in_eps

N = 96


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def machine(monkeypatch):
    """Recording devices by name; a test may set a fault."""
    faults = {}

    def open_device(name, _memory=None, **_more):
        return RecordingDevice(name=name, fault=faults.get(name))

    monkeypatch.setattr(sessions, "open_device", open_device)
    return faults


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(5)
    for name in "abc":
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((N, N)))
    return tmp_path


class InterruptedRunError(Exception):
    """Stands for a process that ends."""


def run(folder, *, beta=0.0, out="out.npy", stop_at=None, devices=("x", "y"), **keywords):
    stored = []

    def observe(event):
        if event.stage == "store2":
            stored.append(event)
        if stop_at is not None and len(stored) > stop_at:
            raise InterruptedRunError

    target = np.load(folder / out, mmap_mode="r+") if beta else folder / out
    keywords |= {"beta": beta, "c": target} if beta else {}
    options = hdgemm.Options(devices=devices, tile=(16, 24, 32), host_memory="64MB")
    return hdgemm.multiply(
        folder / "a.npy", folder / "b.npy", out=target, options=options,
        observer=observe, checkpoint=True, **keywords,
    )  # fmt: skip


@pytest.mark.parametrize("stop_at", [0, 1, 7, 20])
def test_an_interrupted_run_is_resumed(machine, files, stop_at):
    with pytest.raises(InterruptedRunError):
        run(files, stop_at=stop_at)
    assert not (files / "out.npy").exists()
    report = run(files)
    a, b = np.load(files / "a.npy"), np.load(files / "b.npy")
    assert_close_in_eps(np.load(files / "out.npy"), a, b)
    computed = sum(share.elements for share in report.split.shares.values())
    assert report.resumption.kept <= stop_at + 8
    assert report.resumption.tiles > report.resumption.kept
    assert computed <= N * N
    assert (computed < N * N) == (report.resumption.kept > 0)


@pytest.mark.parametrize("stop_at", [0, 3, 12])
def test_a_c_updated_in_place_is_resumed(machine, files, stop_at):
    a, b, c = (np.load(files / f"{name}.npy") for name in "abc")
    np.save(files / "out.npy", c)
    with pytest.raises(InterruptedRunError):
        run(files, beta=0.5, stop_at=stop_at)
    report = run(files, beta=0.5)
    assert_close_in_eps(np.load(files / "out.npy"), a, b, beta=0.5, c=c)
    assert report.resumption.kept >= min(stop_at, 1)
    assert run(files, beta=0.5).resumption.finished


def test_a_device_that_fails_leaves_its_tiles_to_the_other(machine, files, caplog):
    machine["x"] = Fault(25)
    run(files)
    assert "x failed" in caplog.text
    assert_close_in_eps(
        np.load(files / "out.npy"), np.load(files / "a.npy"), np.load(files / "b.npy")
    )


def test_other_devices_are_refused_by_name(machine, files):
    with pytest.raises(InterruptedRunError):
        run(files, stop_at=3)
    with pytest.raises(hdgemm.InputError, match=r"the device was x, y, is x\. "):
        run(files, devices=("x",))
    run(files)


def test_a_damaged_tile_is_computed_again(machine, files):
    with pytest.raises(InterruptedRunError):
        run(files, stop_at=10)
    [part] = files.glob(".out.npy.*.part")
    with part.open("r+b") as stream:
        elements = stream.seek(-8 * N * N, 2)
        stream.write(bytes(8 * N * N))
    assert elements > 0
    report = run(files)
    assert report.resumption.damaged > 0
    assert_close_in_eps(
        np.load(files / "out.npy"), np.load(files / "a.npy"), np.load(files / "b.npy")
    )
