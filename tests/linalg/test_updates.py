"""Slabs of which the updates run on other devices: results, bytes, memory, checkpoints."""

import dataclasses
import gc
import threading
from functools import partial

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
    HdgemmError,
    InputError,
)
from hdgemm.linalg import SingularMatrixError, cholesky, lu_factor, qr, qr_multiply
from hdgemm.linalg.planning import slab as resident_plan
from hdgemm.linalg.planning.slab import Columns, SlabPlan
from hdgemm.pipeline.devices.cuda import driven_by
from hdgemm.pipeline.devices.opencl import list_devices
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
from tests.pipeline.devices.cuda.standin import Fault, StandIn
from tests.pipeline.devices.cuda.standin.blas import WORKSPACE_BYTES
from tests.pipeline.devices.cuda.standin.standin import CONTEXT_BYTES

N = 36
#: Slabs of 18 columns and blocks of 9.
TILE = (13, 18, 9)
CASES = (("float32", (N, N)), ("float64", (N, 20)), ("complex64", (20, N)), ("complex128", (N, N)))


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
    """Slabs of 18 columns are cut into strips of 5, which are no multiples of a granularity."""
    monkeypatch.setattr(resident_plan, "PANEL", 5)


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


@pytest.mark.usefixtures("_narrow_panels")
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


@pytest.mark.usefixtures("_narrow_panels")
@pytest.mark.parametrize("name", ["lu", "cholesky", "qr"])
def test_a_run_that_goes_on_gives_the_same_bits(cuda, tmp_path, name):
    options, _ = cuda
    path = saved(tmp_path / "A.npy", positive_definite(N, "float64"))

    def interrupt(event):
        if event.unit == 1 and event.stage == "mult1":
            raise InterruptedRunError

    call, more = {"lu": (lu_factor, {}), "cholesky": (cholesky, {}), "qr": (qr, {"mode": "raw"})}[
        name
    ]
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
        devices="cuda:0", tile=(64, 75, 40), host_memory="32MB", device_memory="16MB"
    )
    lu_factor(path, out=tmp_path / "LU.npy", options=limited, report=reports.append)
    assert reports[0].plan["host_bytes"] <= 32_000_000
    assert 0 < held[1] <= 16_000_000
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


@pytest.mark.parametrize("stage", ["load2", "mult1", "store1"])
def test_a_run_that_is_cancelled_while_a_device_works(cuda, tmp_path, stage):
    path, cancel = saved(tmp_path / "A.npy", random_matrix(N, N, "float64")), threading.Event()

    def observer(event):
        if event.device == "cuda:0" and event.stage == stage and event.unit == 1:
            cancel.set()

    with pytest.raises(CancelledRunError, match="the run was cancelled"):
        lu_factor(path, out=tmp_path / "LU.npy", options=cuda[0], cancel=cancel, observer=observer)
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


@pytest.mark.parametrize(
    ("call", "status"),
    [
        ("malloc", 2), ("hostRegister", 2), ("memcpyAsync", 1), ("dgemm", 13), ("dtrsm", 13),
        ("eventRecord", 1), ("streamWaitEvent", 1), ("eventSynchronize", 1),
        ("eventElapsedTime", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_every_call_of_the_driver_may_fail(cuda, tmp_path, call, status, number):
    options, machine = cuda
    path = saved(tmp_path / "A.npy", random_matrix(N, N, "float64"))
    with hdgemm.Session(options) as session:
        lu_factor(path, session=session, out=tmp_path / "first.npy")
        machine.inject(Fault(call, number, status))
        with pytest.raises(HdgemmError):
            lu_factor(path, session=session, out=tmp_path / "LU.npy")
        assert not (tmp_path / "LU.npy").exists()
        lu, pivots = lu_factor(path, session=session, out=tmp_path / "LU.npy")
        np.testing.assert_array_equal(lu, np.load(tmp_path / "first.npy"))
        assert len(pivots) == N


@pytest.mark.parametrize(
    ("call", "number", "native"),
    [
        *((call, number, False) for call in ("free", "hostUnregister") for number in (0, 1, 3)),
        ("free", 0, True),
        ("hostUnregister", 0, True),
    ],
)
def test_memory_is_freed_beside_some_that_is_not(tmp_path, call, number, native):
    machine = StandIn()
    a = positive_definite(N, "float64")
    path = saved(tmp_path / "A.npy", a)
    options = hdgemm.Options(devices="cuda:0", tile=TILE, host_memory="64MB")
    with driven_by(machine.api()), hdgemm.Session(options) as session:
        if native:
            factor = partial(cholesky, a, session=session, strategy="native")
        else:
            factor = partial(qr, path, session=session, mode="raw", out=tmp_path / "QR.npy")
        factor()
        before = machine.leaks().get("memory", 0)
        machine.inject(Fault(call, number, 1))
        with pytest.raises(DeviceError, match=f"{call} failed"):
            factor()
        assert machine.leaks()["memory"] == before + 1
    gc.collect()
    assert machine.leaks() == {"memory": 1}


def crossed(machine, direction):
    """Return the bytes that the driver was told to copy in a direction."""
    plain = (call.args for call in machine.calls if call.name == "memcpyAsync")
    rows = (call.args for call in machine.calls if call.name == "memcpy2DAsync")
    return sum(args[2] for args in plain if args[3] == direction) + sum(
        args[4] * args[5] for args in rows if args[6] == direction
    )


@pytest.mark.usefixtures("_narrow_panels")
@pytest.mark.parametrize("name", ["lu", "cholesky", "qr"])
def test_a_slab_crosses_the_link_once(cuda, tmp_path, name):
    options, machine = cuda
    path, reports = saved(tmp_path / "A.npy", positive_definite(N, "float64")), []
    call, more = {
        "lu": (lu_factor, {}), "cholesky": (cholesky, {"lower": True}), "qr": (qr, {"mode": "raw"}),
    }[name]  # fmt: skip
    call(path, out=tmp_path / "F.npy", options=options, report=reports.append, **more)
    # Slabs of 18 columns, panels of 5, 4, 5 and 4 (of 9 for QR) in blocks of 9.
    spans = {"qr": [(0, 9), (9, 18)]}.get(name, [(0, 5), (5, 10), (10, 15), (15, 18)])
    trapezoids = name == "cholesky"
    slabs = blocks = panels = squares = 0
    for start in (0, 18):
        for first, last in spans:
            width, rows = last - first, N - start - first
            slabs += width * (rows if trapezoids else N)
            if last < 18:
                panels += width * (rows - width if trapezoids else rows)
                squares += width**2
    for first in (0, 9):
        blocks += 9 * (18 if trapezoids else N - first)
        squares += 81
    stages = reports[0].stages
    assert stages["store1"].nbytes == stages["store1"].planned_bytes == 8 * slabs
    sent = slabs + blocks + panels + (squares if name == "qr" else 0)
    assert stages["load2"].nbytes == stages["load2"].planned_bytes == 8 * sent
    assert crossed(machine, 2) == 8 * slabs
    lists = crossed(machine, 1) - 8 * sent
    assert 0 <= lists <= (16 * 2 * N * 8 if name == "lu" else 0)


@pytest.mark.parametrize("columns", [0, 1])
def test_q_of_few_columns_crosses_the_link_as_planned(cuda, tmp_path, columns):
    path, reports = saved(tmp_path / "A.npy", random_matrix(N, columns, "float64")), []
    places = tmp_path / "Q.npy", tmp_path / "R.npy"
    q, r = qr(path, mode="full", out=places, options=cuda[0], report=reports.append)
    np.testing.assert_allclose(q @ r, np.load(path), atol=1e-14)
    moved, planned = reports[0].moved_bytes, reports[0].planned_bytes
    assert (moved, moved["load2"] > 0) == (planned, True)


@pytest.mark.parametrize("name", ["lu", "cholesky", "qr"])
def test_staging_is_allocated_once(cuda, tmp_path, name):
    options, machine = cuda
    counts = []
    call, more = {"lu": (lu_factor, {}), "cholesky": (cholesky, {}), "qr": (qr, {"mode": "raw"})}[
        name
    ]
    for slabs in (3, 9):
        path = saved(tmp_path / "A.npy", positive_definite(8 * slabs, "float64"))
        with hdgemm.Session(dataclasses.replace(options, tile=(8, 8, 4))) as session:
            call(path, out=tmp_path / f"{slabs}.npy", session=session, **more)  # opens the device
            before = sum(call.name == "hostRegister" for call in machine.calls)
            call(path, out=tmp_path / f"{slabs}.npy", session=session, **more)
            counts.append(sum(call.name == "hostRegister" for call in machine.calls) - before)
    # Lists of permutations stay with the device.
    assert counts[0] == counts[1] <= 5


def test_several_devices_hold_strips_of_a_slab(tmp_path, monkeypatch):
    monkeypatch.setattr(resident_plan, "PANEL", 4)
    machine = StandIn(devices=2)
    a, spd = random_matrix(N, N, "float64"), positive_definite(N, "float64")
    names = ("cuda:0", "cuda:1")
    options = hdgemm.Options(devices=names, tile=TILE, host_memory="64MB")
    reports = []
    keywords = {"options": options, "report": reports.append}
    with driven_by(machine.api()):
        lu, pivots = lu_factor(saved(tmp_path / "A.npy", a), out=tmp_path / "LU.npy", **keywords)
        factor = cholesky(saved(tmp_path / "S.npy", spd), True, out=tmp_path / "L.npy", **keywords)
        q, r = qr(tmp_path / "A.npy", out=(tmp_path / "Q.npy", tmp_path / "R.npy"), **keywords)
    assert ratio_of(np.array(lu), pivots, a) < SOUND
    assert residual_ratio(factor @ factor.T - spd, spd) < SOUND
    assert residual_ratio(np.array(q) @ r - a, a) < SOUND
    for report in reports:
        assert set(report.devices) == {"host", *names}
        assert report.moved_bytes == report.planned_bytes
    lu_bytes = {
        name: sum(
            e.nbytes for e in reports[0].timeline.events if e.device == name and e.stage == "store1"
        )
        for name in names
    }
    assert sum(lu_bytes.values()) == a.nbytes
    assert min(lu_bytes.values()) > 0


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("first", ["cuda", "opencl"])
def test_devices_of_two_kinds_share_the_buffers_of_slabs(tmp_path, first, checkpoint):
    names = sorted(("cuda:0", pocl()), reverse=first == "opencl")
    options = hdgemm.Options(devices=tuple(names), tile=TILE, host_memory="64MB")
    a, reports = random_matrix(N, N, "float64"), []
    path = saved(tmp_path / "A.npy", a)
    keywords = {"options": options, "checkpoint": checkpoint, "report": reports.append}
    machine = StandIn()  # refuses asynchronous copies of memory that is not page-locked
    with driven_by(machine.api()):
        lu, pivots = lu_factor(path, out=tmp_path / "LU.npy", **keywords)
        q, r = qr(path, out=(tmp_path / "Q.npy", tmp_path / "R.npy"), **keywords)
    assert ratio_of(np.array(lu), pivots, a) < SOUND
    assert residual_ratio(np.array(q) @ np.array(r) - a, a) < SOUND
    for report in reports:
        assert {event.device for event in report.timeline.events} >= set(names)
    assert not machine.leaks()


@pytest.mark.usefixtures("_narrow_panels")
@pytest.mark.parametrize(("order", "seed"), [("eager", 0), ("random", 1), ("random", 2)])
def test_results_do_not_depend_on_the_order_of_streams(tmp_path, order, seed):
    a, spd = random_matrix(N, N, "complex128"), positive_definite(N, "complex128")
    saved(tmp_path / "A.npy", a), saved(tmp_path / "S.npy", spd)
    found = []
    for machine in (StandIn(), StandIn(order=order, seed=seed)):
        options = hdgemm.Options(devices="cuda:0", tile=(8, 12, 4), host_memory="64MB")
        with driven_by(machine.api()):
            lu, pivots = lu_factor(tmp_path / "A.npy", out=tmp_path / "LU.npy", options=options)
            factor = cholesky(tmp_path / "S.npy", True, out=tmp_path / "L.npy", options=options)
            q, r = qr(
                tmp_path / "A.npy", out=(tmp_path / "Q.npy", tmp_path / "R.npy"), options=options
            )
        found.append([np.array(x) for x in (lu, pivots, factor, q, r)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert ratio_of(found[0][0], found[0][1], a) < SOUND


def test_strips_are_dealt_by_weights():
    slab = Columns(0, 100, 0)
    plan = SlabPlan("lu", 100, 100, "float64", (slab,), 10, 1, 0, devices=("a", "b", "c"),
                    weights=(0.6, 0.3, 0.1))  # fmt: skip
    dealt = resident_plan.dealt(plan, slab)
    assert [sum(strip.width for strip in strips) for strips in dealt] == [60, 30, 10]
    assert sorted(x for strips in dealt for x in strips) == resident_plan.strips(plan, slab)


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
def test_slabs_are_as_narrow_as_a_device_holds(cuda, routine):
    wide, narrow = (
        hdgemm.linalg.plan(
            routine, 4096, **({"mode": "raw"} if routine == "qr" else {}),
            options=dataclasses.replace(
                cuda[0], tile=None, host_memory="500MB", device_memory=memory
            ),
        )
        for memory in ("1GB", "64MB")
    )  # fmt: skip
    assert len(wide.slabs) < len(narrow.slabs)
    held = [(narrow.m - slab.top) * slab.width * 8 for slab in narrow.slabs]
    blocks = 2 * narrow.m * narrow.block * 8
    assert max(held) + blocks <= 64_000_000
    assert narrow.slab_buffers * max(held) + blocks <= narrow.host_bytes <= 500_000_000


def test_a_plan_of_an_older_journal_deals_strips_equally(cuda):
    plan = hdgemm.linalg.plan("lu", N, options=cuda[0])
    values = plan.to_dict()
    assert SlabPlan.from_dict(values) == plan
    del values["weights"]
    assert SlabPlan.from_dict({**values, "devices": ["a", "b"]}).weights == (1.0, 1.0)


def test_work_that_fails_while_a_device_opens_ends_the_call(tmp_path):
    machine = StandIn(faults=[Fault("Stream", 0, 1, late=True)])
    path = saved(tmp_path / "A.npy", random_matrix(N, N, "float64"))
    with driven_by(machine.api()), pytest.raises(DeviceUnavailableError, match="asked to fail"):
        lu_factor(path, out=tmp_path / "LU.npy", options=hdgemm.Options(devices="cuda:0"))
    gc.collect()
