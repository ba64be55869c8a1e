"""Strips of slabs: loaded, computed, stored and read again one after the other."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import hdgemm
from hdgemm.linalg import cholesky, lu_factor, qr, solve
from hdgemm.linalg.planning import factors as factor_plan, slab as slab_plan
from hdgemm.linalg.planning.search import plan_slabs
from hdgemm.linalg.planning.slab import Columns
from hdgemm.linalg.slabs import cholesky as cholesky_elimination, lu as lu_elimination, slab
from tests.linalg.interruption import InterruptedRunError, interrupt_after
from tests.linalg.matrices import SOUND, positive_definite, random_matrix
from tests.linalg.test_tournament import ratio_of

N = 60
SLABS = hdgemm.Options(tile=(1, 23, 7), host_memory="30MB")


def call_of(name, out, options=SLABS, **arguments):
    if name == "qr":
        return lambda a: qr(a, mode="raw", out=(out, None), options=options, **arguments)
    call = {"lu": lu_factor, "cholesky": cholesky}[name]
    return lambda a: call(a, out=out, options=options, **arguments)


@pytest.fixture(params=[1, 5 * N * 8], ids=["columns", "strips"])
def strip_bytes(request):
    return request.param


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ["lu", "cholesky", "qr"])
def test_strips_give_the_bits_of_whole_slabs(tmp_path, monkeypatch, strip_bytes, name, order):
    make = positive_definite if name == "cholesky" else random_matrix
    arguments = (N,) if name == "cholesky" else (N, N)
    np.save(tmp_path / "A.npy", np.array(make(*arguments, "float64"), order=order))
    whole, parts, reports = tmp_path / "whole.npy", tmp_path / "parts.npy", []
    call_of(name, whole)(tmp_path / "A.npy")
    monkeypatch.setattr(slab, "BLOCK_BYTES", strip_bytes)
    call_of(name, parts, report=reports.append)(tmp_path / "A.npy")
    np.testing.assert_array_equal(np.load(whole), np.load(parts))
    assert reports[0].moved_bytes == reports[0].planned_bytes


@pytest.mark.parametrize("name", ["lu", "cholesky", "qr"])
def test_the_first_nan_of_a_later_slab_is_named(tmp_path, monkeypatch, strip_bytes, name):
    monkeypatch.setattr(slab, "BLOCK_BYTES", strip_bytes)
    a = np.asfortranarray(positive_definite(N, "float64"))
    a[51, 37], a[58, 55] = np.nan, np.inf
    a[37, 51], a[55, 58] = np.nan, np.inf
    np.save(tmp_path / "A.npy", a)
    arguments = {"lower": True} if name == "cholesky" else {}
    with pytest.raises(hdgemm.InputError, match="row 51, column 37"):
        call_of(name, tmp_path / "F.npy", **arguments)(tmp_path / "A.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


def test_columns_are_stored_while_later_ones_are_factored(tmp_path, monkeypatch):
    monkeypatch.setattr(slab, "BLOCK_BYTES", 1)
    monkeypatch.setattr("hdgemm.linalg.slabs.elimination.cores", lambda: 2)  # chunks of 80 columns
    np.save(tmp_path / "A.npy", np.asfortranarray(positive_definite(300, "float64")))
    stored, factor = threading.Event(), cholesky_elimination.factor_panel

    def wait_at_last(part, first, *others):
        assert first < 240 or stored.wait(120)
        return factor(part, first, *others)

    def observe(event):
        if event.stage == "store2":
            stored.set()

    monkeypatch.setattr(cholesky_elimination, "factor_panel", wait_at_last)
    options = hdgemm.Options(tile=(1, 300, 7), host_memory="30MB")
    cholesky(tmp_path / "A.npy", True, out=tmp_path / "L.npy", options=options, observer=observe)


def test_a_matrix_that_is_read_from_one_triangle_is_loaded_by_slabs(tmp_path, monkeypatch):
    monkeypatch.setattr(slab, "BLOCK_BYTES", 1)
    a, b, reports = positive_definite(N, "float64"), np.ones((N, 2)), []
    np.save(tmp_path / "A.npy", np.asfortranarray(a))
    x = solve(tmp_path / "A.npy", b, assume_a="sym", options=SLABS, report=reports.append)
    np.testing.assert_allclose(a @ x, b, rtol=1e-12)
    assert reports[0].moved_bytes == reports[0].planned_bytes


def test_rows_of_l_keep_their_order_while_columns_right_of_the_last_pivot_are_updated(
    tmp_path, monkeypatch
):
    """The first slab has two chunks left of the last pivot, and one right of it."""
    monkeypatch.setattr("hdgemm.linalg.slabs.elimination._WIDEST", 8)
    monkeypatch.setattr("hdgemm.linalg.slabs.elimination._NARROWEST", 8)
    m, update = 16, lu_elimination._ByColumns.update

    def update_late(self, chunk, *others):
        if chunk.place.first >= m:
            time.sleep(0.1)
        update(self, chunk, *others)

    monkeypatch.setattr(lu_elimination._ByColumns, "update", update_late)
    a = random_matrix(m, 24, "float64")
    np.save(tmp_path / "A.npy", a)
    options = hdgemm.Options(tile=(1, 24, 8), host_memory="30MB")
    lu, pivots = lu_factor(tmp_path / "A.npy", out=tmp_path / "LU.npy", options=options)
    assert ratio_of(np.array(lu), pivots, a) < SOUND


def forced_plan(monkeypatch, *, held, joined, copied=False):
    """Take two slab buffers, and give the last slab the memory of both."""

    def forced(*arguments, **named):
        found = plan_slabs(*arguments, **named | {"width": 23, "block": 7})
        slabs = found.slabs
        if joined:
            slabs = (*slabs[:-2], Columns(slabs[-2].first, slabs[-1].last, 0))
        copied_too = copied and named["storage"].copies and found.kind != "cholesky"
        return replace(found, slabs=slabs, slab_buffers=2, held=held, copied=copied_too)

    monkeypatch.setattr(factor_plan, "plan_slabs", forced)


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("name", ["lu", "cholesky", "qr"])
def test_a_slab_that_is_held_gives_the_bits_of_one_that_is_read(
    tmp_path, monkeypatch, strip_bytes, name, copied
):
    make = positive_definite if name == "cholesky" else random_matrix
    np.save(tmp_path / "A.npy", make(*(N,) if name == "cholesky" else (N, N), "float64"))
    monkeypatch.setattr(slab, "BLOCK_BYTES", strip_bytes)
    found = []
    for held in (False, True):
        out, reports = tmp_path / f"{held}.npy", []
        with monkeypatch.context() as patch:
            forced_plan(patch, held=held, joined=False, copied=copied)
            call_of(name, out, report=reports.append)(tmp_path / "A.npy")
        assert reports[0].moved_bytes == reports[0].planned_bytes
        found.append((np.load(out), reports[0].moved_bytes["load1"]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[1][1] < found[0][1]


@pytest.mark.parametrize("gap", [0, slab_plan.GAP], ids=["pieces", "gaps"])
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("shape", [(N, N), (120, 100), (N, 90)])
def test_the_last_slab_in_the_memory_of_both_buffers(
    tmp_path, monkeypatch, strip_bytes, shape, copied, gap
):
    monkeypatch.setattr(slab_plan, "GAP", gap)
    a, reports = random_matrix(*shape, "float64"), []
    np.save(tmp_path / "A.npy", a)
    monkeypatch.setattr(slab, "BLOCK_BYTES", strip_bytes)
    forced_plan(monkeypatch, held=True, joined=True, copied=copied)
    call = {"options": SLABS, "report": reports.append}
    lu, pivots = lu_factor(tmp_path / "A.npy", out=tmp_path / "LU.npy", **call)
    assert ratio_of(np.array(lu), pivots, a) < SOUND
    q, r = qr(tmp_path / "A.npy", out=(tmp_path / "Q.npy", tmp_path / "R.npy"), **call)
    assert np.abs(np.array(q) @ np.array(r) - a).max() < 1e-12
    assert all(report.moved_bytes == report.planned_bytes for report in reports)


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.7, 0.8])
@pytest.mark.parametrize("name", ["lu", "qr"])
def test_a_durable_run_with_held_slabs_goes_on_to_the_same_bits(tmp_path, monkeypatch, name, part):
    np.save(tmp_path / "A.npy", random_matrix(90, 90, "float64"))
    forced_plan(monkeypatch, held=True, joined=True)
    events = []
    call_of(name, tmp_path / "expected.npy", observer=events.append)(tmp_path / "A.npy")
    command = {"checkpoint": True, "options": hdgemm.Options(host_memory="30MB")}
    interrupt = interrupt_after(int(part * len(events)))
    stopped = call_of(name, tmp_path / "F.npy", observer=interrupt, **command)
    with pytest.raises(InterruptedRunError):
        stopped(tmp_path / "A.npy")
    call_of(name, tmp_path / "F.npy", **command)(tmp_path / "A.npy")
    expected, found = (np.load(tmp_path / f"{each}.npy") for each in ("expected", "F"))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_rows_of_u_beside_wide_blocks(tmp_path, dtype):
    """Blocks of 211 columns are solved by halves."""
    a = random_matrix(450, 450, dtype)
    np.save(tmp_path / "A.npy", a)
    options = hdgemm.Options(tile=(1, 225, 211), host_memory="30MB")
    lu, pivots = lu_factor(tmp_path / "A.npy", out=tmp_path / "LU.npy", options=options)
    assert ratio_of(np.array(lu), pivots, a) < SOUND
