"""Passes over rows whose products devices compute: the results of the host, memory, faults."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg

import hdgemm
from hdgemm.decomposition import pca
from hdgemm.errors import DeviceError, DeviceUnavailableError, DoesNotFitError
from hdgemm.linalg import corrcoef, cov, eigsh, lstsq, pinv, qr, ridge, svd, svds, svdvals
from hdgemm.linalg.planning import passes
from hdgemm.pipeline.devices.cuda import driven_by
from hdgemm.pipeline.devices.recording import Fault, RecordingDevice
from hdgemm.run.session import Session
from tests.linalg.interruption import InterruptedRunError, interrupt_after
from tests.linalg.matrices import DTYPES, random_matrix
from tests.pipeline.devices.cuda.standin import StandIn

M, N = 3000, 12
OPTIONS = hdgemm.Options(devices="opencl:0", tile=(700, 1, 1), threads=2)
HOST = replace(OPTIONS, devices="host")


def stand_in(monkeypatch, session, *, packs=True, memory=10**8, fault=None):
    device = RecordingDevice(memory, name="opencl:0", fault=fault)
    monkeypatch.setattr(device, "packs", packs, raising=False)
    monkeypatch.setattr(session, "device", lambda *_: device)
    return device


@pytest.fixture(params=["packs", "dense", "cuda"])
def session(request, monkeypatch):
    """A session whose device is a recording one, or a stand-in for CUDA.

    It must have multiplied at the end, and hold no memory.
    """
    if request.param == "cuda":
        machine = StandIn()  # refuses copies of memory that is not page-locked
        monkeypatch.setattr("hdgemm.linalg.rows._device_lane.STAGING_BYTES", 10_000)
        options = replace(OPTIONS, devices="cuda:0")
        with driven_by(machine.api()), Session(options) as session:
            yield session
        gc.collect()
        assert not machine.leaks()
        assert sum(call.name.endswith("gemm") for call in machine.calls) > 1  # one warms up
        return
    with Session(OPTIONS) as session:
        device = stand_in(monkeypatch, session, packs=request.param == "packs")
        yield session
    assert any(call.kind == "gemm" for call in device.calls)
    assert device.buffers == 0
    device.close()


def stored(tmp_path, a, order="C"):
    path = tmp_path / "A.npy"
    np.save(path, np.asarray(a, order=order))
    return path


def tolerance(dtype):
    return 2000 * np.finfo(dtype).eps


def symmetric(n, dtype):
    x = random_matrix(n, n, dtype)
    return (x + x.conj().T + 100 * np.diag(1.0 / np.arange(1, n + 1))).astype(dtype)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_singular_values_and_vectors(session, tmp_path, dtype, order):
    a, reports = random_matrix(M, N, dtype), []
    u, s, vh = svd(stored(tmp_path, a, order), session=session, report=reports.append)
    exact = scipy.linalg.svdvals(a)
    np.testing.assert_allclose(s, exact, rtol=tolerance(dtype))
    np.testing.assert_allclose(u * s @ vh, a, atol=tolerance(dtype) * s[0])
    device = session.options.devices
    assert set(reports[0].devices) == {"host", device}
    assert reports[0].plan["parts"][0]["devices"] == (device,)
    assert {"load1", "load2", "mult1", "store1", "store2"} <= set(reports[0].stages)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_and_their_conjugates(session, tmp_path, dtype, order):
    a = random_matrix(M, N, dtype) + np.arange(N).astype(dtype)
    path = stored(tmp_path, a, order)
    wide = a.astype(np.result_type(dtype, np.float64))
    for found, exact in (
        (cov(path, rowvar=False, session=session), np.cov(wide, rowvar=False)),
        (corrcoef(path, rowvar=False, session=session), np.corrcoef(wide, rowvar=False)),
    ):
        np.testing.assert_allclose(found, exact, atol=tolerance(dtype) * np.abs(exact).max())
    values = svdvals(path, method="gram", session=session)
    np.testing.assert_allclose(values, scipy.linalg.svdvals(a), rtol=1e5 * tolerance(dtype))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_last_block_of_one_row(session, tmp_path, dtype, order):
    a = random_matrix(2 * 700 + 1, N, dtype)
    one = replace(session.options, threads=1)  # one sum has all blocks
    for source in (stored(tmp_path, a, order), np.asarray(a, order=order)):
        found = cov(source, rowvar=False, session=session, options=one)
        np.testing.assert_allclose(found, np.cov(a, rowvar=False), atol=tolerance(dtype))
        for method in ("tsqr", "gram"):
            values = svdvals(source, method=method, session=session, options=one)
            np.testing.assert_allclose(values, scipy.linalg.svdvals(a), rtol=10 * tolerance(dtype))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_krylov_iterations(session, tmp_path, dtype, order):
    a = random_matrix(600, 40, dtype) * (1.5 ** -np.arange(40)).astype(np.dtype(dtype).type)
    path = stored(tmp_path, a.astype(dtype), order)
    small = replace(session.options, tile=(100, 1, 1))
    exact = scipy.linalg.svdvals(a)[:3]
    _, s, _ = svds(path, 3, session=session, options=small)
    np.testing.assert_allclose(np.sort(s)[::-1], exact, rtol=10 * tolerance(dtype))
    h = symmetric(80, dtype)
    found = eigsh(stored(tmp_path, h, order), 3, return_eigenvectors=False, options=small,
                  session=session)  # fmt: skip
    np.testing.assert_allclose(np.sort(found)[-1], scipy.linalg.eigvalsh(h)[-1], rtol=1e-4)


def test_other_routines(session, tmp_path):
    a, b = random_matrix(M, N, "float64") + 5, random_matrix(M, 2, "float64", 1)
    path = stored(tmp_path, a)
    exact = scipy.linalg.lstsq(a, b)[0]
    np.testing.assert_allclose(lstsq(path, b, session=session)[0], exact, atol=1e-12)
    np.testing.assert_allclose(ridge(path, b, 0.0, session=session).x, exact, atol=1e-12)
    np.testing.assert_allclose(pinv(path, session=session), scipy.linalg.pinv(a), atol=1e-12)
    (r,) = qr(path, mode="r", session=session)
    np.testing.assert_allclose(
        np.abs(r[:N]), np.abs(scipy.linalg.qr(a, mode="r")[0][:N]), rtol=1e-9
    )
    found = pca(path, 3, session=session)
    centred = a - a.mean(axis=0)
    values = scipy.linalg.svdvals(centred)[:3]
    np.testing.assert_allclose(found.singular_values, values, rtol=1e-12)
    krylov = pca(path, 3, svd_solver="krylov", session=session)
    np.testing.assert_allclose(krylov.singular_values, values, rtol=1e-9)


def test_outliers_are_reduced_on_the_host(session):
    a = random_matrix(M, N, "float64")
    a[1500:1510] *= 1e6
    exact = scipy.linalg.svdvals(a)
    np.testing.assert_allclose(svdvals(a, session=session), exact, atol=1e-13 * exact[0])


CALLS = {
    "svdvals": lambda a, out, **how: svdvals(a, out=out, **how),
    "cov": lambda a, out, **how: cov(a, rowvar=False, out=out, **how),
    "svd": lambda a, out, **how: svd(a, out=(out, None, None), **how),
    "svds": lambda a, out, **how: svds(a, 2, block=4, out=(out, None, None), **how),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_call_goes_on_to_the_same_bits(session, tmp_path, monkeypatch, name):
    monkeypatch.setattr("hdgemm.linalg.rows.checkpoint._INTERVAL", 0.0)
    a, call, events = stored(tmp_path, random_matrix(M, N, "float64")), CALLS[name], []
    how = {"session": session, "options": session.options}
    call(a, tmp_path / "whole.npy", observer=events.append, **how)
    for part in (0.4, 0.3):
        with pytest.raises(InterruptedRunError):
            call(
                a,
                tmp_path / "part.npy",
                checkpoint=True,
                observer=interrupt_after(int(part * len(events))),
                **how,
            )
    # With the devices of the run that was interrupted, whatever the options.
    call(a, tmp_path / "part.npy", checkpoint=True, session=session, options=HOST)
    assert (tmp_path / "part.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_blocks_are_lower_where_a_device_is_small(monkeypatch):
    a = random_matrix(M, N, "float64")
    plans = []
    with Session(OPTIONS) as session:
        for memory in (10**8, 2 * 10**5):
            stand_in(monkeypatch, session, memory=memory)
            plan = hdgemm.linalg.plan("svd", a, options=OPTIONS, session=session)
            plans.append(plan.to_dict()["parts"][2])
            u, s, vh = svd(a, session=session)
            np.testing.assert_allclose(u * s @ vh, a, atol=1e-12)
        assert plans[1]["rows"] < plans[0]["rows"] == 700
        stand_in(monkeypatch, session, memory=1000)
        with pytest.raises(DoesNotFitError, match="opencl:0 holds 1") as error:
            svd(a, session=session)
    assert error.value.requested > error.value.available == 1000


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("number", [0, 3, 9, 20])
def test_a_device_that_fails(monkeypatch, tmp_path, number, late):
    a = random_matrix(M, N, "float64")
    with Session(OPTIONS) as session:
        device = stand_in(monkeypatch, session, fault=Fault(number, late))
        with pytest.raises(DeviceError):
            svd(a, out=(tmp_path / "U.npy", None, None), session=session)
        assert device.buffers == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rate", "memory", "expected"),
    [(1e15, 10**8, ("opencl:0",)), (1e6, 10**8, ()), (1e15, 1000, ())],
    ids=["faster", "slower", "too small"],
)
def test_auto_takes_an_accelerator_that_is_expected_to_be_faster(
    monkeypatch, rate, memory, expected
):
    monkeypatch.setattr(passes, "best_device", lambda: "opencl:0")
    monkeypatch.setattr(passes, "WORTH_AN_ACCELERATOR", 1)
    a = random_matrix(M, N, "float64")
    with Session(hdgemm.Options(tile=(700, 1, 1))) as session:
        stand_in(monkeypatch, session, memory=memory)
        assumed = session.machine
        monkeypatch.setattr(
            session,
            "machine",
            lambda spec, *others: (
                replace(assumed(spec, *others), gemm={"float64": rate}, pcie_up=1e15)
                if spec.name == "opencl:0"
                else assumed(spec, *others)
            ),
        )
        reports = []
        values = svdvals(a, session=session, report=reports.append)
        np.testing.assert_allclose(values, scipy.linalg.svdvals(a), rtol=1e-12)
        assert reports[0].plan["parts"][0]["devices"] == expected


def test_auto_computes_on_the_host_where_the_accelerator_cannot_be_opened(monkeypatch):
    def refuse(*_):
        raise DeviceUnavailableError("it is busy")

    monkeypatch.setattr(passes, "best_device", lambda: "cuda:0")
    monkeypatch.setattr(passes, "WORTH_AN_ACCELERATOR", 1)
    a = random_matrix(M, N, "float64")
    with Session(hdgemm.Options(tile=(700, 1, 1))) as session:
        monkeypatch.setattr(session, "device", refuse)
        np.testing.assert_allclose(svdvals(a, session=session), scipy.linalg.svdvals(a), rtol=1e-12)
        with pytest.raises(DeviceUnavailableError, match="it is busy"):
            svdvals(a, session=session, options=hdgemm.Options(devices="cuda:0"))


def test_a_resumed_call_has_the_device_memory_of_the_earlier_one(monkeypatch, tmp_path):
    a, out, reports = random_matrix(M, N, "float64"), tmp_path / "s.npy", []
    small = replace(OPTIONS, device_memory=50_000)
    with Session(OPTIONS) as session:
        monkeypatch.setattr(
            session,
            "device",
            lambda _, options: RecordingDevice(options.device_bytes or 10**8, name="opencl:0"),
        )
        whole, events = tmp_path / "whole.npy", []
        svdvals(a, out=whole, session=session, options=small, observer=events.append)
        how = {"out": out, "session": session, "checkpoint": True, "report": reports.append}
        with pytest.raises(InterruptedRunError):
            svdvals(a, options=small, observer=interrupt_after(len(events) * 2 // 3), **how)
        svdvals(a, options=OPTIONS, **how)
    assert reports[0].resumption.kept
    assert out.read_bytes() == whole.read_bytes()


def test_r_that_does_not_fit_a_device(monkeypatch, tmp_path):
    with Session(OPTIONS) as session:
        stand_in(monkeypatch, session, memory=1000)
        match = r"TSQR of .* there: raise device_memory, or choose devices='host'"
        with pytest.raises(DoesNotFitError, match=match) as found:
            qr(stored(tmp_path, random_matrix(M, N, "float64")), mode="r", session=session)
        stand_in(monkeypatch, session, memory=found.value.requested * 3 // 4)
        with pytest.raises(DoesNotFitError, match="choose threads=1,"):
            qr(tmp_path / "A.npy", mode="r", session=session)
        qr(tmp_path / "A.npy", mode="r", session=session, options=replace(OPTIONS, threads=1))


@pytest.mark.parametrize("devices", ["host", "opencl:0"])
def test_progress_ends_at_100_percent(monkeypatch, devices):
    a, shown = random_matrix(600, 40, "float64") * 1.5 ** -np.arange(40), []
    with Session(OPTIONS) as session:
        stand_in(monkeypatch, session)
        options = replace(OPTIONS, devices=devices)
        svds(a, 3, session=session, options=options, progress=shown.append)
    found = [progress.percent for progress in shown]
    assert found == sorted(found)
    assert found[-1] == 100


def test_a_device_that_fails_at_once_leaves_no_durable_run(monkeypatch, tmp_path):
    a, outs = random_matrix(M, N, "float64"), (tmp_path / "U.npy", None, None)
    with Session(OPTIONS) as session:
        stand_in(monkeypatch, session, fault=Fault(0, False))
        with pytest.raises(DeviceError):
            svd(a, out=outs, session=session, checkpoint=True)
        assert not list(tmp_path.iterdir())
        u, s, vh = svd(a, out=outs, session=session, options=HOST, checkpoint=True)
    np.testing.assert_allclose(u[:] * s @ vh, a, atol=1e-12)
