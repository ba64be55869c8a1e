"""Leading singular values and eigenpairs: errors in units of eps, SciPy's, limits, faults."""

import warnings

import numpy as np
import pytest
import scipy.sparse.linalg

import hdgemm
from hdgemm import linalg
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.linalg.rows.krylov import KrylovBasis

DTYPES = ("float32", "float64", "complex64", "complex128")


def normal(rng, shape, dtype):
    found = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        found = found + 1j * rng.standard_normal(shape)
    return found


def matrix_of(m, n, s, dtype, seed=0):
    """A matrix with given singular values."""
    rng, k = np.random.default_rng(seed), min(m, n)
    u = np.linalg.qr(normal(rng, (m, k), dtype))[0]
    v = np.linalg.qr(normal(rng, (n, k), dtype))[0]
    return ((u * np.asarray(s)[:k]) @ v.conj().T).astype(dtype)


def check_triplets(a, s, found, *, ratio=100.0):
    """Values, orthogonality and A·v = s·u, in units of eps·s[0]."""
    u, values, vh = found
    k, eps = len(values), np.finfo(a.dtype).eps
    scale = max(float(s[0]), np.finfo(a.dtype).tiny) * eps
    assert np.abs(values - s[:k]).max() < ratio * scale
    assert np.abs(u.conj().T @ u - np.eye(k)).max() < ratio * eps * 3
    assert np.abs(vh @ vh.conj().T - np.eye(k)).max() < ratio * eps * 3
    assert np.abs(a @ vh.conj().T - u * values).max() < 3 * ratio * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(300, 60), (60, 300), (80, 80)])
def test_leading_triplets(dtype, shape):
    s = 1 / np.arange(1.0, 81)
    a = matrix_of(*shape, s, dtype)
    check_triplets(a, s, linalg.svds(a, 6))
    values = linalg.svds(a, 6, return_singular_vectors=False)
    assert np.abs(values - s[:6]).max() < 100 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", [-0.7, -0.5, -0.4, -0.3, -0.2, 0.2, 0.25, 0.3, 0.5, 0.8])
def test_powers_that_overflow_or_underflow(dtype, part):
    # A^H·A has squares, and products with it have fourth powers.
    size = float(np.finfo(dtype).max) ** part
    s = size / np.arange(1.0, 41)
    a = matrix_of(90, 40, s, dtype)
    check_triplets(a, s, linalg.svds(a, 4))
    root = matrix_of(40, 40, s / size, dtype)
    hermitian = root @ root.conj().T
    hermitian = (hermitian + hermitian.conj().T) / 2
    scaled = hermitian * hermitian.real.dtype.type(size)
    values = linalg.eigsh(scaled, 3, which="LA", return_eigenvectors=False)
    exact = np.linalg.eigvalsh(hermitian.astype("complex128"))[-3:]
    assert np.abs(values / size - exact).max() < 100 * np.finfo(dtype).eps


@pytest.mark.parametrize("s", [np.zeros(30), np.r_[3, 2, 1, np.zeros(27)], np.ones(30)])
def test_zero_rank_and_ties(s):
    a = matrix_of(70, 30, s, "float64")
    check_triplets(a, s, linalg.svds(a, 5))


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 3)])
def test_all_of_a_small_matrix(shape):
    s = np.array([2.0, 1.0, 0.5])
    a = matrix_of(*shape, s, "float64")
    check_triplets(a, s, linalg.svds(a, min(shape)))


def test_files_within_a_small_memory(tmp_path):
    s = 1 / np.arange(1.0, 121)
    a = matrix_of(2000, 120, s, "float64")
    np.save(tmp_path / "A.npy", a)
    out = [tmp_path / name for name in ("U.npy", "s.npy", "Vh.npy")]
    reports = []
    options = hdgemm.Options(host_memory="14MB", tile=(150, 1, 1))
    found = linalg.svds(tmp_path / "A.npy", 8, out=out, options=options, report=reports.append)
    check_triplets(a, s, found)
    check_triplets(
        a, s, [np.load(name).reshape(x.shape) for name, x in zip(out, found, strict=True)]
    )
    (report,) = reports
    passes = report.plan["passes"]
    # Each pass reads A, the last one as well; U is read for its triangle and its product.
    assert report.stages["load1"].nbytes == (passes + 1) * a.nbytes + 2 * 2000 * 8 * 8


def test_the_same_seed_gives_the_same_bits():
    a = matrix_of(200, 50, 1 / np.arange(1.0, 51), "float64")
    first, second, other = (
        linalg.svds(a, 5, block=12, seed=seed, return_singular_vectors=False) for seed in (3, 3, 4)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_too_few_passes_warn_with_the_residual():
    a = np.random.default_rng(0).standard_normal((300, 100))
    with pytest.warns(scipy.linalg.LinAlgWarning, match="not converged after 2 passes"):
        linalg.svds(a, 5, maxiter=2, block=13)


def test_a_larger_tolerance_takes_fewer_passes():
    a = np.random.default_rng(0).standard_normal((400, 120))
    reports = []
    for tol in (1e-2, 1e-6):
        linalg.svds(a, 3, tol=tol, block=11, report=reports.append)
    few, many = (report.plan["passes"] for report in reports)
    assert few < many
    assert reports[1].plan["residual"] <= 1e-6


def test_a_full_basis_restarts_and_converges():
    s = np.arange(1.0, 101) ** -0.3
    a = matrix_of(150, 100, s, "float64")
    basis = KrylovBasis(100, 14, 56, np.dtype(float), 0, lambda x: np.arange(len(x))[::-1])
    for _ in range(40):
        basis.extend(a.T @ (a @ basis.block))
    pairs = basis.ritz(6)
    assert np.abs(np.sqrt(pairs.values) - s[:6]).max() < 1e-13
    assert np.abs(pairs.vectors.T @ pairs.vectors - np.eye(6)).max() < 1e-13


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("which", ["LM", "LA", "SA", "BE"])
def test_eigenpairs(dtype, order, which):
    w = np.linspace(-1, 1.2, 90) ** 3
    q = np.linalg.qr(normal(np.random.default_rng(0), (90, 90), dtype))[0]
    a = (q * w) @ q.conj().T
    a = np.asarray((a + a.conj().T) / 2, dtype, order)
    wanted = {
        "LM": np.sort(w[np.argsort(-np.abs(w))[:4]]), "LA": w[-4:], "SA": w[:4],
        "BE": np.r_[w[:2], w[-2:]],
    }[which]  # fmt: skip
    values, v = linalg.eigsh(a, 4, which=which)
    eps = np.finfo(dtype).eps
    assert np.abs(values - wanted).max() < 100 * eps
    assert np.abs(a @ v - v * values).max() < 300 * eps
    assert np.abs(v.conj().T @ v - np.eye(4)).max() < 300 * eps
    only = linalg.eigsh(a, 4, which=which, return_eigenvectors=False)
    assert np.array_equal(only, values)


def test_agrees_with_scipy(tmp_path):
    a = np.random.default_rng(5).standard_normal((120, 70))
    np.save(tmp_path / "A.npy", a)
    theirs = scipy.sparse.linalg.svds(a, 5, return_singular_vectors=False)
    ours = linalg.svds(tmp_path / "A.npy", 5, return_singular_vectors=False)
    assert np.allclose(np.sort(theirs)[::-1], ours, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"k": 31}, "k must be at most 30"),
        ({"which": "SM"}, "which must be 'LM'"),
        ({"tol": float("nan")}, "tol must be"),
        ({"tol": 1.1}, "tol must be a number from 0 to 1"),
        ({"maxiter": 0}, "maxiter must be"),
        ({"seed": -1}, "seed must be"),
        ({"out": "U.npy"}, "out must be a tuple"),
    ],
)
def test_refused_arguments(arguments, words):
    with pytest.raises(InputError, match=words):
        linalg.svds(np.ones((40, 30)), **arguments)


def test_the_largest_tolerance_is_taken():
    assert linalg.svds(np.eye(5), 1, tol=1, return_singular_vectors=False) == pytest.approx(1)


def test_a_matrix_without_columns_has_no_singular_values():
    with pytest.raises(InputError, match="has no elements"):
        linalg.svds(np.ones((5, 0)), 1)


def test_elements_that_are_not_finite_are_named():
    a = np.ones((40, 30))
    a[17, 3] = np.nan
    for view, place in ((a, (17, 3)), (a.T, (3, 17))):
        with pytest.raises(InputError) as caught:
            linalg.svds(view)
        assert (caught.value.row, caught.value.col) == place


def test_a_basis_that_does_not_fit_is_refused_before_any_pass(tmp_path):
    hdgemm.create(tmp_path / "A.npy", (20000, 20000), "float64").close()
    with pytest.raises(DoesNotFitError) as caught:
        linalg.svds(tmp_path / "A.npy", 100, options=hdgemm.Options(host_memory="20MB"))
    assert caught.value.missing > 0


def test_rectangular_and_unsymmetric_matrices_are_refused_by_eigsh():
    with pytest.raises(InputError, match="eigsh takes square matrices"):
        linalg.eigsh(np.ones((4, 3)))


def test_no_warning_where_all_converges():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linalg.svds(np.diag(np.arange(1.0, 40)), 3)


@pytest.mark.parametrize("k", [20, 32, 40])
@pytest.mark.parametrize("condition", [1e12, 1e15])
def test_small_values_have_errors_of_working_precision(condition, k):
    s, reports = np.geomspace(1, 1 / condition, 40), []
    a = matrix_of(900, 40, s, "float64")
    check_triplets(a, s, linalg.svds(a, k, report=reports.append))
    values = linalg.svds(a, k, return_singular_vectors=False, report=reports.append)
    assert np.abs(values - s[:k]).max() < 100 * np.finfo(float).eps
    for report in reports:
        assert "A times the whole basis" in report.plan["note"]
        assert report.plan["note"] in str(report)


def test_small_values_that_the_basis_does_not_resolve_warn_with_residuals():
    s = np.geomspace(1, 1e-15, 300)
    a = matrix_of(900, 300, s, "float64")
    with pytest.warns(scipy.linalg.LinAlgWarning, match=r"A\^H·A has lost digits of them"):
        values = linalg.svds(a, 150, block=158, return_singular_vectors=False)
    assert np.abs(values - s[:150]).max() < 1e-7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linalg.svds(a, 150, block=158, tol=1e-6, return_singular_vectors=False)


def test_components_of_small_variances_have_errors_of_working_precision():
    s = np.geomspace(1, 1e-13, 40)
    a = matrix_of(900, 40, s, "float64")
    a -= a.mean(axis=0)
    found = hdgemm.decomposition.PCA(30, svd_solver="krylov").fit(a)
    exact = np.linalg.svd(a, compute_uv=False)[:30]
    assert np.abs(found.singular_values_ - exact).max() < 100 * np.finfo(float).eps
