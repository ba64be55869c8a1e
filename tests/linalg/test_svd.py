"""Singular values and vectors by passes over rows, judged by LAPACK's ratios."""

import threading
from functools import partial

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm import fortran
from hdgemm.errors import DoesNotFitError
from hdgemm.linalg import svd, svds, svdvals
from hdgemm.linalg.rows import _tree as tree, tsqr
from tests.linalg.matrices import DTYPES, SOUND, norm1, random_matrix, widened

ROWS = hdgemm.Options(tile=(11, 1, 1), host_memory="20MB", threads=2)


def with_values(m, n, s, dtype):
    """Return a matrix with these singular values."""
    u = np.linalg.qr(random_matrix(m, n, "float64"))[0]
    v = np.linalg.qr(random_matrix(n, n, "float64", 1))[0]
    return (u * s @ v.T).astype(dtype)


def assert_decomposition(a, u, s, vh):
    """Judge by the ratios of LAPACK's tests of xGESDD, which accepts 50."""
    (m, n), k, eps = a.shape, min(a.shape), np.finfo(a.dtype).eps / 2
    assert (u.shape, s.shape, vh.shape) == ((m, k), (k,), (k, n))
    assert (u.dtype, s.dtype, vh.dtype) == (a.dtype, a.real.dtype, a.dtype)
    wide_u, wide_vh = widened(u), widened(vh)
    rest = widened(a) - wide_u * s @ wide_vh
    assert norm1(rest) <= SOUND * max(m, n) * eps * norm1(a)
    assert norm1(np.eye(k) - wide_u.conj().T @ wide_u) <= SOUND * m * eps
    assert norm1(np.eye(k) - wide_vh @ wide_vh.conj().T) <= SOUND * n * eps
    assert (np.diff(s) <= 0).all()
    assert (s >= 0).all()
    assert_values(a, s)


def assert_values(a, s):
    expected, eps = scipy.linalg.svdvals(widened(a)), np.finfo(a.dtype).eps
    np.testing.assert_allclose(
        s, expected, rtol=0, atol=SOUND * eps * max(expected, default=0) + np.finfo(a.dtype).tiny
    )


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(0, 50), n=st.integers(0, 50), rows=st.integers(1, 17), cores=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"),
)  # fmt: skip
def test_any_shape_and_any_blocks(m, n, rows, cores, dtype, order):
    a = np.asarray(random_matrix(m, n, dtype, seed=n), order=order)
    before = a.copy()
    options = hdgemm.Options(tile=(rows, 1, 1), host_memory="20MB", threads=cores)
    assert_decomposition(a, *svd(a, options=options))
    assert_values(a, svdvals(a, options=options))
    np.testing.assert_array_equal(a, before)


SPECIAL = {
    "kappa 1e2": lambda n: np.logspace(0, -2, n),
    "kappa 1e5": lambda n: np.logspace(0, -5, n),
    "kappa 1e8": lambda n: np.logspace(0, -8, n),
    "kappa 1e15": lambda n: np.logspace(0, -15, n),
    "cluster": lambda n: np.where(np.arange(n) < n // 2, 1, 1e-9),
    "ties": np.ones,
    "rank 3": lambda n: np.where(np.arange(n) < 3, 1, 0),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(70, 12), (12, 70), (31, 30)])
@pytest.mark.parametrize("kind", SPECIAL)
def test_any_spectrum_has_orthogonal_vectors(kind, shape, dtype):
    m, n = max(shape), min(shape)
    a = with_values(m, n, SPECIAL[kind](n), dtype)
    a = a if shape[0] == m else np.ascontiguousarray(a.T)
    reports = []
    found = svd(a, options=ROWS, report=reports.append)
    assert_decomposition(a, *found)
    assert_values(a, svdvals(a, options=ROWS))
    plan = reports[0].plan
    assert plan["passes"] == (2 if plan["condition"] <= m else 3)
    assert plan["note"].startswith("U = A·V/s" if plan["passes"] == 2 else "a third pass")
    assert f"{plan['condition'] * np.finfo(dtype).eps:.1e}" in plan["note"]
    if kind in ("ties", "kappa 1e15"):
        assert plan["passes"] == (2 if kind == "ties" else 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("driver", ["gesdd", "gesvd"])
def test_the_triangle_is_decomposed_without_the_interpreters_lock(monkeypatch, driver, dtype):
    # SciPy's wrapper holds it for minutes: a job of a service would lose its lease.
    called, routine = set(), fortran._routine
    monkeypatch.setattr(
        fortran, "_routine", lambda module, name: called.add(name) or routine(module, name)
    )
    a = random_matrix(90, 31, dtype)
    assert_decomposition(a, *svd(a, lapack_driver=driver, options=ROWS))
    assert fortran.LETTERS[a.dtype.char] + driver in called
    called.clear()
    assert_values(a, svdvals(a, options=ROWS))
    assert fortran.LETTERS[a.dtype.char] + "gesdd" in called
    for call in (partial(svdvals, method="gram"), partial(svds, k=2)):
        called.clear()
        call(a, options=ROWS)
        assert called & {"ssyevr", "dsyevr", "cheevr", "zheevr"}


@pytest.mark.parametrize("n", [0, 1, 2, 50])
@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues_of_the_lower_triangle(dtype, n):
    x = random_matrix(n, n, dtype)
    x = x + x.conj().T
    w, z = fortran.eigh(np.asfortranarray(np.tril(x)))
    atol = 100 * max(1, n) * np.finfo(dtype).eps
    np.testing.assert_allclose(w, np.linalg.eigvalsh(x), atol=atol)
    np.testing.assert_allclose(x @ z, z * w, atol=atol)
    (alone,) = fortran.eigh(np.asfortranarray(x), vectors=False)
    np.testing.assert_allclose(alone, w, atol=atol)


@pytest.mark.parametrize("driver", ["gesdd", "gesvd"])
def test_a_triangle_without_a_decomposition_is_an_error_of_lapack(driver):
    wrong = np.full((3, 3), np.nan, order="F")
    with pytest.raises((ValueError, np.linalg.LinAlgError)):
        fortran.gesvd(wrong, driver)


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["zero", "zero columns", "equal rows", "first rows zero", "ones"])
def test_exact_deficiency_has_orthogonal_vectors(kind, dtype, cores):
    a = random_matrix(61, 9, dtype)
    if kind == "zero":
        a[:] = 0
    elif kind == "zero columns":
        a[:, ::3] = 0
    elif kind == "equal rows":
        a[3:] = a[:1]
    elif kind == "first rows zero":
        a[:40] = 0
    else:
        a[:] = 1
    options = hdgemm.Options(tile=(10, 1, 1), host_memory="20MB", threads=cores)
    assert_decomposition(a, *svd(a, options=options))
    assert_decomposition(a.T, *svd(a.T, options=options))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_elements_that_underflow_beside_others_keep_q_orthogonal(dtype):
    # Divided by the diagonal of R these become 0, and their reflection is no identity.
    a = np.zeros((40, 3), dtype)
    a[:3], a[35:] = np.eye(3) * 1e18, 1e-30
    a[:, 2] = a[:, 1]
    options = hdgemm.Options(tile=(5, 1, 1), host_memory="20MB", threads=1)
    assert_decomposition(a, *svd(a, options=options))


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_elements_near_overflow_and_underflow(scale):
    a = random_matrix(50, 6, "float64") * scale
    u, s, vh = svd(a, options=ROWS)
    assert_decomposition(a / scale, u, s / scale, vh)


def test_a_block_is_reduced_by_strips(monkeypatch):
    monkeypatch.setattr(tsqr, "_STRIP_BYTES", 1)  # strips of 64 rows
    a = with_values(300, 20, np.logspace(0, -15, 20), "float64")
    options = hdgemm.Options(tile=(150, 1, 1), host_memory="20MB", threads=2)
    assert_decomposition(a, *svd(a, options=options))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_triangles_of_reflectors_are_lapacks(dtype):
    a = np.asfortranarray(random_matrix(80, 37, dtype))
    a[:, 5], a[:, 9] = 0, a[:, 8]
    r, t = np.zeros((37, 37), dtype, "F"), np.zeros((16, 37), dtype, "F")
    tsqr.tpqrt(r, a, t, np.empty(16 * 37, dtype))
    found = tree.triangles_of(a)
    for first in range(0, 37, 16):
        part = slice(first, first + 16)
        error = np.abs(np.triu(t[:, part]) - np.triu(found[:, part])).max()
        assert error < 100 * np.finfo(dtype).eps


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(101, 7), (7, 101)])
@pytest.mark.parametrize("kappa", [10, 1e12])
def test_files_are_read_as_often_as_planned(tmp_path, order, shape, kappa):
    a = with_values(101, 7, np.geomspace(1, 1 / kappa, 7), "float64")
    a = a if shape == a.shape else a.T
    np.save(tmp_path / "A.npy", np.asarray(a, order=order))
    out = tuple(tmp_path / f"{name}.npy" for name in ("U", "s", "Vh"))
    events, reports = [], []
    found = svd(
        tmp_path / "A.npy", out=out, options=ROWS, observer=events.append, report=reports.append
    )
    assert all(isinstance(x, np.memmap) for x in found)
    assert_decomposition(a, *found)
    assert_decomposition(a, np.load(out[0]), np.load(out[1])[:, 0], np.load(out[2]))
    moved = sum(event.nbytes for event in events)
    assert moved == (3 if kappa == 10 else 5) * a.nbytes
    assert reports[0].moved_bytes == reports[0].planned_bytes
    assert reports[0].plan["kind"] == "svd"
    assert {event.phase for event in events} == {"load", "panel", "update", "svd", "store"}
    long = found[0] if shape[0] > shape[1] else found[2].T
    assert long.flags.c_contiguous


def test_results_go_into_arrays_and_stored_matrices(tmp_path):
    a = random_matrix(40, 5, "float64")
    u, s = np.empty((40, 5)), np.empty(5)
    with hdgemm.create(tmp_path / "V.npy", (5, 5), "float64") as vh:
        found = svd(a, out=(u, s, vh), options=ROWS)
        assert found[0] is u
        assert found[1] is s
        assert_decomposition(a, u, s, np.asarray(vh))
    out = np.empty(5)
    assert svdvals(a, out=out, options=ROWS) is out
    assert svd(a, compute_uv=False, out=out, options=ROWS) is out
    assert_values(a, out)


def test_values_of_the_gram_matrix_by_name():
    a = with_values(200, 6, np.logspace(0, -4, 6), "float64")
    expected = scipy.linalg.svdvals(a)
    found = svdvals(a, method="gram", options=ROWS)
    assert np.abs(found - expected).max() < 1e-11
    assert svdvals(a.astype("float32"), method="gram").dtype == np.float32
    with pytest.raises(hdgemm.InputError, match="method must be one of"):
        svdvals(a, method="qr")


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("part", [-0.9, -0.5, 0.5, 0.9])
def test_a_gram_matrix_that_overflows_or_underflows_is_scaled(dtype, part):
    size = float(np.finfo(dtype).max) ** part
    a = np.random.default_rng(1).standard_normal((90, 12)).astype(dtype)
    s = np.linalg.svd(a.astype("complex128"), compute_uv=False)
    found = svdvals(a * a.real.dtype.type(size), method="gram")
    assert np.abs(found / size - s).max() < 100 * np.finfo(dtype).eps * s[0]
    assert not svdvals(0 * a, method="gram").any()


def test_one_run_is_reported():
    snapshots, reports = [], []
    a = random_matrix(200, 9, "float64")
    svd(a, options=ROWS, progress=snapshots.append, report=reports.append)
    assert snapshots[-1].percent == pytest.approx(100)
    plan = reports[0].plan
    assert [part["name"] for part in plan["parts"]] == ["TSQR", "SVD of R", "A·W"]
    assert plan["host_bytes"] <= plan["host_limit"]


def test_the_same_plan_gives_the_same_bits():
    a = with_values(200, 9, np.logspace(0, -15, 9), "float64")
    first, second = ([x.tobytes() for x in svd(a, options=ROWS)] for _ in range(2))
    assert first == second


def test_wrong_arguments_are_refused(tmp_path):
    a = np.ones((6, 3))
    with pytest.raises(hdgemm.InputError, match=r"full_matrices=True asks .* order 6, 288 B"):
        svd(a, full_matrices=True)
    with pytest.raises(hdgemm.InputError, match="lapack_driver must be one of"):
        svd(a, lapack_driver="gesvj")
    with pytest.raises(hdgemm.InputError, match=r"out must be a tuple \(U, s, Vh\)"):
        svd(a, out=tmp_path / "U.npy")
    with pytest.raises(hdgemm.InputError, match="shape"):
        svd(a, out=(np.empty((6, 6)), None, None))
    with pytest.raises(hdgemm.InputError, match="out overlaps a"):
        svd(a, out=(a, None, None))
    u = np.empty((3, 3))
    with pytest.raises(hdgemm.InputError, match="overlap"):
        svd(np.eye(3), out=(u, None, u))
    with pytest.raises(hdgemm.InputTypeError, match="complex"):
        svd(a, out=(np.empty((6, 3), complex), None, None))
    a[4, 1] = np.nan
    with pytest.raises(hdgemm.InputError, match="a has nan at row 1, column 4"):
        svd(a.T, out=(None, None, tmp_path / "V.npy"))
    with pytest.raises(hdgemm.InputError, match="a has nan at row 4, column 1"):
        svd(a, out=(tmp_path / "U.npy", None, None))
    assert list(tmp_path.iterdir()) == []


def test_a_full_decomposition_of_a_square_matrix_is_the_same():
    a = random_matrix(9, 9, "float64")
    assert_decomposition(a, *svd(a, full_matrices=True, options=ROWS))


def test_a_triangle_that_does_not_fit_is_refused_with_numbers():
    a = np.ones((4000, 300))
    with pytest.raises(DoesNotFitError, match="TSQR of a 4000×300 float64 matrix, with R") as small:
        svdvals(a, options=hdgemm.Options(host_memory="1MB"))
    options = hdgemm.Options(host_memory=small.value.available + small.value.missing)
    assert svdvals(a, options=options)[0] == pytest.approx(np.sqrt(a.size))
    a = np.ones((4000, 1500))
    with pytest.raises(DoesNotFitError, match="SVD of R, 1500×1500 float64, with its vectors"):
        svd(a, options=hdgemm.Options(host_memory="60MB"))


@pytest.mark.parametrize("stage", ["load1", "mult1", "store2"])
def test_cancelling_in_any_stage_publishes_nothing(tmp_path, stage):
    cancel = threading.Event()

    def observe(event):
        if event.stage == stage:
            cancel.set()

    out = tuple(tmp_path / f"{name}.npy" for name in ("U", "s", "Vh"))
    with pytest.raises(hdgemm.CancelledRunError):
        svd(np.ones((400, 3)), out=out, options=ROWS, observer=observe, cancel=cancel)
    assert list(tmp_path.iterdir()) == []
