"""Native mode: factorisations of which every operation runs on one device."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import hdgemm
from hdgemm.call.recorder import Recorder
from hdgemm.errors import CancelledRunError, DeviceError, DoesNotFitError, InputError
from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg.devices import _native_matrix as native_matrix
from hdgemm.linalg.devices._native import factor_native
from hdgemm.pipeline.devices.cuda import driven_by, open_device as open_cuda
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.pipeline.devices.opencl import list_devices, open_device
from hdgemm.progress import Callbacks
from tests.linalg.matrices import (
    DTYPES,
    SOUND,
    norm1,
    positive_definite,
    random_matrix,
    residual_ratio,
    widened,
)
from tests.linalg.test_growth import MATRICES
from tests.linalg.test_tournament import ratio_of
from tests.pipeline.devices.cuda.standin import StandIn


def pocl(**options):
    pytest.importorskip("pyopencl")
    for info in list_devices():
        if "Portable" in info.description and info.usable:
            return open_device(info.name, **options)
    return pytest.skip("PoCL is not installed")


def cuda():
    with driven_by(StandIn(order="ahead:2").api()):
        return open_cuda("cuda:0")


@pytest.fixture(scope="module", params=["host", "pocl", "cuda"])
def device(request):
    """Kernels of at most 8 columns, so that small matrices have panels of several levels."""
    found = {"host": HostDevice, "pocl": pocl, "cuda": cuda}[request.param]()
    found.panel_columns = 8
    yield found
    found.close()


def factor(name, device, a, *, panel=20, callbacks=None):
    array = np.array(a, order="F")
    found = factor_native(name, device, array, Recorder(callbacks or Callbacks(), 0), panel=panel)
    return array, found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(75, 75), (75, 50), (50, 75), (1, 9), (9, 1)])
def test_lu_is_sound(device, dtype, shape):
    a = random_matrix(*shape, dtype)
    lu, found = factor("lu", device, a)
    assert ratio_of(lu, found.pivots, a) < SOUND
    assert found.zeros == ()
    assert (
        np.abs(np.tril(lu, -1)[:, : min(shape)]).max(initial=0) <= 1 + 1e-6 or lu.dtype.kind == "c"
    )


@pytest.mark.parametrize("name", MATRICES)
def test_lu_of_the_gallery_is_sound(device, name):
    a = MATRICES[name]()
    lu, found = factor("lu", device, a)
    assert ratio_of(lu, found.pivots, a) < SOUND
    assert found.zeros[:1] == ((1,) if name == "zero columns" else ())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 8, 75])
def test_cholesky_is_sound(device, dtype, n):
    a = positive_definite(n, dtype)
    lower, _ = factor("cholesky", device, np.tril(a))
    found = widened(np.tril(lower))
    assert residual_ratio((found @ found.conj().T - a).astype(dtype), a) < SOUND
    assert not np.triu(lower, 1).any()  # the other triangle is as it was


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(75, 75), (75, 50), (50, 75), (1, 9), (9, 1)])
def test_qr_is_sound(device, dtype, shape):
    a = random_matrix(*shape, dtype)
    array, found = factor("qr", device, a)
    product, first = widened(np.triu(array)), min(shape)
    for t in reversed(found.triangles):
        first -= len(t)
        v = np.tril(widened(array[first:, first : first + len(t)]), -1) + np.eye(
            shape[0] - first, len(t)
        )
        assert not np.tril(t, -1).any()
        np.testing.assert_allclose(
            t + t.conj().T, t.conj().T @ (v.conj().T @ v) @ t, atol=1e3 * np.finfo(dtype).eps
        )
        product[first:] -= v @ (t @ (v.conj().T @ product[first:]))
    assert residual_ratio((product - a).astype(dtype), a) < SOUND


def test_a_minor_that_is_not_positive_is_named(device):
    a = positive_definite(60, "float64")
    a[41, 41] = -1
    with pytest.raises(SingularMatrixError, match="order 42") as caught:
        factor("cholesky", device, a)
    assert caught.value.order == 42


@pytest.mark.parametrize("name", ["cholesky", "lu", "qr"])
def test_matrices_pass_through_staging_in_pieces(device, monkeypatch, name):
    """Nothing above the diagonal of a triangle is read or written."""
    monkeypatch.setattr(native_matrix, "_ROWS", 16)
    monkeypatch.setattr(native_matrix, "_STAGING", 16 * 24 * 8)
    reports, above = [], np.triu_indices(75, 1)
    a = positive_definite(75, "float64")
    expected, _ = factor(name, device, a)
    recorder = Recorder(Callbacks(report=reports.append), 0)
    array, stages = np.array(a, order="F"), ("load2", "store1")
    if name == "cholesky":
        array[above] = np.nan
    factor_native(name, device, array, recorder, panel=20)
    recorder.finish(SimpleNamespace(planned_bytes={}, summary=dict))
    if name == "cholesky":
        assert np.isnan(array[above]).all()
        array[above] = expected[above]
    np.testing.assert_allclose(array, expected, rtol=1e-9)
    for stage in (reports[0].stages[each] for each in stages):
        assert stage.nbytes == stage.planned_bytes
        assert (stage.nbytes < a.nbytes) == (name == "cholesky")


def test_all_memory_is_freed(device):
    if not hasattr(device, "_memory"):
        pytest.skip("the host counts no memory")
    factor("lu", device, random_matrix(40, 40, "float64"))
    before = device._memory._held
    factor("lu", device, random_matrix(40, 40, "float64"))
    with pytest.raises(SingularMatrixError):
        factor("cholesky", device, -np.eye(40))
    assert device._memory._held == before


def test_a_matrix_that_does_not_fit_is_refused_with_the_numbers():
    device = pocl(memory_bytes=1 << 20)
    with pytest.raises(DoesNotFitError, match="strategy='hybrid'") as caught:
        factor("lu", device, random_matrix(400, 400, "float64"))
    assert caught.value.missing == caught.value.requested - caught.value.available
    device.close()


def test_a_run_can_be_cancelled(device):
    cancel = threading.Event()
    events = []

    def observe(event):
        events.append(event)
        if event.stage == "mult1":
            cancel.set()

    callbacks = Callbacks(observer=observe, cancel=cancel)
    with pytest.raises(CancelledRunError):
        factor("lu", device, random_matrix(75, 75, "float64"), callbacks=callbacks)
    assert sum(event.stage == "mult1" for event in events) == 1


class Failing(HostDevice):
    """A host of which the n-th operation fails when it is waited for."""

    def __init__(self, number):
        super().__init__()
        self.left = number
        self.panel_columns = 8

    def gemm(self, *args):
        done = super().gemm(*args)
        self.left -= 1
        return self if self.left == 0 else done

    def wait(self):
        raise DeviceError("asked to fail")


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_failure_that_shows_late_is_raised(number):
    with pytest.raises(DeviceError, match="asked to fail"):
        factor("lu", Failing(number), random_matrix(75, 75, "float64"))


def test_an_empty_matrix_has_no_factors(device):
    _, found = factor("lu", device, np.empty((0, 4)))
    assert len(found.pivots) == 0
    assert norm1(np.empty((0, 4))) == 0


@pytest.fixture(scope="module")
def native():
    """Options that name PoCL alone, with panels of 40 columns."""
    device = pocl()
    name = device.spec.name
    device.close()
    return hdgemm.Options(devices=name, tile=(40, 40, 40))


def test_public_calls_run_native(native):
    a = positive_definite(100, "float64")
    lower = hdgemm.linalg.cholesky(a, lower=True, strategy="native", options=native)
    assert residual_ratio(lower @ lower.T - a, a) < SOUND
    assert not np.triu(lower, 1).any()
    upper = hdgemm.linalg.cholesky(a, strategy="native", options=native)
    assert residual_ratio(upper.T @ upper - a, a) < SOUND
    b = random_matrix(100, 90, "float64")
    q, r = hdgemm.linalg.qr(b, mode="economic", strategy="native", options=native)
    assert residual_ratio(q @ r - b, b) < SOUND
    assert residual_ratio(q.T @ q - np.eye(90), np.eye(90)) < SOUND
    reports = []
    lu, pivots = hdgemm.linalg.lu_factor(
        b, strategy="native", options=native, report=reports.append
    )
    assert ratio_of(lu, pivots, b) < SOUND
    assert reports[0].stages["load2"].nbytes == reports[0].stages["store1"].nbytes == b.nbytes


def test_wrong_calls_are_refused(native, tmp_path):
    a = np.eye(9)
    with pytest.raises(InputError, match="'hybrid' or 'native', got 'other'"):
        hdgemm.linalg.lu_factor(a, strategy="other")
    with pytest.raises(InputError, match="runs on one device, but devices is 'host'"):
        hdgemm.linalg.lu_factor(a, strategy="native", options=hdgemm.Options(devices="host"))
    with pytest.raises(InputError, match="needs a result in RAM"):
        hdgemm.linalg.lu_factor(a, strategy="native", options=native, out=tmp_path / "LU.npy")
    with pytest.raises(InputError, match="chooses pivots on the host"):
        hdgemm.linalg.lu_factor(a, strategy="native", options=native, pivoting="tournament")
