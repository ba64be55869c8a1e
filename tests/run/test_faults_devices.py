"""A device that fails at its n-th call, through the public calls: one error, all given back."""

import threading

import numpy as np
import pytest

from hdgemm import DeviceError, Options, dgemm, multiply
from hdgemm.pipeline.devices.recording import Fault, RecordingDevice
from tests.reference import assert_close_in_eps
from tests.run.folder import contents

OPTIONS = Options(devices="recording", tile=(16, 16, 16), host_memory="64MB")
M, N, K = 40, 36, 44


@pytest.fixture
def matrices(tmp_path):
    rng = np.random.default_rng(1)
    for name, shape in (("a", (M, K)), ("b", (K, N)), ("c", (M, N))):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal(shape))
    return tmp_path


@pytest.fixture
def lend(monkeypatch):
    """Make the library's next calls run on a given recording device."""

    def use(device):
        monkeypatch.setattr("hdgemm.run.session.open_device", lambda *_args, **_keywords: device)
        return device

    return use


def run(folder, **keywords):
    return multiply(
        folder / "a.npy", folder / "b.npy", alpha=1.5, beta=0.5, c=folder / "c.npy",
        out=folder / "d.npy", options=OPTIONS, **keywords,
    )  # fmt: skip


def threads():
    return [t.name for t in threading.enumerate() if "lane" in t.name or "recording" in t.name]


def test_the_device_computes_without_a_race_and_moves_what_was_planned(matrices, lend):
    device = lend(RecordingDevice())
    report = run(matrices)
    a, b, c = (np.load(matrices / f"{name}.npy") for name in "abc")
    assert_close_in_eps(np.load(matrices / "d.npy"), a, b, alpha=1.5, beta=0.5, c=c)
    assert report.moved_bytes == report.planned_bytes
    assert {call.kind for call in device.calls} >= {"allocate", "upload", "gemm", "download"}
    assert device.buffers == 0
    assert report.devices == ("recording",)


@pytest.mark.parametrize("late", [False, True])
def test_a_fault_at_any_call(matrices, lend, late):
    before = contents(matrices)
    device = lend(RecordingDevice())
    run(matrices)
    calls = len(device.calls)
    (matrices / "d.npy").unlink()
    assert calls > 20
    for number in range(calls):
        device = lend(RecordingDevice(fault=Fault(number, late=late)))
        with pytest.raises(DeviceError) as caught:
            run(matrices)
        assert caught.value.__cause__ is not None or "injected" in str(caught.value)
        assert device.buffers == 0
        assert contents(matrices) == before
    assert threads() == []


def test_a_fault_leaves_the_inputs_in_memory_alone(lend):
    rng = np.random.default_rng(2)
    a, b, c = (rng.standard_normal(shape) for shape in ((M, K), (K, N), (M, N)))
    before = [x.copy() for x in (a, b, c)]
    lend(RecordingDevice(fault=Fault(12)))
    with pytest.raises(DeviceError):
        dgemm(1.0, a, b, 1.0, c, options=OPTIONS)
    for now, then in zip((a, b, c), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_the_next_run_after_a_fault_is_sound(matrices, lend):
    lend(RecordingDevice(fault=Fault(9, late=True)))
    with pytest.raises(DeviceError):
        run(matrices)
    lend(RecordingDevice())
    run(matrices)
    a, b, c = (np.load(matrices / f"{name}.npy") for name in "abc")
    assert_close_in_eps(np.load(matrices / "d.npy"), a, b, alpha=1.5, beta=0.5, c=c)
