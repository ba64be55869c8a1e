"""The array API's linear algebra, by the properties that array-api-tests checks, by their names.

array-api-tests is on no package index; `test_linalg.py` there checks shapes, dtypes, the fields of
results, and that factors multiply to the matrix.
"""

from __future__ import annotations

import numpy as np
import pytest

import hdgemm
from hdgemm import array_api
from hdgemm.errors import InputError, InputTypeError

strict = pytest.importorskip("array_api_strict")
dask = pytest.importorskip("dask.array")
pytest.importorskip("array_api_compat")

DTYPES = ("float32", "float64", "complex64", "complex128")
LIBRARIES = {"numpy": np, "strict": strict, "dask": dask}
#: Functions of the extension `linalg` of the standard, 2024.12.
STANDARD = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


@pytest.fixture(params=LIBRARIES)
def xp(request):
    return LIBRARIES[request.param]


def values(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def same(xp, found, expected, dtype):
    """Compare an array of a library with NumPy's: type, shape, dtype and elements."""
    assert type(found) is type(xp.asarray(expected))
    found = np.asarray(found)
    assert found.shape == expected.shape
    assert found.dtype == dtype
    tolerance = 100 * np.finfo(dtype).eps
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * 10)


def test_every_function_of_the_standard_is_there_or_refused():
    assert set(STANDARD) == (set(array_api.__all__) - {"REFUSED"}) | set(array_api.REFUSED)


@pytest.mark.parametrize("name", array_api.REFUSED)
def test_a_refused_function_names_what_to_call(name):
    with pytest.raises(AttributeError, match="use "):
        getattr(array_api, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_square(xp, dtype):
    a = values((5, 5), dtype) + 5 * np.eye(5, dtype=dtype)
    positive, real = a @ a.conj().T, np.zeros(0, dtype).real.dtype
    x, b = xp.asarray(a), values((5, 2), dtype, 1)
    same(xp, array_api.inv(x), np.linalg.inv(a), dtype)
    same(xp, array_api.det(x), np.asarray(np.linalg.det(a)), dtype)
    for upper in (False, True):
        factor = array_api.cholesky(xp.asarray(positive), upper=upper)
        same(xp, factor, np.linalg.cholesky(positive, upper=upper), dtype)
    for right in (b, b[:, 0]):
        same(xp, array_api.solve(x, xp.asarray(right)), np.linalg.solve(a, right), dtype)
    found = array_api.slogdet(x)
    sign, logarithm = np.linalg.slogdet(a)
    same(xp, found.sign, np.asarray(sign), dtype)
    same(xp, found.logabsdet, np.asarray(logarithm), real)


@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (4, 4), (1, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rectangular(xp, dtype, shape):
    a = values(shape, dtype)
    x, real, least = xp.asarray(a), np.zeros(0, dtype).real.dtype, min(shape)
    same(xp, array_api.pinv(x), np.linalg.pinv(a), dtype)
    same(xp, array_api.svdvals(x), np.linalg.svd(a, compute_uv=False), real)
    for full in (False, True):
        q, r = map(np.asarray, array_api.qr(x, mode="complete" if full else "reduced"))
        k = shape[0] if full else least
        assert (q.shape, r.shape) == ((shape[0], k), (k, shape[1]))
        same(np, q @ r, a, dtype)
        same(np, np.tril(r, -1), np.zeros_like(r), dtype)
    u, s, vh = map(np.asarray, array_api.svd(x, full_matrices=False))
    assert (u.shape, vh.shape) == ((shape[0], least), (least, shape[1]))
    same(np, (u * s) @ vh, a, dtype)
    for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
        expected = np.asarray(np.linalg.norm(a, order))
        same(xp, array_api.matrix_norm(x, ord=order), expected, real)
    kept = array_api.matrix_norm(x, keepdims=True)
    assert tuple(kept.shape) == (1, 1)


@pytest.mark.parametrize("dtype", [*DTYPES, "int64"])
@pytest.mark.parametrize(
    "shapes", [((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 2))]
)
def test_matmul(dtype, shapes):
    a, b = (values(shape, "float64", seed) * 9 for seed, shape in enumerate(shapes))
    a, b = a.astype(dtype), b.astype(dtype)
    found = array_api.matmul(strict.asarray(a), strict.asarray(b))
    assert isinstance(found, type(strict.asarray(a)))
    assert np.asarray(found).dtype == dtype
    np.testing.assert_allclose(np.asarray(found), a @ b, rtol=1e-4, atol=1e-4)


def test_what_is_refused():
    x = strict.asarray(np.eye(3))
    with pytest.raises(InputError, match="stacks"):
        array_api.inv(strict.asarray(np.ones((2, 3, 3))))
    with pytest.raises(InputTypeError, match="dtype"):
        array_api.inv(strict.asarray(np.eye(3, dtype=np.int64)))
    with pytest.raises(InputTypeError, match="one library"):
        array_api.solve(x, np.eye(3))
    with pytest.raises(InputTypeError, match="one library"):
        array_api.inv([[1.0]])
    with pytest.raises(InputError, match="full_matrices=False"):
        array_api.svd(strict.asarray(np.ones((3, 2))))
    with pytest.raises(InputError, match="mode"):
        array_api.qr(x, mode="r")


@pytest.mark.parametrize("library", ["strict", "dask"])
def test_linalg_returns_arrays_of_the_callers_library(library):
    xp = LIBRARIES[library]
    a = np.random.default_rng(5).standard_normal((6, 6))
    x = xp.asarray(a)
    q, r = hdgemm.linalg.qr(x)
    solution = hdgemm.linalg.solve(x, xp.asarray(a[:, :2]))
    for found in (q, r, solution, hdgemm.linalg.svdvals(x)):
        assert type(found) is type(x)
    np.testing.assert_allclose(np.asarray(q) @ np.asarray(r), a, atol=1e-12)
    np.testing.assert_allclose(np.asarray(solution), np.eye(6, 2), atol=1e-12)
    assert type(hdgemm.linalg.det(x)) is float


def test_linalg_returns_numpy_of_operands_of_two_libraries(tmp_path):
    a, out = np.diag([1.0, 2.0, 4.0]), np.zeros((3, 3))
    x = strict.asarray(a)
    assert type(hdgemm.linalg.solve(x, a)) is np.ndarray
    assert hdgemm.linalg.inv(x, out=out) is out
    np.save(tmp_path / "A.npy", a)
    assert type(hdgemm.linalg.inv(hdgemm.open(tmp_path / "A.npy"))) is np.ndarray
    # Factors are hdgemm's own values; what they solve is the right-hand side's kind.
    factors = hdgemm.linalg.lu_factor(x)
    assert type(factors.lu) is np.ndarray
    assert type(hdgemm.linalg.lu_solve(factors, x)) is type(x)
