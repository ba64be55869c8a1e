"""R from sums and by Householder's method, judged by the singular values of its columns."""

import numpy as np
import pytest
import scipy.linalg

from hdgemm.linalg.rows import r_factor
from hdgemm.linalg.rows.r_factor import RFactor
from hdgemm.linalg.rows.reducer import RowBlock
from hdgemm.linalg.rows.tsqr import Triangle
from tests.linalg.matrices import DTYPES, SOUND, random_matrix, widened

M, N, BLOCK = 700, 12, 70


@pytest.fixture(autouse=True)
def _short_strips(monkeypatch):
    monkeypatch.setattr(r_factor, "strip_rows", lambda _n, _dtype: 20)


@pytest.fixture
def ways(monkeypatch):
    """Return counts of the strips that went each way."""
    counts = dict.fromkeys(("_sum", "_reflect"), 0)

    def counted(name):
        original = getattr(RFactor, name)

        def way(self, *arguments, **keywords):
            found = original(self, *arguments, **keywords)
            counts[name] += found is not None or name == "_reflect"
            return found

        monkeypatch.setattr(RFactor, name, way)

    for name in counts:
        counted(name)
    return counts


def with_condition(exponent):
    u = np.linalg.qr(random_matrix(M, N, "float64"))[0]
    v = np.linalg.qr(random_matrix(N, N, "float64", 1))[0]
    return u * np.logspace(0, -exponent, N) @ v.T


def changed(change):
    a = random_matrix(M, N, "float64")
    change(a)
    return a


def zero(index):
    return lambda a: a.__setitem__(index, 0)


def scale(index, by):
    return lambda a: a.__setitem__(index, a[index] * by)


#: Matrices, and the way of most of their strips.
KINDS = {
    "even": (lambda: changed(lambda _: None), "_sum"),
    "columns of any norm": (lambda: changed(scale(slice(None), 8.0 ** -np.arange(N))), "_sum"),
    "zero columns": (lambda: changed(zero(np.s_[:, ::3])), "_sum"),
    "columns that begin late": (lambda: changed(zero(np.s_[:400, ::3])), "_sum"),
    "columns that grow late": (lambda: changed(scale(np.s_[:400, ::3], 1e-9)), "_sum"),
    "outliers": (lambda: changed(scale(np.s_[300::101], 1e6)), None),
    "growing rows": (lambda: changed(scale(slice(None), np.logspace(0, 15, M)[:, None])), None),
    "kappa 1e2": (lambda: with_condition(2), "_reflect"),
    "kappa 1e8": (lambda: with_condition(8), "_reflect"),
    "kappa 1e15": (lambda: with_condition(15), "_reflect"),
    "large mean": (lambda: random_matrix(M, N, "float64") + 1e3, "_reflect"),
    "equal columns": (
        lambda: np.repeat(random_matrix(M, N // 2, "float64"), 2, axis=1),
        "_reflect",
    ),
    "rank 0": (lambda: np.zeros((M, N)), "_reflect"),
}


def reduced(a, order="C", start=None):
    found = RFactor(a.shape[1], a.dtype) if start is None else start
    for first in range(0, len(a), BLOCK):
        block = np.array(a[first : first + BLOCK], order=order)
        found.update(RowBlock(first, block, block[:, :0]))
    return found


def assert_r_of(a, r):
    """Compare singular values, as they are and with all columns scaled to norm 1."""
    eps = np.finfo(a.dtype).eps
    np.testing.assert_array_equal(r, np.triu(r))
    norms = np.linalg.norm(widened(a), axis=0)
    norms[norms == 0] = 1
    for by in (1, norms):
        expected = scipy.linalg.svdvals(widened(a) / by)
        found = scipy.linalg.svdvals(widened(r) / by)
        assert np.abs(found - expected).max() <= SOUND * eps * max(expected)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_r_is_backward_stable_whichever_way_its_rows_go(kind, dtype, order, ways):
    make, way = KINDS[kind]
    a = make().astype(dtype)
    if np.dtype(dtype).kind == "c":
        a *= np.exp(1j * random_matrix(1, N, "float64", 5)).astype(dtype)
    before = a.copy()
    assert_r_of(a, reduced(a, order).r)
    np.testing.assert_array_equal(a, before)
    if way is not None and np.finfo(dtype).eps < 1e-10:
        assert max(ways, key=ways.get) == way


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_that_goes_on_has_the_same_bits(kind):
    a = KINDS[kind][0]()
    whole, parts = reduced(a), RFactor(N, a.dtype)
    for first in range(0, M, BLOCK):
        reduced(a[first : first + BLOCK], start=parts)
        arrays = {name: array.copy() for name, array in parts.arrays.items()}
        parts = RFactor(N, a.dtype)
        parts.restore(arrays)
    np.testing.assert_array_equal(parts.r, whole.r)


def with_b(found, a, b):
    for first in range(0, len(a), BLOCK):
        rows = slice(first, first + BLOCK)
        found.update(RowBlock(first, np.array(a[rows], order="F"), np.array(b[rows], order="F")))
    return found


#: Parts of B that are not in the range of A, in units of B.
NOISES = {"noise": 1.0, "little noise": 1e-3, "in the range of A": 0.0}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("kind", KINDS)
def test_right_hand_sides_are_reduced_as_by_householders_method(kind, noise, dtype):
    a = KINDS[kind][0]().astype(dtype)
    spread = max(1.0, np.abs(a).max())
    b = (widened(a) @ random_matrix(N, 3, dtype, 1)).astype(dtype)
    b += (NOISES[noise] * spread * random_matrix(M, 3, dtype, 2)).astype(dtype)
    found = with_b(RFactor(N, a.dtype, 3), a, b)
    expected = with_b(Triangle.zeros(N, 3, a.dtype), a, b)
    eps = np.finfo(dtype).eps
    assert_r_of(a, found.r)
    # A^H·B = R^H·Q^H·B, by columns.
    unit = np.linalg.norm(widened(a), axis=0)[:, None] * np.linalg.norm(widened(b), axis=0)
    wide = widened(found.r).conj().T @ widened(found.c)
    assert (np.abs(wide - widened(a).conj().T @ widened(b)) <= SOUND * M * eps * unit).all()
    assert found.rest.dtype == expected.rest.dtype
    # Residuals change by eps·||A||·||x||.
    x = np.linalg.lstsq(widened(a), widened(b), rcond=0)[0]
    sizes = np.linalg.norm(widened(b), axis=0)
    sizes += np.linalg.norm(widened(a)) * np.linalg.norm(x, axis=0)
    difference = widened(found.rest) - widened(expected.rest)
    assert (np.abs(difference) <= SOUND * M * eps * sizes).all()


def test_right_hand_sides_are_summed(ways):
    a, b = random_matrix(M, N, "float64"), random_matrix(M, 3, "float64", 1)
    with_b(RFactor(N, a.dtype, 3), a, b)
    assert ways["_sum"] > ways["_reflect"]


def test_two_factors_are_combined():
    a = random_matrix(M, N, "float64")
    first, second = reduced(a[:330]), reduced(a[330:])
    first.combine(second)
    assert_r_of(a, first.r)


def test_nan_reaches_r():
    a = random_matrix(M, N, "float64")
    a[500, 3] = np.nan
    assert np.isnan(reduced(a).r).any()


@pytest.mark.parametrize("by", [1e-300, 1e-160, 1e160, 1e300])
def test_squares_that_overflow_or_underflow_do_no_harm(by):
    a = random_matrix(M, N, "float64")
    assert_r_of(a, reduced(a * by).r / by)


def test_rows_that_are_tiny_beside_r_leave_a_triangle():
    a = random_matrix(M, N, "float64") * 1e120
    a[300:] *= 1e-280
    assert_r_of(a, reduced(a).r)


def test_the_norm_of_the_scaled_inverse_decides():
    r = np.asfortranarray(np.triu(random_matrix(N, N, "float64")) + 9 * np.eye(N))
    squares = (r**2).sum(axis=0)
    worst = np.linalg.norm(np.sqrt(squares)[:, None] * np.linalg.inv(r), 2) ** 2
    assert r_factor.limits_of(r) == pytest.approx(squares * r_factor._MOST / worst, rel=0.1)
    close = r.copy("F")
    close[:, 1] = close[:, 0] + 1e-3 * close[:, 1]
    assert r_factor.limits_of(close).size == 0
