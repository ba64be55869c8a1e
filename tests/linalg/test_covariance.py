"""Covariances, correlations and norms beside NumPy's and SciPy's."""

import threading

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.errors import DoesNotFitError
from hdgemm.linalg import corrcoef, cov, norm
from tests.linalg.matrices import DTYPES, random_matrix, widened

ROWS = hdgemm.Options(tile=(11, 1, 1), host_memory="20MB", threads=2)


def close(found, expected, dtype):
    scale = np.nanmax(np.abs(expected), initial=1)
    tolerance = 100 * np.finfo(dtype).eps * scale
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(2, 40), n=st.integers(1, 12), rowvar=st.booleans(), bias=st.booleans(),
    ddof=st.sampled_from([None, 0, 1]), weighted=st.sampled_from(["", "f", "a", "fa"]),
    dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"), height=st.integers(1, 9),
)  # fmt: skip
def test_covariances_are_numpys(m, n, rowvar, bias, ddof, weighted, dtype, order, height):
    a = np.asarray(random_matrix(m, n, dtype, seed=m) + np.dtype(dtype).type(3), order=order)
    rng = np.random.default_rng(n)
    observations = n if rowvar else m
    weights = {}
    if "f" in weighted:
        weights["fweights"] = rng.integers(1, 4, observations)
    if "a" in weighted:
        weights["aweights"] = rng.uniform(0.5, 2, observations)
    given_ = {"rowvar": rowvar, "bias": bias, "ddof": ddof, **weights}
    count = weights.get("fweights", np.ones(observations)).sum()
    if count - (ddof if ddof is not None else int(not bias)) <= 0:
        return
    options = hdgemm.Options(tile=(height, 1, 1), host_memory="20MB", threads=2)
    found = cov(a, options=options, **given_)
    expected = np.cov(widened(a), **given_)
    assert found.shape == expected.shape
    assert found.dtype == a.dtype
    close(found, expected, dtype)
    np.testing.assert_array_equal(found, np.conj(found.T))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rowvar", [True, False])
def test_correlations_are_numpys(dtype, rowvar):
    a = random_matrix(30, 7, dtype)
    close(corrcoef(a, rowvar=rowvar, options=ROWS), np.corrcoef(widened(a), rowvar=rowvar), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", [-0.7, 0.7])
def test_correlations_of_elements_whose_squares_overflow_or_underflow(dtype, part):
    a = random_matrix(60, 4, dtype)
    extreme = np.dtype(dtype).type(float(np.finfo(dtype).max) ** part)
    scaled = a * np.array([1, extreme, 1, extreme], dtype)
    close(corrcoef(scaled, rowvar=False, options=ROWS), np.corrcoef(widened(a).T), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", [-0.7, 0.7])
@pytest.mark.parametrize("threads", [1, 2])
def test_correlations_of_an_extreme_element_that_comes_late(dtype, part, threads):
    # Rows before it told another scale: its squares overflowed to NaN, or vanished.
    a = random_matrix(30000, 3, dtype)
    extreme = np.dtype(dtype).type(float(np.finfo(dtype).max) ** part)
    a[:, 1] = 0
    a[-1, 1] = extreme
    options = hdgemm.Options(tile=(4000, 1, 1), host_memory="20MB", threads=threads)
    expected = np.corrcoef(widened(a) / np.array([1, float(extreme.real), 1]), rowvar=False)
    close(corrcoef(a, rowvar=False, options=options), expected, dtype)


def test_correlations_take_one_pass_unless_squares_overflow_or_underflow(tmp_path):
    def correlations(a):
        np.save(tmp_path / "A.npy", a)
        reports = []
        found = corrcoef(tmp_path / "A.npy", rowvar=False, options=ROWS, report=reports.append)
        return found, reports[0].moved_bytes["load1"] / a.nbytes

    a = random_matrix(60, 3, "float64")
    a[:, 1] = 5.0
    assert correlations(a)[1] == 1
    a[-1, 1] = 1e-200
    assert correlations(a)[1] == 1
    a[:, 1] *= 1e200
    assert correlations(a)[1] == 3
    a[-1, 1] = np.nan
    found, passes = correlations(a)
    assert passes == 2
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[::2, ::2]).all()


def test_variables_without_spread_have_no_correlation():
    a = random_matrix(30, 3, "float64")
    a[:, 1] = 5.0
    found = corrcoef(a, rowvar=False, options=ROWS)
    assert np.isnan(found[1]).all()
    assert np.isnan(found[:, 1]).all()
    assert np.isfinite(found[::2, ::2]).all()


def test_a_mean_of_1e8_times_the_spread_does_no_harm():
    a = random_matrix(500, 4, "float64") + 1e8
    np.testing.assert_allclose(
        cov(a, rowvar=False, options=ROWS), np.cov(a - 1e8, rowvar=False), rtol=0, atol=1e-13
    )


def test_single_precision_is_kept_unless_double_is_asked_for():
    a = random_matrix(3000, 4, "float32") + np.float32(100)
    expected = np.cov(widened(a), rowvar=False)
    assert cov(a, rowvar=False, options=ROWS).dtype == np.float32
    found = cov(a, rowvar=False, dtype="float64", options=ROWS)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_one_variable_and_one_dimension_are_numpys():
    x = random_matrix(20, 1, "float64")[:, 0]
    assert cov(x).shape == np.cov(x).shape == ()
    np.testing.assert_allclose(cov(x), np.cov(x), rtol=1e-13)
    np.testing.assert_allclose(cov(x, rowvar=False), np.cov(x, rowvar=False), rtol=1e-13)
    assert float(corrcoef(x)) == pytest.approx(1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_is_read_once_and_the_result_is_full(tmp_path, order):
    a = random_matrix(101, 7, "float64")
    np.save(tmp_path / "A.npy", np.asarray(a, order=order))
    events, reports = [], []
    found = cov(
        tmp_path / "A.npy", rowvar=False, out=tmp_path / "C.npy", options=ROWS,
        observer=events.append, report=reports.append,
    )  # fmt: skip
    assert isinstance(found, np.memmap)
    close(np.load(tmp_path / "C.npy"), np.cov(a, rowvar=False), "float64")
    assert sum(event.nbytes for event in events) == a.nbytes
    assert reports[0].moved_bytes == reports[0].planned_bytes
    assert reports[0].plan["kind"] == "cov"
    out = np.empty((7, 7))
    assert cov(a, rowvar=False, out=out) is out


def test_nan_stays_in_its_variable():
    a = random_matrix(40, 4, "float64")
    a[33, 2] = np.nan
    found, expected = cov(a, rowvar=False, options=ROWS), np.cov(a, rowvar=False)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


def test_too_few_observations_warn_as_numpys():
    with pytest.warns(RuntimeWarning, match="Degrees of freedom <= 0"):
        found = cov(np.ones((1, 3)), rowvar=False)
    assert np.isnan(found).all()
    assert cov(np.ones((4, 0)), rowvar=False).shape == (0, 0)


def test_wrong_arguments_of_cov_are_refused():
    a = np.ones((5, 3))
    with pytest.raises(hdgemm.InputError, match="y is not offered"):
        cov(a, a)
    with pytest.raises(hdgemm.InputError, match="y is not offered"):
        corrcoef(a, a)
    with pytest.raises(hdgemm.InputError, match=r"fweights has shape \(3,\), there are 5"):
        cov(a, rowvar=False, fweights=np.ones(3))
    with pytest.raises(hdgemm.InputTypeError, match="fweights must be integers"):
        cov(a, rowvar=False, fweights=np.full(5, 0.5))
    with pytest.raises(hdgemm.InputError, match="aweights must not be negative"):
        cov(a, rowvar=False, aweights=-np.ones(5))
    with pytest.raises(hdgemm.InputError, match="ddof must be an integer"):
        cov(a, ddof=0.5)
    square = np.ones((3, 3))
    with pytest.raises(hdgemm.InputError, match="out overlaps"):
        cov(square, out=square)


def test_rows_as_variables_of_a_tall_matrix_do_not_fit():
    with pytest.raises(
        DoesNotFitError, match=r"moments of a 3×2000 float64 matrix.*rowvar=False the 3 columns"
    ):
        cov(np.ones((2000, 3)), options=hdgemm.Options(host_memory="20MB"))


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 30), n=st.integers(1, 30), dtype=st.sampled_from(DTYPES),
    order=st.sampled_from("CF"),
    ord_=st.sampled_from([None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf]),
)  # fmt: skip
def test_norms_are_scipys(m, n, dtype, order, ord_):
    a = np.asarray(random_matrix(m, n, dtype, seed=n), order=order)
    found = norm(a, ord_, options=ROWS)
    assert isinstance(found, float)
    expected, scale = scipy.linalg.norm(widened(a), ord_), scipy.linalg.norm(widened(a))
    assert abs(found - expected) <= 100 * np.finfo(dtype).eps * scale
    assert norm(a, "max") == np.abs(a).max()


@pytest.mark.parametrize("ord_", [None, "fro", "nuc", "max", 1, -1, 2, -2, np.inf, -np.inf])
def test_the_norm_of_an_empty_matrix_is_zero(ord_):
    assert norm(np.empty((0, 3)), ord_) == 0.0
    assert norm(np.empty((3, 0)), ord_) == 0.0


def test_a_norm_is_checked_as_scipys(tmp_path):
    a = np.ones((30, 3))
    np.save(tmp_path / "A.npy", a)
    assert norm(tmp_path / "A.npy", 1, options=ROWS) == 30
    for wrong in (3, "two", [1], np.ones(2)):
        with pytest.raises(hdgemm.InputError, match="ord must be"):
            norm(a, wrong)
    with pytest.raises(hdgemm.InputError, match="axis"):
        norm(a, 1, axis=0)
    a[7, 1] = np.nan
    with pytest.raises(hdgemm.InputError, match="a has nan at row 7, column 1"):
        norm(a, 1)
    for by_columns in (np.asfortranarray(a), a):
        assert np.isnan(norm(by_columns, 1, check_finite=False))


def test_cancelling_a_covariance_publishes_nothing(tmp_path):
    cancel = threading.Event()
    with pytest.raises(hdgemm.CancelledRunError):
        cov(
            np.ones((400, 3)), rowvar=False, out=tmp_path / "C.npy", options=ROWS, cancel=cancel,
            observer=lambda _event: cancel.set(),
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
