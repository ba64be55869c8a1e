"""LAPACK's matrix types for every factorisation and solve, dtype by dtype, with tiny slabs."""

import warnings

import numpy as np
import pytest
import scipy.linalg

import hdgemm
from hdgemm import linalg
from tests.linalg.matrices import DTYPES, SOUND, norm1, random_matrix, widened

N = 23
SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="20MB")
#: Condition numbers are parts of 1/eps; sizes as in LAPACK's tests (dlatb4).
CONDITIONS = {"well conditioned": lambda eps: 2, "ill": lambda eps: (0.1 / eps) ** 0.5,
              "worst": lambda eps: 0.1 / eps}  # fmt: skip
TYPES = ("diagonal", "upper", "lower", "near underflow", "near overflow", *CONDITIONS)
SINGULAR = ("first column zero", "last column zero", "half of the columns zero")


def scale_of(kind, dtype):
    small = 0.25 * np.finfo(dtype).tiny / (np.finfo(dtype).eps / 2)
    return {"near underflow": small, "near overflow": 1 / small}.get(kind, np.float64(1))


def matrix(kind, dtype, rows=N, *, definite=False):
    """Return a matrix of a type; a `definite` one is Hermitian with positive eigenvalues."""
    wide = "complex128" if np.dtype(dtype).kind == "c" else "float64"
    condition = CONDITIONS.get(kind, lambda eps: 2)(np.finfo(dtype).eps / 2)
    u = np.linalg.qr(random_matrix(rows, N, wide))[0]
    v = u if definite else np.linalg.qr(random_matrix(N, N, wide, 1))[0]
    values = np.geomspace(1, 1 / condition, N)
    a = u * values @ v.conj().T
    if kind == "diagonal":
        a = np.eye(rows, N) * values
    elif kind in ("upper", "lower"):
        a = np.triu(a, 1) if kind == "upper" else np.tril(a, -1)
        a += np.eye(rows, N)
    zeros = {"first column zero": [0], "last column zero": [N - 1],
             "half of the columns zero": range(N // 2, N)}.get(kind, [])  # fmt: skip
    a[:, list(zeros)] = 0
    return (a * scale_of(kind, dtype)).astype(dtype)


def assert_sound(error, unit, a):
    assert norm1(error) <= SOUND * len(a) * np.finfo(a.dtype).eps / 2 * unit


@pytest.fixture
def stored(tmp_path):
    def store(a):
        np.save(tmp_path / "A.npy", a)
        return tmp_path / "A.npy"

    return store


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", TYPES + SINGULAR)
def test_factorisations(tmp_path, stored, kind, dtype):
    a, scale = matrix(kind, dtype), scale_of(kind, dtype)
    whole = widened(a) / scale
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        lu, pivots = linalg.lu_factor(stored(a), out=tmp_path / "F.npy", options=SLABS)
    rows, lu = whole.copy(), widened(lu)
    for row, other in enumerate(pivots):
        rows[[row, other]] = rows[[other, row]]
    error = (np.tril(lu, -1) + np.eye(N)) @ (np.triu(lu) / scale) - rows
    assert_sound(error, norm1(whole), a)
    q, r = map(widened, linalg.qr(stored(a), options=SLABS))
    assert_sound(q @ (r / scale) - whole, norm1(whole), a)
    assert_sound(q.conj().T @ q - np.eye(N), 1, a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in ("upper", "lower")])
@pytest.mark.parametrize("lower", [False, True])
def test_cholesky(tmp_path, stored, kind, dtype, lower):
    a, scale = matrix(kind, dtype, definite=True), scale_of(kind, dtype)
    if kind == "worst":  # its rounded elements need not be definite
        a += np.asarray(N * np.finfo(dtype).eps * np.eye(N), dtype)
    factor = linalg.cholesky(stored(a), lower, out=tmp_path / "F.npy", options=SLABS)
    left = widened(factor if lower else factor.conj().T) / np.sqrt(scale)
    whole = widened(a) / scale
    assert_sound(left @ left.conj().T - whole, norm1(whole), a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", TYPES)
def test_solves(stored, kind, dtype):
    a, scale = matrix(kind, dtype), scale_of(kind, dtype)
    whole = widened(a) / scale
    expected = random_matrix(N, 2, whole.dtype, 2)
    b = (whole @ expected * scale).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        x = widened(linalg.solve(stored(a), b, options=SLABS))
        inverse = widened(linalg.inv(stored(a), options=SLABS)) * scale
    assert_sound(whole @ x - widened(b) / scale, norm1(whole) * norm1(x), a)
    assert_sound(whole @ inverse - np.eye(N), norm1(whole) * norm1(inverse), a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", TYPES + SINGULAR)
def test_least_squares(stored, kind, dtype):
    a, scale = matrix(kind, dtype, 3 * N), scale_of(kind, dtype)
    b = random_matrix(3 * N, 2, dtype, 2)
    whole, right = widened(a) / scale, widened(b)
    found, _, rank, _ = linalg.lstsq(stored(a), b, options=SLABS)
    x = widened(found) * scale
    assert rank == np.linalg.matrix_rank(whole, tol=np.finfo(dtype).eps)
    unit = norm1(whole) * (norm1(whole) * norm1(x) + norm1(right))
    assert_sound(whole.conj().T @ (right - whole @ x), unit, a)
