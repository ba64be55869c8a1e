"""Sessions: devices opened once, slots reused within the limits, everything freed."""

import copy
import pickle
import threading
from dataclasses import replace

import numpy as np
import pytest

import hdgemm
from hdgemm.machine import calibration
from hdgemm.machine.calibration import Figures
from hdgemm.pipeline.devices.recording import Fault, RecordingDevice
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem
from hdgemm.run import engine, session as sessions
from tests.reference import assert_close_in_eps

RNG = np.random.default_rng(2)
A, B = RNG.standard_normal((60, 50)), RNG.standard_normal((50, 70))
OPTIONS = hdgemm.Options(devices="x", tile=(16, 24, 32), host_memory="64MB")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def opened(monkeypatch):
    devices = []

    def open_device(name, memory=None, **_more):
        devices.append(RecordingDevice(memory or 1 << 30, name=name))
        return devices[-1]

    monkeypatch.setattr(sessions, "open_device", open_device)
    return devices


def allocations(device):
    return sum(call.kind in {"allocate", "allocate_staging"} for call in device.calls)


def staging(session, device):
    """Bytes of staging that a session keeps for a device."""
    kept = session.slots(device)._kept.items()
    return sum(buffer.nbytes for (kind, _), found in kept if kind == "staging" for buffer in found)


def test_a_second_product_opens_and_allocates_nothing(opened):
    with hdgemm.Session(OPTIONS) as session:
        first = hdgemm.matmul(A, B, session=session)
        before = allocations(opened[0])
        second = hdgemm.matmul(A, B, session=session)
        assert len(opened) == 1
        assert allocations(opened[0]) == before
    assert_close_in_eps(first, A, B)
    assert first.tobytes() == second.tobytes()
    assert opened[0].buffers == 0


def test_slots_of_another_shape_are_freed_first(opened):
    limits = hdgemm.Options(devices="x", device_memory="40kB", host_memory="64MB")
    with hdgemm.Session(limits) as session:
        for n in (60, 20, 45, 60):
            a, b = RNG.standard_normal((n, n)), RNG.standard_normal((n, n))
            assert_close_in_eps(hdgemm.matmul(a, b, session=session), a, b)
    assert opened[0].buffers == 0


def test_a_smaller_product_takes_the_slots_of_a_larger_one_within_its_limits(opened):
    a, b = A[:10, :20], B[:20, :15]
    with hdgemm.Session(OPTIONS) as session:
        hdgemm.matmul(A, B, session=session)
        before = allocations(opened[0])
        assert_close_in_eps(hdgemm.matmul(a, b, session=session), a, b)
        assert allocations(opened[0]) == before

        assert staging(session, opened[0]) > 50_000
        small = replace(OPTIONS, host_memory="50kB")
        assert_close_in_eps(hdgemm.matmul(a, b, session=session, options=small), a, b)
        assert len(opened) == 1
        assert 0 < staging(session, opened[0]) <= 50_000
    assert opened[0].buffers == 0


def test_a_failed_run_keeps_no_slots_and_the_session_goes_on(opened):
    with hdgemm.Session(OPTIONS) as session:
        hdgemm.matmul(A, B, session=session)
        opened[0].fault = Fault(len(opened[0].calls) + 5)
        cancel = threading.Event()
        cancel.set()
        with pytest.raises(hdgemm.CancelledRunError):
            hdgemm.multiply(A, B, out=np.empty((60, 70)), session=session, cancel=cancel)
        opened[0].fault = None
        assert_close_in_eps(hdgemm.matmul(A, B, session=session), A, B)
    assert opened[0].buffers == 0


def test_a_closed_session_is_refused(opened):
    session = hdgemm.Session(OPTIONS)
    session.close()
    with pytest.raises(hdgemm.InputError, match="session is closed"):
        hdgemm.matmul(A, B, session=session)


def test_a_session_must_be_a_session():
    with pytest.raises(hdgemm.InputTypeError, match=r"session must be hdgemm\.Session, got int"):
        hdgemm.multiply(A, B, out=np.empty((60, 70)), session=3)


def test_options_must_be_options():
    with pytest.raises(hdgemm.InputError, match=r"options must be hdgemm\.Options, got dict"):
        hdgemm.multiply(A, B, out=np.empty((60, 70)), options={"host_memory": "1GB"})
    with pytest.raises(hdgemm.InputError, match="got str"):
        hdgemm.Session("1GB")


def test_a_session_stays_in_its_process():
    with hdgemm.Session() as session:
        for copied in (pickle.dumps, copy.deepcopy):
            with pytest.raises(hdgemm.InputTypeError, match="pass its options"):
                copied(session)


def test_calls_from_several_threads_take_turns(opened):
    results = {}
    with hdgemm.Session(OPTIONS) as session:

        def work(number):
            results[number] = hdgemm.matmul(A * number, B, session=session)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number, result in results.items():
        assert_close_in_eps(result, A * number, B)
    assert len(opened) == 1


@pytest.mark.parametrize(
    "call", [lambda s: hdgemm.matmul(A, B, session=s), lambda s: s.close()], ids=["matmul", "close"]
)
def test_an_observer_cannot_wait_for_its_own_session(opened, call):
    with hdgemm.Session(OPTIONS) as session:
        with pytest.raises(hdgemm.InputError, match="another session"):
            hdgemm.matmul(A, B, session=session, observer=lambda _: call(session))
        assert_close_in_eps(hdgemm.matmul(A, B, session=session), A, B)


def test_an_observer_of_slabs_cannot_wait_for_its_own_session(tmp_path):
    a = np.random.default_rng(0).standard_normal((300, 300))
    np.save(tmp_path / "A.npy", a)
    options = hdgemm.Options(devices="host", host_memory="30MB", tile=(1, 50, 10))
    refused = []

    def work():
        with hdgemm.Session(options) as session:
            try:
                hdgemm.linalg.lu_factor(
                    tmp_path / "A.npy",
                    out=tmp_path / "LU.npy",
                    session=session,
                    observer=lambda _: hdgemm.matmul(a, a, session=session),
                )
            except hdgemm.InputError as error:
                refused.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(120)
    assert "another session" in str(refused)


@pytest.mark.parametrize(("gemm", "kept"), [(1.0, False), (1e17, True)])
def test_a_run_deletes_figures_that_it_shows_to_be_too_low(tmp_path, monkeypatch, gemm, kept):
    figures = Figures(gemm, 1.0, 1e9, 1e9, 1e9, 1e9, 1e-5, 1.0)
    measured = []
    monkeypatch.setattr(calibration, "measure", lambda *_: measured.append(figures) or figures)
    monkeypatch.setattr(engine, "LEAST_SECONDS", 0.0)
    calibration.calibrate(tmp_path)
    options = hdgemm.Options(devices="host", tile=(16, 24, 32))
    hdgemm.multiply(A, B, out=tmp_path / "C.npy", options=options)
    calibration.calibrate(tmp_path)
    assert len(measured) == (1 if kept else 2)


def test_plans_count_on_a_share_of_the_disk(tmp_path):
    spec = OperandSpec(False, "file", "staged", 8)
    problem = Problem(64, 64, 64, "float64", spec, spec, spec)
    with hdgemm.Session(hdgemm.Options(devices="host")) as session:
        alone = session.machine(DeviceSpec(), problem, None, 1)
        session.disk_share = alone.disk_read / 8
        shared = session.machine(DeviceSpec(), problem, None, 1)
    assert shared.disk_read == alone.disk_read / 8
    assert shared.disk_write <= shared.disk_read
    assert shared.flop_rate("float64") == alone.flop_rate("float64")
