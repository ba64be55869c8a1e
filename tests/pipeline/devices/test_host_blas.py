"""The host's BLAS by address: NumPy's own, and SciPy's where NumPy's is not to be found."""

import ctypes
import sys

import numpy as np
import pytest

from hdgemm.pipeline.devices import host_blas
from hdgemm.pipeline.devices.host_blas import find_routines

NAMES = {"f": "float32", "d": "float64", "F": "complex64", "D": "complex128"}


def product(routines, char: str) -> tuple[np.ndarray, np.ndarray]:
    """C := 2·A·B - C on views whose leading dimension is not their width."""
    rng = np.random.default_rng(7)
    real, imaginary = rng.standard_normal((2, 3, 9, 20))
    stored = real + 1j * imaginary if char in "FD" else real
    a, b, c = stored.astype(NAMES[char])
    m, n, k = 5, 7, 9
    expected = 2 * a[:m, :k] @ b[:k, :n] - c[:m, :n]
    scalars = np.array([2, -1]).astype(NAMES[char])
    integers = [ctypes.byref(ctypes.c_int64(value)) for value in (n, m, k, 20)]
    routines[char].call(
        b"N", b"N", *integers[:3], scalars.ctypes.data, b.ctypes.data, integers[3],
        a.ctypes.data, integers[3], scalars.ctypes.data + scalars.itemsize, c.ctypes.data,
        integers[3],
    )  # fmt: skip
    return c[:m, :n], expected


@pytest.mark.parametrize("char", NAMES)
@pytest.mark.parametrize("extension", [host_blas._EXTENSION, "numpy.no_such_extension"])
def test_gemm_accumulates_into_views(char, extension, monkeypatch):
    monkeypatch.setattr(host_blas, "_EXTENSION", extension)
    found, expected = product(find_routines(), char)
    eps = np.finfo(NAMES[char]).eps
    assert np.max(np.abs(found - expected)) <= 4 * 9 * eps * np.max(np.abs(expected))


def test_a_library_without_the_names_leads_to_scipy(monkeypatch):
    monkeypatch.setattr(host_blas, "_NAMES", (("no_", "_such", 1),))
    assert {routine.most for routine in find_routines().values()} == {2**31 - 1}


def test_numpys_own_blas_is_taken_where_it_shows_its_names(monkeypatch):
    if host_blas._of_numpy("dgemm") is None:
        pytest.skip("NumPy here is linked to a BLAS that hides its names")
    monkeypatch.setitem(sys.modules, "scipy", None)  # an import of it would fail
    assert set(find_routines()) == set(NAMES)
