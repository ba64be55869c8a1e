"""Slabs of which the updates run on other devices: results, bytes, memory, checkpoints."""

import dataclasses
import gc
import threading

import numpy as np
import pytest
import scipy.linalg

import hdgemm
from hdgemm.energy import EnergyMeter
from hdgemm.errors import (
    CancelledRunError,
    DeviceError,
    DeviceUnavailableError,
    DoesNotFitError,
    InputError,
)
from hdgemm.linalg import SingularMatrixError, cholesky, lu_factor, qr, qr_multiply, updates
from hdgemm.machine.rates import Machine
from hdgemm.pipeline.devices.cuda import driven_by
from hdgemm.pipeline.devices.cuda.standin import Fault, StandIn
from hdgemm.pipeline.devices.cuda.standin.blas import WORKSPACE_BYTES
from hdgemm.pipeline.devices.cuda.standin.standin import CONTEXT_BYTES
from hdgemm.pipeline.devices.opencl import list_devices
from hdgemm.run.engine import run_product
from tests.linalg.interruption import InterruptedRunError
from tests.linalg.matrices import (
    DTYPES,
    SOUND,
    positive_definite,
    random_matrix,
    residual_ratio,
    widened,
)
from tests.linalg.test_tournament import ratio_of

N = 36
#: Slabs of 18 columns and blocks of 9, which products cut into tiles of 13×18×9.
TILE = (13, 18, 9)
CASES = (
    ("float32", (N, N)), ("float64", (N, 20)), ("complex64", (20, N)), ("complex128", (N, N)),
)  # fmt: skip


def pocl():
    """Return the name of the device on which PoCL computes."""
    pytest.importorskip("pyopencl")
    for info in list_devices():
        if "Portable" in info.description and info.usable:
            return info.name
    return pytest.skip("PoCL is not installed")


@pytest.fixture(scope="module", params=["cuda", "pocl"])
def session(request):
    """A session on one device: a stand-in for CUDA, or PoCL."""
    machine = StandIn()
    name = "cuda:0" if request.param == "cuda" else pocl()
    options = hdgemm.Options(devices=name, tile=TILE, host_memory="64MB")
    with driven_by(machine.api()), hdgemm.Session(options) as opened:
        yield opened
    gc.collect()
    assert not machine.leaks()


@pytest.fixture
def cuda():
    """Options that name a stand-in for CUDA, and the stand-in."""
    machine = StandIn()
    with driven_by(machine.api()):
        yield hdgemm.Options(devices="cuda:0", tile=TILE, host_memory="64MB"), machine
    gc.collect()
    assert not machine.leaks()


def names_energy(report, device):
    """Say whether the energy of a device was measured, or why not: GPUs have their own counters."""
    return device in {*report.energy.joules, *report.energy.missing}


@pytest.fixture
def _narrow_panels(monkeypatch):
    """Slabs of 18 columns are factored in panels of 8, and triangles of 9 are halved."""
    monkeypatch.setattr(updates, "_PANEL", 8)
    monkeypatch.setattr("hdgemm.linalg.lu_elimination._TRIANGLE", 5)


def saved(path, a):
    np.save(path, np.asfortranarray(a))
    return path


@pytest.mark.parametrize(("dtype", "shape"), CASES)
def test_lu_is_sound(session, tmp_path, shape, dtype):
    a = random_matrix(*shape, dtype)
    reports = []
    lu, pivots = lu_factor(
        saved(tmp_path / "A.npy", a), out=tmp_path / "LU.npy", session=session,
        report=reports.append,
    )  # fmt: skip
    assert ratio_of(np.array(lu), pivots, a) < SOUND
    assert pivots.tolist() == scipy.linalg.lu_factor(a)[1].tolist()
    [report] = reports
    device = session.options.devices
    assert report.devices == ("host", device)
    assert all(stage.nbytes == stage.planned_bytes for stage in report.stages.values())
    assert report.stages["load2"].nbytes > 0
    assert names_energy(report, device) == device.startswith("cuda")
    on_device = [e for e in report.timeline.events if e.device == device]
    assert {event.stage for event in on_device} >= {"load2", "mult1", "store1"}
    # Each operation is counted once, rounded down.
    done = sum(event.flops for event in report.timeline.events)
    assert 0 <= report.plan["flops"] - done <= len(report.timeline.events)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky_is_sound(session, tmp_path, dtype):
    a, lower = positive_definite(N, dtype), np.dtype(dtype).itemsize == 8
    factor = widened(
        np.array(
            cholesky(saved(tmp_path / "S.npy", a), lower, out=tmp_path / "L.npy", session=session)
        )
    )
    product = factor @ factor.conj().T if lower else factor.conj().T @ factor
    assert residual_ratio((product - a).astype(dtype), a) < SOUND
    assert not np.any(np.triu(factor, 1) if lower else np.tril(factor, -1))


@pytest.mark.parametrize(("dtype", "shape"), CASES)
def test_qr_is_sound(session, tmp_path, shape, dtype):
    a = random_matrix(*shape, dtype)
    path, reports = saved(tmp_path / "A.npy", a), []
    q, r = (
        widened(np.array(x))
        for x in qr(path, mode="economic", out=(tmp_path / "Q.npy", tmp_path / "R.npy"),
                    session=session, report=reports.append)
    )  # fmt: skip
    assert residual_ratio((q @ r - a).astype(dtype), a) < SOUND
    eye = np.eye(min(shape), dtype=dtype)
    assert residual_ratio((q.conj().T @ q - eye).astype(dtype), eye) < SOUND
    c = random_matrix(shape[0], 5, dtype, 1)
    cq, _ = qr_multiply(path, c.T, session=session, report=reports.append)
    device = session.options.devices
    assert [names_energy(x, device) for x in reports] == [device.startswith("cuda")] * 2
    assert residual_ratio((c.T @ q - cq).astype(dtype), c) < SOUND


def test_diagonal_blocks_are_halved_into_products(cuda, tmp_path, monkeypatch):
    monkeypatch.setattr("hdgemm.linalg.cholesky_elimination._SQUARE", 7)
    a = positive_definite(N, "float64")
    found = cholesky(saved(tmp_path / "S.npy", a), True, out=tmp_path / "L.npy", options=cuda[0])
    assert residual_ratio(found @ found.T - a, a) < SOUND


@pytest.mark.usefixtures("_narrow_panels")
@pytest.mark.parametrize("name", ["lu", "cholesky", "qr"])
def test_a_run_that_goes_on_gives_the_same_bits(cuda, tmp_path, name):
    options, _ = cuda
    path = saved(tmp_path / "A.npy", positive_definite(N, "float64"))

    def interrupt(event):
        if event.unit == 1 and event.stage == "mult1":
            raise InterruptedRunError

    call, more = {
        "lu": (lu_factor, {}), "cholesky": (cholesky, {}), "qr": (qr, {"mode": "raw"}),
    }[name]  # fmt: skip
    call(path, out=tmp_path / "whole.npy", options=options, **more)
    keywords = {"out": tmp_path / "F.npy", "checkpoint": True, "options": options, **more}
    with pytest.raises(InterruptedRunError):
        call(path, observer=interrupt, **keywords)
    with pytest.raises(InputError, match="updates ran on cuda:0, not on the host"):
        call(path, **{**keywords, "options": hdgemm.Options(tile=TILE)})
    call(path, **keywords)
    assert (tmp_path / "F.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_limits_of_host_and_device_hold(cuda, tmp_path, monkeypatch):
    _, machine = cuda
    path = saved(tmp_path / "A.npy", random_matrix(150, 150, "float64"))
    reports, held = [], [0, 0]
    reserve = machine.memory.reserve

    def counted(nbytes, owner):
        reserve(nbytes, owner)
        if owner == 0 and abs(nbytes) not in (CONTEXT_BYTES, WORKSPACE_BYTES):
            held[:] = held[0] + nbytes, max(held[1], held[0] + nbytes)

    monkeypatch.setattr(machine.memory, "reserve", counted)
    limited = hdgemm.Options(
        devices="cuda:0", tile=(64, 75, 40), host_memory="32MB", device_memory="9MB"
    )
    lu_factor(path, out=tmp_path / "LU.npy", options=limited, report=reports.append)
    assert reports[0].plan["host_bytes"] <= 32_000_000
    assert 0 < held[1] <= 9_000_000
    small = hdgemm.Options(devices="cuda:0", tile=(64, 75, 40), device_memory="1MB")
    with pytest.raises(DoesNotFitError) as caught:
        lu_factor(path, out=tmp_path / "other.npy", options=small)
    assert caught.value.missing > 0
    assert not (tmp_path / "other.npy").exists()


def test_the_plan_that_is_shown_runs(cuda, tmp_path):
    path = saved(tmp_path / "A.npy", random_matrix(N, N, "float64"))
    free = hdgemm.Options(devices="cuda:0", host_memory="64MB")
    for options in (cuda[0], free):
        reports = []
        shown = hdgemm.linalg.plan("lu", path, out=tmp_path / "LU.npy", options=options)
        lu_factor(path, out=tmp_path / "LU.npy", options=options, report=reports.append)
        assert reports[0].plan == shown.summary()
        assert shown.devices == ("cuda:0",)
        assert "cuda:0" in str(shown)


def test_solves_factor_on_the_device(cuda, tmp_path):
    a, b = random_matrix(N, N, "float64"), random_matrix(N, 3, "float64", 1)
    path, reports = saved(tmp_path / "A.npy", a), []
    keywords = {"options": cuda[0]}
    x = hdgemm.linalg.solve(path, b, report=reports.append, **keywords)
    assert residual_ratio(a @ x - b, a) < SOUND
    assert reports[0].devices == ("host", "cuda:0")
    np.testing.assert_allclose(hdgemm.linalg.inv(path, **keywords) @ a, np.eye(N), atol=1e-10)
    _, lower, upper = hdgemm.linalg.lu(path, **keywords)
    assert lower.shape == upper.shape == (N, N)
    assert hdgemm.linalg.slogdet(path, **keywords)[1] == pytest.approx(np.linalg.slogdet(a)[1])
    lu = lu_factor(path, out=tmp_path / "LU.npy", **keywords)
    np.testing.assert_allclose(hdgemm.linalg.lu_solve(lu, b, **keywords), x, atol=1e-10)


def test_a_run_that_is_cancelled_during_a_product(cuda, tmp_path, monkeypatch):
    path, cancel = saved(tmp_path / "A.npy", random_matrix(N, N, "float64")), threading.Event()

    def cancelled(*arguments, **keywords):
        cancel.set()
        return run_product(*arguments, **keywords)

    monkeypatch.setattr(updates, "run_product", cancelled)
    with pytest.raises(CancelledRunError, match="the factorisation was cancelled"):
        lu_factor(path, out=tmp_path / "LU.npy", options=cuda[0], cancel=cancel)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["A.npy"]


def test_counters_of_energy_are_read_for_the_run_alone(cuda, tmp_path, monkeypatch):
    path, starts, reports = saved(tmp_path / "A.npy", random_matrix(N, N, "float64")), [], []
    start = EnergyMeter.start
    monkeypatch.setattr(EnergyMeter, "start", lambda meter: starts.append(1) or start(meter))
    lu_factor(path, out=tmp_path / "LU.npy", options=cuda[0], report=reports.append)
    assert len(starts) == 1
    assert names_energy(reports[0], "cuda:0")


def test_errors_are_those_of_the_host(cuda, tmp_path):
    options, machine = cuda
    a = positive_definite(N, "float64")
    a[:, 25] = a[25] = 0
    path = saved(tmp_path / "A.npy", a)
    with pytest.raises(SingularMatrixError, match="order 26"):
        cholesky(path, out=tmp_path / "L.npy", options=options)
    with pytest.warns(scipy.linalg.LinAlgWarning, match="number 26"):
        lu_factor(path, out=tmp_path / "LU.npy", options=options)
    with pytest.raises(InputError, match="strategy='native' needs a result in RAM"):
        lu_factor(path, out=tmp_path / "LU.npy", strategy="native", options=options)
    with pytest.raises(DeviceUnavailableError):
        lu_factor(path, out=tmp_path / "F.npy", options=hdgemm.Options(devices="cuda:9"))
    machine.inject(Fault("dgemm", 2, 13))
    with pytest.raises(DeviceError):
        lu_factor(path, out=tmp_path / "F.npy", options=options)
    assert not (tmp_path / "F.npy").exists()


@pytest.mark.usefixtures("_narrow_panels")
def test_a_slab_comes_back_once_for_each_block_and_half(cuda, tmp_path):
    a, reports = random_matrix(N, N, "float64"), []
    path = saved(tmp_path / "A.npy", a)
    options = dataclasses.replace(cuda[0], tile=(13, 18, 18))
    lu, pivots = lu_factor(path, out=tmp_path / "LU.npy", options=options, report=reports.append)
    assert ratio_of(np.array(lu), pivots, a) < SOUND
    # Panels of 8, 8 and 2 columns: the first updates 10 columns, the second 2, and each solves
    # with a triangle of order 8 in two halves.
    first = (4 + 28) * 10 + (4 + 20) * 2
    second = (4 + 10) * 10 + (4 + 2) * 2
    # The earlier slab solves with a triangle of order 18 in four parts, and updates 18 rows.
    block = (4 + 1 + 9 + 4 + 1 + 18) * 18
    stage = reports[0].stages["store1"]
    assert stage.nbytes == stage.planned_bytes == 8 * (first + block + second)


@pytest.mark.parametrize("routine", ["lu", "cholesky"])
def test_blocks_are_deeper_where_transfers_of_slabs_take_the_time(cuda, monkeypatch, routine):
    slow = Machine(gemm={"float64": 1e12}, copy=2e9, pcie_up=2e9, pcie_down=2e9, disk_read=1e9)
    monkeypatch.setattr(hdgemm.Session, "machine", lambda *_arguments: slow)
    options = dataclasses.replace(cuda[0], tile=None, host_memory="96MB")
    deep = hdgemm.linalg.plan(routine, 4096, options=options)
    monkeypatch.setattr(updates, "_DEPTHS", ())
    shallow = hdgemm.linalg.plan(routine, 4096, options=options)

    def moved(plan):
        """Return the elements that blocks of earlier columns update."""
        return sum(
            (plan.m - max(block.last, slab.top)) * slab.width
            for number, slab in enumerate(plan.slabs)
            for _, block in plan.blocks(number)
        )

    assert deep.block > shallow.block
    assert moved(deep) < moved(shallow)
    assert deep.bytes_held <= 96_000_000
    forced = dataclasses.replace(options, tile=(256, 512, 64))
    assert hdgemm.linalg.plan(routine, 4096, options=forced).block == 64
