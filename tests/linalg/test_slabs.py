"""Strips of slabs: loaded, computed, stored and read again one after the other."""

import threading
import time

import numpy as np
import pytest

import hdgemm
from hdgemm.linalg import cholesky, lu_factor, qr, solve
from hdgemm.linalg.slabs import cholesky as cholesky_elimination, lu as lu_elimination, slab
from tests.linalg.matrices import SOUND, positive_definite, random_matrix
from tests.linalg.test_tournament import ratio_of

N = 60
SLABS = hdgemm.Options(tile=(1, 23, 7), host_memory="30MB")


def call_of(name, out, **arguments):
    if name == "qr":
        return lambda a: qr(a, mode="raw", out=(out, None), options=SLABS, **arguments)
    call = {"lu": lu_factor, "cholesky": cholesky}[name]
    return lambda a: call(a, out=out, options=SLABS, **arguments)


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
