"""The host's gemm by address, from NumPy's BLAS or SciPy's, and its number of threads."""

import os
import sys
import threading

import numpy as np
import pytest

import hdgemm
from hdgemm.errors import InputError
from hdgemm.pipeline.devices import host_blas
from hdgemm.pipeline.devices.host_blas import SINGLE_THREADED, Gemm, Routine, routine_for
from tests.reference import DTYPES


@pytest.fixture(autouse=True)
def searched_anew():
    routine_for.cache_clear()
    yield
    routine_for.cache_clear()


def blas_threads():
    return [setting.get() for setting in host_blas._settings(host_blas._NUMPY)]


@pytest.fixture
def two_threads():
    before = blas_threads()
    for setting in host_blas._settings(host_blas._NUMPY):
        setting.set(2)
    yield
    for setting, threads in zip(host_blas._settings(host_blas._NUMPY), before, strict=True):
        setting.set(threads)


def product(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """C := 2·A·B - C on views whose leading dimension is not their width."""
    rng = np.random.default_rng(7)
    real, imaginary = rng.standard_normal((2, 3, 9, 20))
    a, b, c = (real + 1j * imaginary if dtype[0] == "c" else real).astype(dtype)
    m, n, k = 5, 7, 9
    expected = 2 * a[:m, :k] @ b[:k, :n] - c[:m, :n]
    scalars = np.array([2, -1]).astype(dtype)
    addresses = (x.ctypes.data for x in (a, b, c))
    placed = [value for address in addresses for value in (address, 20)]
    Gemm(routine_for(c.dtype), scalars, False, False, m, n, k, *placed).run()
    return c[:m, :n], expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extension", [host_blas._NUMPY, "numpy.no_such_extension"])
def test_gemm_accumulates_into_views(dtype, extension, monkeypatch):
    monkeypatch.setattr(host_blas, "_NUMPY", extension)
    found, expected = product(dtype)
    eps = np.finfo(dtype).eps
    assert np.max(np.abs(found - expected)) <= 4 * 9 * eps * np.max(np.abs(expected))


def test_a_library_without_the_names_leads_to_scipy(monkeypatch):
    monkeypatch.setattr(host_blas, "_SPELLINGS", (("no_", "_such", 1),))
    assert routine_for(np.dtype("d")).largest == 2**31 - 1


def test_numpys_own_blas_is_taken_where_it_shows_its_names(monkeypatch):
    if host_blas._from_numpy("dgemm") is None:
        pytest.skip("NumPy here is linked to a BLAS that hides its names")
    monkeypatch.setitem(sys.modules, "scipy", None)  # an import of it would fail
    assert all(routine_for(np.dtype(dtype)) for dtype in DTYPES)


def test_extents_beyond_the_integers_of_blas_are_refused():
    routine = Routine(lambda *_: None, 2**31 - 1)
    gemm = Gemm(routine, np.ones(2), False, False, 1, 1, 1, 0, 2**31, 0, 1, 0, 1)
    with pytest.raises(InputError, match=r"2,147,483,648 .* Options\(tile"):
        gemm.check()


def test_libraries_are_looked_for_once_and_when_scipys_is_loaded(monkeypatch, two_threads):
    looks = []
    controller = host_blas.ThreadpoolController
    monkeypatch.setattr(
        host_blas, "ThreadpoolController", lambda: looks.append(None) or controller()
    )
    monkeypatch.setattr(host_blas, "_SCIPYS_BLAS", "a_module_that_nothing_imports")
    host_blas._loaded_blas.cache_clear()
    for _ in range(2):
        with host_blas.blas_threads(1):
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {2}
    assert len(looks) == 1
    monkeypatch.setitem(sys.modules, "a_module_that_nothing_imports", sys)
    with host_blas.blas_threads(1):
        assert set(blas_threads()) == {1}
    assert len(looks) == 2
    host_blas._loaded_blas.cache_clear()


class TestSingleThreaded:
    """The caller's number of BLAS threads returns, whatever happens."""

    def test_nested_contexts(self, two_threads):
        with SINGLE_THREADED:
            with SINGLE_THREADED:
                assert set(blas_threads()) == {1}
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {2}

    def test_an_error_inside(self, two_threads):
        with pytest.raises(KeyboardInterrupt), SINGLE_THREADED:
            raise KeyboardInterrupt
        assert set(blas_threads()) == {2}

    def test_contexts_that_overlap_in_two_threads(self, two_threads):
        entered, leave = threading.Event(), threading.Event()

        def hold():
            with SINGLE_THREADED:
                entered.set()
                leave.wait()

        thread = threading.Thread(target=hold)
        with SINGLE_THREADED:
            thread.start()
            entered.wait()
        assert set(blas_threads()) == {1}
        leave.set()
        thread.join()
        assert set(blas_threads()) == {2}

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_has_the_callers_number(self, two_threads):
        with SINGLE_THREADED:
            child = os.fork()
            if child == 0:
                os._exit(0 if set(blas_threads()) == {2} else 1)
            assert os.waitpid(child, 0)[1] == 0
        assert set(blas_threads()) == {2}


@pytest.mark.parametrize(
    ("shape", "loaded", "threads"),
    [((40, 16), True, 1), ((3, 40), True, 1), ((40, 17), True, 2), ((40, 16), False, 2)],
)
def test_few_columns_of_loaded_tiles_are_multiplied_in_one_thread(
    monkeypatch, tmp_path, two_threads, shape, loaded, threads
):
    m, n, k = *shape, 50
    a, b = np.ones((m, k)), np.ones((k, n))
    if loaded:
        np.save(tmp_path / "A.npy", a)
        np.save(tmp_path / "B.npy", b)
        a, b = tmp_path / "A.npy", tmp_path / "B.npy"
    seen, run = [], Gemm.run
    monkeypatch.setattr(Gemm, "run", lambda gemm: (seen.extend(blas_threads()), run(gemm)))
    options = hdgemm.Options(devices="host", tile=(min(m, 20), n, 25))
    if loaded:
        hdgemm.multiply(a, b, out=tmp_path / "C.npy", options=options)
    else:
        hdgemm.multiply(a, b, out=np.empty((m, n)), options=options)
    assert set(seen) == {threads}
    assert set(blas_threads()) == {2}
