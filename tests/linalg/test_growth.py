"""Matrices on which partial pivoting is weak or has much to interchange, in several slabs."""

import warnings

import numpy as np
import pytest
import scipy.linalg

import hdgemm
from hdgemm.linalg import lu_factor, solve
from tests.linalg.matrices import SOUND, norm1

N = 37
SLABS = hdgemm.Options(tile=(9, 8, 5), devices="host")


def gfpp():
    """Wilkinson's matrix: the last column doubles at each step (Higham, 2002, section 9.4)."""
    a = np.eye(N) - np.tri(N, k=-1)
    a[:, -1] = 1
    return a


def wright():
    """Multiple shooting for a two-point boundary value problem (Wright, 1993)."""
    step = scipy.linalg.expm(0.3 * np.array([[-1 / 6, 1], [1, -1 / 6]]))
    blocks = N // 2 + 1
    a = np.eye(2 * blocks)
    for block in range(1, blocks):
        a[2 * block : 2 * block + 2, 2 * block - 2 : 2 * block] = -step
    a[:2, -2:] = np.eye(2)
    return a


def foster():
    """Quadrature of a Volterra integral equation (Foster, 1994)."""
    c, h, k = 1.0, 40.0 / (N - 1), 1.0
    a = np.eye(N)
    a[1:, 0] = -k * h / 2
    for row in range(1, N):
        a[row, 1:row] = -k * h
    a[np.arange(1, N), np.arange(1, N)] = 1 - k * h / 2
    a[:, -1] -= 1 / c
    return a


def randsvd(condition):
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((N, N)))[0] for _ in range(2))
    return u * np.geomspace(1, 1 / condition, N) @ v


def permutation(kind):
    order = {
        "reversed": np.arange(N)[::-1],
        "cyclic": np.roll(np.arange(N), 11),
        "random": np.random.default_rng(1).permutation(N),
    }[kind]
    return np.eye(N)[order]


def zero_columns():
    a = np.random.default_rng(2).standard_normal((N, N))
    a[:, [0, 17, N - 1]] = 0
    return a


MATRICES = {
    "gfpp": gfpp,
    "wright": wright,
    "foster": foster,
    "randsvd 1e2": lambda: randsvd(1e2),
    "randsvd 0.1/eps": lambda: randsvd(0.1 / np.finfo(float).eps),
    "near overflow": lambda: randsvd(10) * 1e300,
    "near underflow": lambda: randsvd(10) * 1e-290,
    "badly scaled rows": lambda: np.geomspace(1e-12, 1e12, N)[:, np.newaxis] * randsvd(10),
    "reversed": lambda: permutation("reversed"),
    "cyclic": lambda: permutation("cyclic"),
    "random permutation": lambda: permutation("random"),
    "zero columns": zero_columns,
}


def factors_of(lu):
    return np.tril(lu, -1) + np.eye(len(lu)), np.triu(lu)


@pytest.mark.parametrize("name", MATRICES)
def test_factors_are_as_good_as_lapacks(tmp_path, name):
    a = MATRICES[name]()
    np.save(tmp_path / "A.npy", a)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        lu, pivots = lu_factor(tmp_path / "A.npy", options=SLABS)
        expected, expected_pivots = scipy.linalg.lu_factor(a)
    rows = a.copy()
    for i, pivot in enumerate(pivots):
        rows[[i, pivot]] = rows[[pivot, i]]
    lower, upper = factors_of(lu)
    assert np.abs(lower).max() <= 1
    # The bound of Gaussian elimination, in which growth shows: n·eps·||L||·||U||.
    scale = np.abs(a).max()
    error = norm1(lower @ (upper / scale) - rows / scale)
    assert error < SOUND * len(a) * np.finfo(float).eps / 2 * norm1(lower) * norm1(upper / scale)
    growth, peer = (np.abs(np.triu(x)).max() / scale for x in (lu, expected))
    assert growth <= 2 * peer
    if name in ("gfpp", "reversed", "cyclic", "random permutation"):
        np.testing.assert_array_equal(pivots, expected_pivots)
        np.testing.assert_array_equal(lu, expected)


@pytest.mark.parametrize("refine", [None, "float32"])
@pytest.mark.parametrize("name", [name for name in MATRICES if name != "zero columns"])
def test_solutions_are_as_good_as_scipys(tmp_path, name, refine):
    a = MATRICES[name]()
    np.save(tmp_path / "A.npy", a)
    b = np.random.default_rng(3).standard_normal(len(a))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        expected = scipy.linalg.solve(a, b)
    x = solve(tmp_path / "A.npy", b, refine=refine, options=SLABS)
    ratio, peer = (_backward_error(a, y, b) for y in (x, expected))
    # A factorisation of a matrix with growth is not backward stable, SciPy's neither.
    assert ratio < max(1.0, 4 * peer)


def _backward_error(a, x, b):
    """||b - A·x|| / (n·eps·||A||·||x||) in infinity norms."""
    scale = np.abs(a).max()
    size = np.abs(a / scale).sum(axis=1).max() * np.abs(x).max()
    return np.abs(a / scale @ x - b / scale).max() / (len(a) * np.finfo(float).eps / 2 * size)
