"""Strips of slabs: loaded, computed, stored and read again one after the other."""

import threading

import numpy as np
import pytest

import hdgemm
from hdgemm.linalg import cholesky, cholesky_elimination, lu_factor, qr, slab
from tests.linalg.matrices import positive_definite, random_matrix

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
    monkeypatch.setattr(slab, "_STRIP_BYTES", strip_bytes)
    call_of(name, parts, report=reports.append)(tmp_path / "A.npy")
    np.testing.assert_array_equal(np.load(whole), np.load(parts))
    assert reports[0].moved_bytes == reports[0].planned_bytes


@pytest.mark.parametrize("name", ["lu", "cholesky", "qr"])
def test_the_first_nan_of_a_later_slab_is_named(tmp_path, monkeypatch, strip_bytes, name):
    monkeypatch.setattr(slab, "_STRIP_BYTES", strip_bytes)
    a = np.asfortranarray(positive_definite(N, "float64"))
    a[51, 37], a[58, 55] = np.nan, np.inf
    a[37, 51], a[55, 58] = np.nan, np.inf
    np.save(tmp_path / "A.npy", a)
    arguments = {"lower": True} if name == "cholesky" else {}
    with pytest.raises(hdgemm.InputError, match="row 51, column 37"):
        call_of(name, tmp_path / "F.npy", **arguments)(tmp_path / "A.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


def test_columns_are_stored_while_later_ones_are_factored(tmp_path, monkeypatch):
    monkeypatch.setattr(slab, "_STRIP_BYTES", 1)
    monkeypatch.setattr("hdgemm.linalg.elimination.cores", lambda: 2)  # chunks of 80 columns
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
