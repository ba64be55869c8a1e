"""Arguments that every product takes: beta without C, locations, progress, cancel."""

import io
import logging
import sys
import threading
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

import hdgemm
from hdgemm.progress_view import NotebookBar, show_progress

A = np.random.default_rng(3).standard_normal((40, 30))
HOST = hdgemm.Options(devices="host", tile=(16, 16, 16))


@pytest.mark.parametrize("beta", [1, 0.5, 1j, np.float32(1), Fraction(1, 2), np.array(2.0), True])
@pytest.mark.parametrize("call", [hdgemm.multiply, hdgemm.plan])
def test_beta_needs_c(call, beta):
    with pytest.raises(hdgemm.InputError, match="no C"):
        call(A, A.T, beta=beta)


def test_multiply_without_out_would_throw_c_away():
    for more in ({}, {"c": np.zeros((40, 40)), "beta": 1}):
        with pytest.raises(hdgemm.InputError, match=r"give out=.*hdgemm\.matmul"):
            hdgemm.multiply(A, A.T, **more)


@pytest.mark.parametrize("beta", [0, 0.0, np.float64(0), False])
def test_beta_of_zero_needs_none(beta):
    assert hdgemm.multiply(A, A.T, beta=beta, out=np.empty((40, 40))).plan["m"] == 40


@pytest.mark.parametrize("n", [2**40, 2**30])
@pytest.mark.parametrize("call", ["syrk", "syr2k", "multiply", "plan", "linalg.plan"])
def test_a_result_of_more_bytes_than_offsets_count_is_refused(tmp_path, n, call):
    # Without columns, A takes no bytes.
    a = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float64, (n, 0))
    transposed = tmp_path / "a.npy"
    calls = {
        "syrk": lambda: hdgemm.syrk(1.0, transposed, out=tmp_path / "c.npy"),
        "syr2k": lambda: hdgemm.syr2k(1.0, transposed, a, out=tmp_path / "c.npy"),
        "multiply": lambda: hdgemm.multiply(a, transposed, trans_b=True, out=tmp_path / "c.npy"),
        "plan": lambda: hdgemm.plan(a, transposed, trans_b=True, out=tmp_path / "c.npy"),
        "linalg.plan": lambda: hdgemm.linalg.plan("syrk", a, out=tmp_path / "c.npy"),
    }
    with pytest.raises(hdgemm.InputError, match=f"C of {n}×{n} float64 has {n * n * 8} bytes"):
        calls[call]()
    assert not (tmp_path / "c.npy").exists()


@pytest.mark.parametrize("name", ["t.h5::C", "t.zarr::C"])
def test_an_item_of_a_store_is_returned_opened(tmp_path, name):
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}[name[2:].partition("::")[0]])
    c = hdgemm.matmul(A, A.T, out=tmp_path / name)
    assert c.shape == (40, 40)
    np.testing.assert_allclose(np.asarray(c), A @ A.T)
    np.testing.assert_allclose(np.asarray(c[3:5, :2]), (A @ A.T)[3:5, :2])


def calls(tmp_path):
    """Every public call that runs a product, with keywords."""
    out = np.empty((40, 40))
    plan = hdgemm.plan_gemm(40, 40, 30, options=HOST)
    return {
        "matmul": lambda **more: hdgemm.matmul(A, A.T, out=out, options=HOST, **more),
        "dgemm": lambda **more: hdgemm.dgemm(1.0, A, A.T, options=HOST, **more),
        "multiply": lambda **more: hdgemm.multiply(A, A.T, out=out, options=HOST, **more),
        "execute": lambda **more: hdgemm.execute(plan, A, A.T.copy(), out, **more),
    }


@pytest.mark.parametrize("name", ["matmul", "dgemm", "multiply", "execute"])
def test_progress_true_shows_the_run_on_standard_error(tmp_path, capsys, name):
    call = calls(tmp_path)[name]
    call(progress=True)
    shown = capsys.readouterr()
    assert f"{name} 100.0 %" in shown.err
    assert shown.out == ""
    call(progress=False)
    call(progress=None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["matmul", "dgemm", "multiply", "execute"])
def test_every_product_can_be_cancelled(tmp_path, name):
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(hdgemm.CancelledRunError):
        calls(tmp_path)[name](cancel=cancel)


@pytest.mark.parametrize(
    ("argument", "value"), [("progress", 5), ("observer", "yes"), ("cancel", True)]
)
def test_arguments_that_cannot_be_called_are_refused_by_name(tmp_path, argument, value):
    for call in calls(tmp_path).values():
        with pytest.raises(hdgemm.InputError, match=f"{argument} must be"):
            call(**{argument: value})


def test_the_view_ends_when_a_product_fails(capsys):
    with pytest.raises(hdgemm.InputError):
        hdgemm.multiply(A, A, out=np.empty((40, 40)), progress=True)
    assert "Traceback" not in capsys.readouterr().err


def test_a_notebook_gets_a_bar_of_its_own(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=lambda bar: shown.append(bar._repr_html_()))
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    display = SimpleNamespace(display=lambda *_, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert isinstance(show_progress("<C>"), NotebookBar)
    hdgemm.multiply(A, A.T, out=np.empty((40, 40)), options=HOST, progress=True)
    assert 'value="100.0"' in shown[-1]
    assert "multiply" in shown[-1]


def test_ipython_in_a_terminal_is_a_terminal(monkeypatch):
    ipython = SimpleNamespace(get_ipython=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not isinstance(show_progress("C"), NotebookBar)


def test_messages_go_to_loggers_below_hdgemm(caplog):
    caplog.set_level(logging.DEBUG)
    hdgemm.multiply(A, A.T, out=np.empty((40, 40)), options=HOST)
    assert all(
        record.name.startswith("hdgemm.")
        for record in caplog.records
        if "/hdgemm/" in record.pathname
    )
