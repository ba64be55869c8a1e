"""LU with tournament pivoting: in memory, by slabs, and by blocks of rows."""

import warnings

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.fortran import laswp
from hdgemm.linalg import lu_factor
from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.tasks.tournament import choose_pivots, factor_tournament
from tests.linalg.matrices import DTYPES, SOUND, random_matrix, residual_ratio, widened
from tests.linalg.test_growth import MATRICES

SLABS = hdgemm.Options(tile=(9, 8, 5), devices="host")


def error_of(lu, pivots, a):
    """Return L·U - P·A."""
    k = min(a.shape)
    lower = np.tril(widened(lu)[:, :k], -1) + np.eye(len(a), k)
    rows = np.array(widened(a), order="F")
    laswp(rows, pivots)
    return lower @ np.triu(widened(lu)[:k]) - rows


def ratio_of(lu, pivots, a):
    """LAPACK's ratio; a power of two keeps matrices near the ends of the range apart from them."""
    scale = 2.0 ** -int(np.frexp(np.abs(a).max())[1])
    scaled = np.tril(widened(lu), -1) + np.triu(widened(lu)) * scale
    return residual_ratio(error_of(scaled, pivots, a * scale).astype(a.dtype), a * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40, 40), (57, 23), (23, 57), (1, 4), (4, 1), (300, 3)])
@pytest.mark.parametrize(("panel", "leaf"), [(5, 9), (7, 7), (4, 2), (64, 1024)])
def test_factors_are_sound(dtype, shape, panel, leaf):
    a = random_matrix(*shape, dtype)
    lu = np.array(a, order="F")
    pivots, zero = factor_tournament(lu, panel, leaf)
    assert residual_ratio(error_of(lu, pivots, a), a) < SOUND
    assert zero == 0
    assert (pivots >= np.arange(len(pivots))).all()


def test_one_leaf_is_partial_pivoting():
    a = random_matrix(50, 50, "float64")
    lu = np.array(a, order="F")
    pivots, _ = factor_tournament(lu, 50, 50)
    expected, expected_pivots = scipy.linalg.lu_factor(a)
    np.testing.assert_array_equal(pivots, expected_pivots)
    np.testing.assert_allclose(lu, expected, rtol=1e-9)


@pytest.mark.parametrize("name", MATRICES)
def test_the_gallery_is_sound(tmp_path, name):
    a = MATRICES[name]()
    np.save(tmp_path / "A.npy", a)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        lu, pivots = lu_factor(tmp_path / "A.npy", pivoting="tournament", options=SLABS)
    assert ratio_of(lu, pivots, a) < SOUND


@settings(deadline=None, max_examples=60)
@given(st.permutations(range(13)), st.integers(1, 13), st.integers(1, 13))
def test_permutations_are_factored_without_error(order, panel, leaf):
    a = np.eye(13)[list(order)]
    lu = np.array(a, order="F")
    pivots, zero = factor_tournament(lu, panel, leaf)
    assert not error_of(lu, pivots, a).any()
    assert zero == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 6), st.integers(1, 7))
def test_singular_matrices_keep_their_product(seed, rows, cols, leaf):
    """Small integers: many exact zeros among the pivots."""
    a = np.random.default_rng(seed).integers(-1, 2, (rows, cols)).astype(float)
    lu = np.array(a, order="F")
    pivots, zero = factor_tournament(lu, 3, leaf)
    assert np.isfinite(lu).all()
    assert np.abs(error_of(lu, pivots, a)).max() < 1e-12
    diagonal = lu.diagonal()
    assert zero == (int(np.argmin(diagonal != 0)) + 1 if (diagonal == 0).any() else 0)


def test_pivots_below_the_normal_range_have_no_infinite_quotients():
    a = random_matrix(30, 30, "float64") * 1e-309
    lu = np.array(a, order="F")
    factor_tournament(lu, 6, 8)
    assert np.isfinite(lu).all()


def test_the_pivots_of_a_panel_do_not_depend_on_the_rows_that_lose():
    panel = random_matrix(64, 4, "float64")
    panel[40] *= 1e3
    assert 40 in choose_pivots(panel, 8).rows


def test_stored_factors_are_scipys(tmp_path):
    a = random_matrix(40, 40, "float64")
    np.save(tmp_path / "A.npy", a)
    location = tmp_path / "LU.npy"
    lu_factor(tmp_path / "A.npy", pivoting="tournament", out=location, options=SLABS)
    found = hdgemm.linalg.open(location)
    lu, pivots = np.load(location), np.load(tmp_path / "LU.piv.npy")
    assert residual_ratio(error_of(lu, pivots, a), a) < SOUND
    np.testing.assert_array_equal(found.piv, pivots)
    x = scipy.linalg.lu_solve((lu, pivots), a.sum(axis=1))
    np.testing.assert_allclose(x, np.ones(40), rtol=1e-10)


def test_too_little_memory_is_an_error_with_the_numbers(tmp_path):
    a = random_matrix(9000, 7, "float64")
    np.save(tmp_path / "A.npy", a)
    memory = BOUNCE_BYTES + a.nbytes // 7
    with pytest.raises(DoesNotFitError, match="9000×7") as caught:
        lu_factor(
            tmp_path / "A.npy", pivoting="tournament", out=tmp_path / "LU.npy",
            options=hdgemm.Options(host_memory=memory, devices="host"),
        )  # fmt: skip
    assert caught.value.missing == caught.value.requested - memory > 0
    assert not (tmp_path / "LU.npy").exists()


def test_a_durable_run_by_slabs(tmp_path):
    a = random_matrix(40, 40, "float64")
    np.save(tmp_path / "A.npy", a)
    out = tmp_path / "LU.npy"
    lu_factor(tmp_path / "A.npy", pivoting="tournament", out=out, options=SLABS, checkpoint=True)
    lu, pivots = np.load(out), np.load(tmp_path / "LU.piv.npy")
    assert residual_ratio(error_of(lu, pivots, a), a) < SOUND


def test_other_words_are_refused():
    with pytest.raises(InputError, match="'partial' or 'tournament', got 'rook'"):
        lu_factor(np.eye(2), pivoting="rook")
