"""Slabs of a row-major file that are copied in one pass before they are factored."""

import errno
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

import hdgemm
from hdgemm.errors import MatrixIOError
from hdgemm.linalg import lu_factor, qr
from hdgemm.linalg.planning import factors as factor_plan
from hdgemm.linalg.planning.search import Storage, plan_slabs
from hdgemm.linalg.slabs._copies import SlabCopies
from hdgemm.machine.rates import Machine
from tests.linalg.interruption import InterruptedRunError, interrupt_after
from tests.linalg.matrices import random_matrix

N = 40
SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="30MB")


@pytest.fixture
def copied(monkeypatch):
    """Copy slabs in each run that may, whatever the rates of the machine are."""

    def forced(*arguments, **named):
        found = plan_slabs(*arguments, **named)
        return replace(found, copied=named["storage"].copies)

    monkeypatch.setattr(factor_plan, "plan_slabs", forced)


def reflectors(a, **named):
    return qr(a, mode="raw", **named)[0][0]


def factors(a, **named):
    return lu_factor(a, **named)[0]


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("shape", [(N, N), (61, 37), (37, 61)])
@pytest.mark.parametrize("call", [factors, reflectors])
def test_copied_slabs_give_the_same_bits(tmp_path, copied, call, shape, dtype):
    a = random_matrix(*shape, dtype)
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "expected.npy", np.asfortranarray(a))
    call(tmp_path / "expected.npy", overwrite_a=True, options=SLABS)
    reports = []
    found = call(tmp_path / "A.npy", out=tmp_path / "F.npy", options=SLABS, report=reports.append)
    np.testing.assert_array_equal(found, np.load(tmp_path / "expected.npy"))
    (report,) = reports
    assert report.moved_bytes == report.planned_bytes
    # All but the first slabs, which are filled in memory, are written twice.
    first = min(shape[1], 7 * report.plan["slab_buffers"]) * shape[0] * a.itemsize
    loads = [e for e in report.timeline.events if e.stage == "load1" and e.step == 0]
    assert sum(e.nbytes for e in loads if e.unit == 0) >= a.nbytes
    stores = sum(e.nbytes for e in report.timeline.events if e.stage == "store2")
    assert stores >= 2 * a.nbytes - first


@pytest.mark.parametrize("operations", [0, 3, 26, 28, 60, 120])
@pytest.mark.parametrize("call", [factors, reflectors])
def test_a_durable_run_goes_on_to_the_same_bits(tmp_path, copied, call, operations):
    np.save(tmp_path / "A.npy", random_matrix(N, N, "float64"))
    expected = call(tmp_path / "A.npy", out=tmp_path / "expected.npy", options=SLABS)
    command = {"out": tmp_path / "F.npy", "options": SLABS, "checkpoint": True}
    with pytest.raises(InterruptedRunError):
        call(tmp_path / "A.npy", observer=interrupt_after(operations), **command)
    reports = []
    found = call(tmp_path / "A.npy", report=reports.append, **command)
    np.testing.assert_array_equal(found, expected)
    assert reports[0].moved_bytes == reports[0].planned_bytes


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_full_disk_during_the_copy(tmp_path, copied, monkeypatch, checkpoint):
    np.save(tmp_path / "A.npy", random_matrix(N, N, "float64"))

    def full(*_arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    command = {"out": tmp_path / "F.npy", "options": SLABS, "checkpoint": checkpoint}
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(MatrixIOError, match="make room"):
            lu_factor(tmp_path / "A.npy", **command)
    assert not (tmp_path / "F.npy").exists()
    lu, pivots = lu_factor(tmp_path / "A.npy", **command)
    expected = lu_factor(np.load(tmp_path / "A.npy"))
    np.testing.assert_array_equal(pivots, expected[1])
    np.testing.assert_allclose(lu, expected[0], rtol=0, atol=1e-12)


def test_a_cancelled_copy_publishes_nothing(tmp_path, copied):
    np.save(tmp_path / "A.npy", random_matrix(N, N, "float64"))
    cancel = threading.Event()
    with pytest.raises(hdgemm.CancelledRunError):
        lu_factor(tmp_path / "A.npy", out=tmp_path / "F.npy", options=SLABS, cancel=cancel,
                  observer=lambda _event: cancel.set())  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


def test_an_interrupt_ends_the_copy_at_the_next_band(tmp_path, copied, monkeypatch):
    np.save(tmp_path / "A.npy", random_matrix(N, N, "float64"))
    seen = []
    make = SlabCopies.load

    def load(copies, slab):
        copies.stop()
        make(copies, slab)

    monkeypatch.setattr(SlabCopies, "load", load)
    with pytest.raises(hdgemm.CancelledRunError):
        lu_factor(tmp_path / "A.npy", out=tmp_path / "F.npy", options=SLABS, observer=seen.append)
    assert all(event.stage == "load1" for event in seen)
    assert not (tmp_path / "F.npy").exists()


def test_an_input_that_is_modified_during_the_run_is_found(tmp_path, copied):
    np.save(tmp_path / "A.npy", random_matrix(N, N, "float64"))

    def observe(event):
        if event.stage == "mult1" and event.unit == 0:
            os.utime(tmp_path / "A.npy", (0, 0))

    with pytest.raises(hdgemm.HdgemmError, match="was modified"):
        lu_factor(tmp_path / "A.npy", out=tmp_path / "F.npy", options=SLABS, observer=observe)
    assert not (tmp_path / "F.npy").exists()


def test_outputs_that_exist_and_those_in_place_take_no_copies(tmp_path, monkeypatch):
    np.save(tmp_path / "A.npy", random_matrix(N, N, "float64"))
    np.save(tmp_path / "F.npy", np.zeros((N, N), order="F"))
    seen = []
    monkeypatch.setattr(
        factor_plan,
        "plan_slabs",
        lambda *a, **named: seen.append(named["storage"]) or plan_slabs(*a, **named),
    )
    with hdgemm.open(tmp_path / "F.npy", "r+") as out:
        lu_factor(tmp_path / "A.npy", out=out, options=SLABS)
    lu_factor(tmp_path / "A.npy", out=tmp_path / "F.zarr", options=SLABS)
    lu_factor(tmp_path / "A.npy", overwrite_a=True, options=SLABS)
    assert not any(storage.copies for storage in seen)


def test_the_plan_copies_where_gaps_take_longer():
    n, pitch = 8192, 65536
    kernel = {"gemm": {"float64": 1e11}, "copy": 1e11}
    for rate, copied in ((1e9, True), (1e12, False)):
        machine = Machine(disk_read=rate, disk_write=1e9 if copied else 1e8, **kernel)
        found = plan_slabs(
            "lu", n, "float64", 200_000_000, machine, storage=Storage(row_bytes=pitch, copies=True)
        )
        assert found.copied is copied
    assert not plan_slabs(
        "lu", n, "float64", 200_000_000, machine, storage=Storage(row_bytes=pitch)
    ).copied


def test_bytes_of_copies_by_hand():
    n, width = 13, 5
    plan = plan_slabs("lu", n, "float64", 2 * 10**7, Machine(), width=width, block=2,
                      storage=Storage(row_bytes=8 * n))  # fmt: skip
    plain = plan_slabs("lu", n, "float64", 2 * 10**7, Machine(), width=width, block=2)
    # Two slabs of 5 columns and one of 3; the gaps of 12 rows are read with each.
    gaps = 8 * 12 * (2 * (n - 5) + n - 3)
    assert plan.planned_bytes["load1"] - plain.planned_bytes["load1"] == gaps
    copying = replace(plan, copied=True, slab_buffers=2)
    assert copying.copies(0) == plan.slabs[2:]
    # A is read once, and the copies are read.
    assert copying.planned_bytes["load1"] == plain.planned_bytes["load1"] + 8 * n * 3
    assert copying.planned_bytes["store2"] == plain.planned_bytes["store2"] + 8 * n * 3
    # After one slab the other two are filled in memory.
    assert copying.copies(1) == ()
