"""cholesky, lu_factor and qr of arrays on several devices: SciPy's results, and what is refused."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg

import hdgemm
from hdgemm.errors import CancelledRunError, DoesNotFitError, InputError
from hdgemm.linalg import SingularMatrixError, cho_factor, cholesky, lu_factor, qr
from hdgemm.pipeline.devices.recording import RecordingDevice
from hdgemm.run.session import Session
from hdgemm.tasks.factorise import factor
from hdgemm.tasks.machine import TaskMachine
from hdgemm.tasks.measured_rates import measured
from tests.linalg.matrices import SOUND, positive_definite, random_matrix
from tests.linalg.test_tournament import ratio_of

N = 50
OPTIONS = hdgemm.Options(devices=("host", "opencl:0"), tile=(N, 12, N))


@pytest.fixture
def session(monkeypatch):
    """A session whose OpenCL device is a recording one, with rates that are not measured."""
    monkeypatch.setattr(
        "hdgemm.tasks.measured_rates.measured",
        lambda machine, *_: replace(machine, dealing="proportional", leaf=10),
    )
    device = RecordingDevice(10**7, name="opencl:0")
    with Session(OPTIONS) as session:
        monkeypatch.setattr(session, "device", lambda *_: device)
        yield session
    assert any(call.kind == "upload" for call in device.calls) or not device.calls
    assert device.buffers == 0
    device.close()


@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(session, lower):
    a = positive_definite(N, "float64")
    reports = []
    factor = cholesky(a, lower=lower, session=session, report=reports.append)
    np.testing.assert_allclose(factor, scipy.linalg.cholesky(a, lower=lower), rtol=1e-11)
    assert not np.any(np.triu(factor, 1) if lower else np.tril(factor, -1))
    assert set(reports[0].devices) == {"host", "opencl:0"}
    assert {"load", "panel", "update", "store"} <= set(reports[0].phases)
    out = np.zeros_like(a, order="F" if lower else "C")
    assert cho_factor(a, lower=lower, out=out, session=session)[0] is out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(N, N), (N, 30), (30, N)])
def test_lu_factor(session, shape, dtype):
    a = random_matrix(*shape, dtype)
    lu, pivots = lu_factor(a, session=session)
    expected, expected_pivots = scipy.linalg.lu_factor(a)
    assert pivots.tolist() == expected_pivots.tolist()
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(lu, expected, atol=100 * N * eps, rtol=100 * N * eps)


@pytest.mark.parametrize("mode", ["full", "economic", "r", "raw"])
@pytest.mark.parametrize("shape", [(N, N), (N, 30), (30, N)])
def test_qr(session, shape, mode):
    a = random_matrix(*shape, "float64")
    found = qr(a, mode=mode, session=session)
    expected = scipy.linalg.qr(a, mode=mode)
    if mode == "raw":
        (reflectors, tau), r = found
        np.testing.assert_allclose(tau, expected[0][1], atol=1e-12)
        np.testing.assert_allclose(reflectors, expected[0][0], atol=1e-12)
        np.testing.assert_allclose(r, expected[1], atol=1e-12)
        return
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_results_in_the_callers_arrays(session):
    a = random_matrix(N, N, "float64")
    q, r = np.empty((N, N)), np.empty((N, N), order="F")
    found = qr(a, out=(q, r), session=session)
    assert found[0] is q
    assert found[1] is r
    np.testing.assert_allclose(q @ r, a, atol=1e-12)
    with pytest.raises(InputError):
        qr(a, out=(q[1:], r), session=session)


def test_a_singular_matrix_warns_with_the_first_zero_pivot(session):
    a = random_matrix(N, N, "float64")
    a[:, 20] = 0
    with pytest.warns(scipy.linalg.LinAlgWarning, match="number 21"):
        lu_factor(a, session=session)
    b = positive_definite(N, "float64")
    b[30, 30] = -1
    with pytest.raises(SingularMatrixError, match="order 31"):
        cholesky(b, session=session)


@pytest.mark.parametrize("function", [cholesky, lu_factor, qr])
def test_nan_and_cancelled_runs(session, function):
    a = positive_definite(N, "float64")
    a[3, 3] = np.nan
    with pytest.raises(InputError, match="row 3, column 3"):
        function(a, session=session)
    a[3, 3] = N
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(CancelledRunError):
        function(a, session=session, cancel=cancel)


def test_complex_elements(session):
    a = random_matrix(N, N, "complex128")
    np.testing.assert_allclose(lu_factor(a, session=session)[0], scipy.linalg.lu_factor(a)[0])
    q, r = qr(a, session=session)
    np.testing.assert_allclose(q @ r, a, atol=1e-12)
    np.testing.assert_allclose(q.conj().T @ q, np.eye(N), atol=1e-12)
    b = positive_definite(N, "complex128")
    np.testing.assert_allclose(cholesky(b, session=session), scipy.linalg.cholesky(b), atol=1e-9)


def test_capabilities_are_measured():
    devices = {"d": RecordingDevice(10**8)}
    for name in ("cholesky", "lu", "calu", "qr"):
        machine = measured(
            TaskMachine.of(devices, threads=2, lanes=True), name, np.dtype("float64"), 96
        )
        host, device = machine.capabilities
        update = "larfb" if name == "qr" else "gemm"
        assert host.rates[update] > 0
        assert device.rates[update] > 0
        assert "getrf" not in device.rates
        assert (machine.lapack > 0) == (name in ("cholesky", "lu"))
    devices["d"].close()


def test_a_device_that_is_too_small_to_be_measured_is_left_out():
    devices = {"small": RecordingDevice(1000), "large": RecordingDevice(10**8)}
    machine = measured(TaskMachine.of(devices), "lu", np.dtype("float64"), 96)
    assert tuple(machine.devices) == ("large",)
    assert [each.name for each in machine.capabilities] == ["host", "large"]
    alone = TaskMachine.of({"small": devices["small"]})
    machine = measured(alone, "lu", np.dtype("float64"), 96)
    a = random_matrix(N, N, "float64")
    found = factor(machine, "lu", array := np.array(a, order="F"))
    assert ratio_of(array, found.pivots, a) < SOUND
    for device in devices.values():
        assert device.buffers == 0
        device.close()


@pytest.mark.parametrize("shape", [(N, N), (N, 30), (30, N)])
def test_tournament_pivoting(session, shape):
    a = random_matrix(*shape, "float64")
    lu, pivots = lu_factor(a, pivoting="tournament", session=session)
    assert ratio_of(lu, pivots, a) < SOUND
    assert pivots.tolist() != scipy.linalg.lu_factor(a)[1].tolist()
    with pytest.raises(InputError, match="chooses pivots on the host"):
        lu_factor(a, pivoting="tournament", strategy="native", session=session,
                  options=hdgemm.Options(devices="opencl:0"))  # fmt: skip


def test_the_model_takes_the_dealing_that_is_the_fastest_in_virtual_time():
    def with_rate(rate):
        machine = TaskMachine.of(devices)
        host, device = machine.capabilities
        slow = replace(device, rates=dict.fromkeys(device.rates, rate))
        return replace(machine, capabilities=(host, slow))

    devices = {"d": RecordingDevice(10**8)}
    cut = ((2000, 2000), [200] * 10, "float64")
    for name in ("cholesky", "lu", "calu", "qr"):
        assert with_rate(1e5).dealt(name, *cut).dealing != "devices"
        assert with_rate(1e13).dealt(name, *cut).dealing != "host"
    devices["d"].close()


@pytest.mark.parametrize("shape", [(0, 0), (5, 0), (0, 5), (1, 1)])
def test_empty_matrices_and_one_element(session, shape):
    a = np.ones(shape)
    assert lu_factor(a, session=session)[0].shape == shape
    assert qr(a, mode="r", session=session)[0].shape == shape
    if shape[0] == shape[1]:
        assert cholesky(a, session=session).shape == shape


def test_workspace_that_does_not_fit():
    devices = {"d": RecordingDevice(1000)}
    machine = TaskMachine.of(devices)
    a = np.asfortranarray(random_matrix(N, N, "float64"))
    with pytest.raises(DoesNotFitError, match=r"of workspace, and it has 1\.00 kB"):
        factor(replace(machine, dealing="devices"), "lu", a, widths=[10] * 5)
    assert machine.dealt("lu", (N, N), [10] * 5, "float64").dealing == "host"
    devices["d"].close()
