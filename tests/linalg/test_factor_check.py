"""Random-vector checks of factors and solutions: sound ones pass, one wrong element fails."""

import numpy as np
import pytest

import hdgemm
from hdgemm import linalg
from hdgemm.linalg.factor_check import check_cholesky, check_lu, check_qr, check_solution
from tests.linalg.matrices import DTYPES, positive_definite, random_matrix

SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="20MB")
MEMORY = 20_000  # several blocks of columns


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40, 40), (40, 25), (25, 40)])
def test_lu(tmp_path, dtype, shape):
    a = random_matrix(*shape, dtype)
    lu, piv = linalg.lu_factor(a, out=tmp_path / "LU.npy", options=SLABS)
    assert check_lu(a, tmp_path / "LU.npy", memory=MEMORY).passed
    for row, col in ((3, 20), (20, 3), (shape[0] - 1, shape[1] - 1)):
        wrong = np.array(lu)
        wrong[row, col] += 1.0
        assert not check_lu(a, (wrong, piv), memory=MEMORY).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [False, True])
def test_cholesky(tmp_path, dtype, lower):
    a = positive_definite(40, dtype)
    one = np.tril(a) if lower else np.triu(a)  # the other triangle is not read
    linalg.cholesky(one, lower, out=tmp_path / "L.npy", options=SLABS)
    assert check_cholesky(one, tmp_path / "L.npy", memory=MEMORY).passed
    wrong = np.load(tmp_path / "L.npy")
    wrong[(30, 5) if lower else (5, 30)] += 1.0
    assert not check_cholesky(one, (wrong, lower), memory=MEMORY).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40, 40), (40, 25), (25, 40)])
def test_qr(tmp_path, dtype, shape):
    a = random_matrix(*shape, dtype)
    (qr, tau), _ = linalg.qr(a, mode="raw", out=tmp_path / "QR.npy", options=SLABS)
    assert check_qr(a, tmp_path / "QR.npy", memory=MEMORY).passed
    for row, col in ((3, 20), (20, 3), (shape[0] - 1, shape[1] - 1)):
        wrong = np.array(qr)
        wrong[row, col] += 1.0
        assert not check_qr(a, (wrong, tau), memory=MEMORY).passed
    assert not check_qr(a, (qr, tau + 0.1), memory=MEMORY).passed
    linalg.lu_factor(a, out=tmp_path / "LU.npy", options=SLABS)
    with pytest.raises(hdgemm.InputError, match="no QR"):
        check_qr(a, tmp_path / "LU.npy")


@pytest.mark.parametrize("dtype", DTYPES)
def test_solution(dtype):
    a, b = random_matrix(40, 40, dtype), random_matrix(40, 5, dtype, seed=1)
    x = linalg.solve(a, b)
    assert check_solution(a, b, x).passed
    x[7, 2] += 1.0
    assert not check_solution(a, b, x).passed


def test_nan_fails_and_shapes_are_checked():
    a = random_matrix(9, 9, "float64")
    lu, piv = linalg.lu_factor(a)
    assert not check_lu(a, (np.where(lu == lu[2, 2], np.nan, lu), piv)).passed
    with pytest.raises(hdgemm.InputError, match="its factors are"):
        check_lu(a[:5], (lu, piv))
    with pytest.raises(hdgemm.InputError, match="A is"):
        check_solution(a, np.ones((8, 1)), np.ones((9, 1)))
