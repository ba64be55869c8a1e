"""Matrices on which partial pivoting is weak or has much to interchange, in several slabs."""

import warnings
from functools import partial

import numpy as np
import pytest
import scipy.linalg

import hdgemm
from bench.gallery import GALLERY
from hdgemm.linalg import lu_factor, solve
from tests.linalg.matrices import SOUND, norm1

N = 37
SLABS = hdgemm.Options(tile=(9, 8, 5), devices="host")


MATRICES = {name: partial(make, N) for name, make in GALLERY.items()}


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
