"""Pseudoinverses, ridge regressions, and least squares of wide and deficient matrices."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.linalg import lstsq, pinv, ridge
from tests.linalg.interruption import InterruptedRunError, interrupt_after
from tests.linalg.matrices import DTYPES, random_matrix, widened

ROWS = hdgemm.Options(tile=(11, 1, 1), host_memory="20MB", threads=2)


def conditioned(m, n, kappa, dtype, rank=None):
    """Return a matrix with values from 1 to 1/kappa, of which the first `rank` are not zero."""
    k = min(m, n)
    u = np.linalg.qr(random_matrix(m, k, dtype).astype(complex))[0]
    v = np.linalg.qr(random_matrix(n, k, dtype, 1).astype(complex))[0]
    s = np.geomspace(1, 1 / kappa, k) * (np.arange(k) < (k if rank is None else rank))
    found = u * s @ v.conj().T
    return (found if np.dtype(dtype).kind == "c" else found.real + 0.0).astype(dtype)


def near(found, expected, kappa, dtype):
    unit = np.finfo(dtype).eps * kappa * max(1e-300, np.abs(expected).max(initial=0))
    assert np.abs(found - expected).max(initial=0) <= 1000 * unit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(50, 7), (7, 50), (12, 12), (1, 9), (9, 1)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_pseudoinverses_are_scipys(tmp_path, shape, dtype, order):
    a = np.asarray(random_matrix(*shape, dtype), order=order)
    np.save(tmp_path / "A.npy", a)
    found, rank = pinv(tmp_path / "A.npy", return_rank=True, out=tmp_path / "X.npy", options=ROWS)
    expected, expected_rank = scipy.linalg.pinv(widened(a), return_rank=True)
    assert isinstance(found, np.memmap)
    assert found.dtype == a.dtype
    assert rank == expected_rank
    near(found, expected, np.linalg.cond(widened(a)), dtype)
    np.testing.assert_array_equal(pinv(a, options=ROWS), found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(50, 9), (9, 50)])
def test_pseudoinverses_of_lower_rank_are_scipys(shape, dtype):
    a = random_matrix(shape[0], 4, dtype) @ random_matrix(4, shape[1], dtype, 1)
    found, rank = pinv(a, return_rank=True, options=ROWS)
    assert rank == 4
    values = np.linalg.svd(widened(a), compute_uv=False)
    near(found, scipy.linalg.pinv(widened(a), rtol=1e-5), values[0] / values[3], dtype)
    zero, rank = pinv(np.zeros(shape, dtype), return_rank=True, options=ROWS)
    assert rank == 0
    assert not zero.any()


def test_tolerances_of_pinv_are_scipys():
    a = conditioned(40, 6, 1e6, "float64")
    for given_ in ({"atol": 1e-3}, {"rtol": 1e-2}, {"atol": 1e-4, "rtol": 1e-5}):
        found, rank = pinv(a, return_rank=True, options=ROWS, **given_)
        expected, expected_rank = scipy.linalg.pinv(a, return_rank=True, **given_)
        assert rank == expected_rank
        near(found, expected, 1e4, "float64")
    with pytest.raises(hdgemm.InputError, match="rtol must be a number"):
        pinv(a, rtol=-1)
    with pytest.raises(hdgemm.InputError, match="atol must be a number"):
        pinv(a, atol=np.nan)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
@pytest.mark.parametrize("shape", [(40, 5), (5, 40)])
def test_pseudoinverses_and_solutions_near_overflow_and_underflow(shape, scale):
    a, b = random_matrix(*shape, "float64"), random_matrix(shape[0], 2, "float64", 1)
    near(pinv(a * scale, options=ROWS) * scale, scipy.linalg.pinv(a), 100, "float64")
    near(lstsq(a * scale, b, options=ROWS)[0] * scale, scipy.linalg.lstsq(a, b)[0], 100, "float64")


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(0, 15), more=st.integers(1, 40), p=st.integers(1, 3), rows=st.integers(1, 17),
    dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"),
)  # fmt: skip
def test_wide_matrices_have_the_solution_of_least_norm(m, more, p, rows, dtype, order):
    a = np.asarray(random_matrix(m, m + more, dtype, seed=m), order=order)
    b = random_matrix(m, p, dtype, seed=1)
    options = hdgemm.Options(tile=(rows, 1, 1), host_memory="20MB", threads=2)
    x, residues, rank, s = lstsq(a, b, options=options)
    expected = scipy.linalg.lstsq(widened(a), widened(b))
    assert x.dtype == a.dtype
    near(x, expected[0], np.linalg.cond(widened(a)) if m else 1, dtype)
    assert rank == expected[2]
    assert residues.shape == expected[1].shape == (0,)
    np.testing.assert_allclose(s, expected[3], rtol=0, atol=1000 * np.finfo(dtype).eps * more)


@pytest.mark.parametrize("driver", ["gelsd", "gelsy", "gelss"])
def test_wide_matrices_of_lower_rank_are_solved_as_scipys(tmp_path, driver):
    a = random_matrix(9, 3, "complex128") @ random_matrix(3, 60, "complex128", 1)
    b = random_matrix(9, 1, "complex128", 2)[:, 0]
    np.save(tmp_path / "A.npy", a)
    reports = []
    x, residues, rank, s = lstsq(
        tmp_path / "A.npy", b, 1e-10, lapack_driver=driver, out=tmp_path / "x.npy", options=ROWS,
        report=reports.append,
    )  # fmt: skip
    expected = scipy.linalg.lstsq(a, b, 1e-10, lapack_driver=driver)
    assert x.shape == (60,)
    np.testing.assert_allclose(x, expected[0], rtol=0, atol=1e-12)
    assert rank == expected[2] == 3
    assert residues.size == 0
    assert (s is None) == (driver == "gelsy")
    assert reports[0].plan["rank"] == 3
    assert reports[0].moved_bytes == reports[0].planned_bytes


def test_nan_in_a_or_b_of_a_wide_system_is_named():
    a, b = random_matrix(5, 40, "float64"), random_matrix(5, 2, "float64")
    b[3, 1] = np.inf
    with pytest.raises(hdgemm.InputError, match="b has inf at row 3, column 1"):
        lstsq(a, b, options=ROWS)
    b[3, 1], a[2, 30] = 0, np.nan
    with pytest.raises(hdgemm.InputError, match=r"a has nan at row 2, column 30"):
        lstsq(a, b, options=ROWS)


def normal_equations(a, b, alpha, w):
    """Solve (A^H·W·A + alpha·1)·x = A^H·W·b by dense algebra."""
    gram = (a.conj().T * w) @ a + alpha * np.eye(a.shape[1])
    return np.linalg.solve(gram, (a.conj().T * w) @ b)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ridge_solves_the_normal_equations(dtype, weighted, intercept):
    a, b = random_matrix(60, 5, dtype), random_matrix(60, 2, dtype, 1)
    w = np.random.default_rng(0).uniform(0.5, 2, 60) if weighted else np.ones(60)
    alphas = [0.0, 0.5, 20.0]
    fit = ridge(a, b, alphas, intercept=intercept, weights=w if weighted else None, options=ROWS)
    wide_a, wide_b = widened(a), widened(b)
    mean_a, mean_b = (w @ wide_a) / w.sum() * intercept, (w @ wide_b) / w.sum() * intercept
    assert fit.x.dtype == a.dtype
    assert fit.residues.dtype == a.real.dtype
    for number, alpha in enumerate(alphas):
        x = normal_equations(wide_a - mean_a, wide_b - mean_b, alpha, w)
        near(fit.x[number], x, 10, dtype)
        near(fit.intercept[number], mean_b - mean_a @ x, 10, dtype)
        rest = (wide_b - mean_b) - (wide_a - mean_a) @ x
        residues = w @ np.abs(rest) ** 2
        near(fit.residues[number], residues, 10, dtype)
        gram = (wide_a - mean_a).conj().T * w @ (wide_a - mean_a)
        inverse = np.linalg.inv(gram + alpha * np.eye(5))
        freedom = np.trace(inverse @ gram).real + intercept
        near(fit.degrees_of_freedom[number], freedom, 10, dtype)
        variances = np.diagonal(inverse @ gram @ inverse).real
        errors = np.sqrt(np.outer(variances, residues / (60 - freedom)))
        near(fit.standard_errors[number], errors, 10, dtype)
        total = w @ np.abs(wide_b - mean_b) ** 2
        near(fit.r2[number], 1 - residues / total, 10, dtype)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("p", [2, 40])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", [-0.7, 0.7])
def test_errors_and_r2_of_a_ridge_whose_squares_overflow_or_underflow(part, dtype, p, intercept):
    a, b = random_matrix(60, 5, dtype), random_matrix(60, p, dtype, 1)
    unit = a.real.dtype.type(2.0 ** int(np.finfo(dtype).maxexp * part))
    near_, far = (
        ridge(each * a, each * b, intercept=intercept, options=ROWS) for each in (1, unit)
    )
    for name in ("x", "degrees_of_freedom", "standard_errors", "r2"):
        near(getattr(far, name), getattr(near_, name), 10, dtype)
    assert np.all(far.residues == (np.inf if part > 0 else 0))
    residues = lstsq(unit * a, unit * b, options=ROWS)[1]
    np.testing.assert_array_equal(residues, far.residues)


def test_shapes_of_a_ridge_follow_b_and_alphas(tmp_path):
    a, b = random_matrix(40, 4, "float64"), random_matrix(40, 2, "float64", 1)
    many = ridge(a, b, [1, 2, 3], out=tmp_path / "X.npy", options=ROWS)
    assert [np.shape(x) for x in many] == [(3, 4, 2), (3, 2), (3, 2), (3,), (3, 4, 2), (3, 2)]
    np.testing.assert_array_equal(np.load(tmp_path / "X.npy"), np.hstack(list(many.x)))
    one = ridge(a, b[:, 0], 2, options=ROWS)
    assert [np.shape(x) for x in one] == [(4,), (), (), (), (4,), ()]
    np.testing.assert_allclose(one.x, many.x[1, :, 0], rtol=1e-13)


def test_a_ridge_without_penalty_is_least_squares():
    a, b = random_matrix(50, 6, "float64"), random_matrix(50, 1, "float64", 1)[:, 0]
    fit = ridge(a, b, options=ROWS)
    x, residues, *_ = scipy.linalg.lstsq(a, b)
    np.testing.assert_allclose(fit.x, x, rtol=1e-12)
    assert fit.residues == pytest.approx(residues, rel=1e-12)
    deficient = np.hstack([a, a[:, :2]])
    np.testing.assert_allclose(
        ridge(deficient, b, options=ROWS).x, scipy.linalg.lstsq(deficient, b)[0], atol=1e-12
    )
    wide = ridge(a[:4], b[:4], 1e-3, options=ROWS)
    np.testing.assert_allclose(wide.x, normal_equations(a[:4], b[:4], 1e-3, np.ones(4)), atol=1e-9)


def test_a_mean_of_1e8_times_the_spread_does_no_harm_to_coefficients():
    a, x = random_matrix(300, 3, "float64"), np.array([1.0, -2.0, 3.0])
    b = a @ x + 0.1 * random_matrix(300, 1, "float64", 1)[:, 0]
    expected = ridge(a, b, 0.3, intercept=True, options=ROWS)
    found = ridge(a + 1e8, b, 0.3, intercept=True, options=ROWS)
    # Adding 1e8 rounds A itself in the eighth decimal.
    exact = ridge((a + 1e8) - 1e8, b, 0.3, intercept=True, options=ROWS)
    np.testing.assert_allclose(found.x, exact.x, rtol=1e-12)
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-6)
    np.testing.assert_allclose(found.standard_errors, exact.standard_errors, rtol=1e-12)


def test_an_interrupted_ridge_goes_on_to_the_same_bits(tmp_path):
    np.save(tmp_path / "A.npy", random_matrix(110, 4, "float64"))
    np.save(tmp_path / "b.npy", random_matrix(110, 2, "float64", 1))

    def fit(name, **keywords):
        return ridge(
            tmp_path / "A.npy", tmp_path / "b.npy", [0.1, 1], intercept=True,
            out=tmp_path / name, options=ROWS, checkpoint=True, **keywords,
        )  # fmt: skip

    expected, reports = fit("whole.npy"), []
    with pytest.raises(InterruptedRunError):
        fit("X.npy", observer=interrupt_after(20))
    found = fit("X.npy", report=reports.append)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert 0 < reports[0].resumption.kept < reports[0].resumption.tiles
    assert sorted(x.name for x in tmp_path.iterdir()) == ["A.npy", "X.npy", "b.npy", "whole.npy"]


def test_wrong_arguments_of_a_ridge_are_refused():
    a, b = np.ones((6, 3)), np.ones(6)
    for alphas in (-1, [1, np.nan], "x", [], [[1]]):
        with pytest.raises(hdgemm.InputError, match="alphas must be"):
            ridge(a, b, alphas)
    with pytest.raises(hdgemm.InputError, match="weights must be 6 numbers"):
        ridge(a, b, weights=np.ones(5))
    with pytest.raises(hdgemm.InputError, match="b has 5 rows, the matrix 6"):
        ridge(a, b[:5])
    with pytest.raises(hdgemm.InputError, match="checkpoint needs a result in a file"):
        ridge(a, b, checkpoint=True)
