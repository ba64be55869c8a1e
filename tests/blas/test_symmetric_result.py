"""Both triangles of a rank update, and the warning of an A·A^T that is much larger than A."""

import threading

import numpy as np
import pytest

import hdgemm
from hdgemm.blas import rank_update
from tests.linalg.matrices import DTYPES, random_matrix


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("routine", ["syrk", "herk"])
def test_both_triangles_are_stored(tmp_path, monkeypatch, routine, lower, dtype):
    monkeypatch.setattr(rank_update, "_MIRRORED", 5)
    a = random_matrix(40, 12, dtype)
    np.save(tmp_path / "A.npy", a)
    hermitian = routine == "herk"
    trans = 2 if hermitian and a.dtype.kind == "c" else 1
    found = getattr(hdgemm, routine)(
        1.0, tmp_path / "A.npy", trans=trans, lower=lower, symmetric=True, out=tmp_path / "C.npy"
    )
    expected = (a.conj() if hermitian else a).T @ a
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1000 * np.finfo(dtype).eps * scale)
    np.testing.assert_array_equal(found, found.conj().T if hermitian else found.T)
    plain = getattr(hdgemm, routine)(1.0, a, trans=trans, lower=lower)
    assert not np.array_equal(plain, plain.T)


def test_an_existing_result_is_updated_and_mirrored():
    a, c = random_matrix(9, 4, "float64"), random_matrix(9, 9, "float64", 1)
    found = hdgemm.syrk(2.0, a, 0.5, c.copy(), lower=1, symmetric=True)
    whole = np.tril(c) + np.tril(c, -1).T
    np.testing.assert_allclose(found, 2 * a @ a.T + 0.5 * whole, rtol=1e-12, atol=1e-12)


def test_cancelling_while_the_triangle_is_copied_publishes_nothing(tmp_path):
    cancel = threading.Event()
    with pytest.raises(hdgemm.CancelledRunError):
        hdgemm.syrk(
            1.0, np.ones((40, 3)), trans=1, symmetric=True, out=tmp_path / "C.npy", cancel=cancel,
            observer=lambda _event: cancel.set(),
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_much_larger_result_warns_of_the_other_product(monkeypatch):
    monkeypatch.setattr(rank_update, "_LARGE_BYTES", 1000)
    a = np.ones((50, 2))
    with pytest.warns(RuntimeWarning, match=r"A is 50×2, and A·A\^T takes .* pass trans=1"):
        hdgemm.syrk(1.0, a)
    with pytest.warns(RuntimeWarning, match="pass trans=2"):
        hdgemm.herk(1.0, a.astype(complex))
    hdgemm.syrk(1.0, a, trans=1)
    hdgemm.syrk(1.0, a.T)
