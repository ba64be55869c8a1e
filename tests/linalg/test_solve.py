from functools import partial

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm import linalg
from hdgemm.linalg import (
    cho_factor,
    cho_solve,
    cholesky,
    lu_factor,
    lu_solve,
    solve,
    solve_triangular,
)
from hdgemm.linalg.planning import solve as solve_plan
from hdgemm.matrices.transfer import BOUNCE_BYTES
from tests.linalg.matrices import (
    DTYPES,
    SOUND,
    norm1,
    positive_definite,
    random_matrix,
    widened,
)

OP = {"N": lambda a: a, "T": lambda a: a.T, "C": lambda a: a.conj().T}
SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="20MB")


@pytest.fixture(autouse=True)
def narrow_blocks(monkeypatch):
    monkeypatch.setattr(solve_plan, "_MOST_COLUMNS", 4)


def eps_of(dtype):
    return np.finfo(dtype).eps


def assert_solved(a, x, b, dtype):
    assert np.asarray(x).dtype == dtype
    assert np.shape(x) == np.shape(b)
    error = norm1(np.atleast_2d(widened(a) @ widened(np.asarray(x)) - widened(np.asarray(b))))
    unit = norm1(a) * norm1(np.atleast_2d(x)) * eps_of(dtype) / 2 * max(1, len(a))
    assert error <= SOUND * unit


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 23), columns=st.integers(0, 4), dtype=st.sampled_from(DTYPES),
    lower=st.booleans(), unit=st.booleans(), trans=st.sampled_from("NTC"),
    order=st.sampled_from("CF"), strided=st.booleans(),
)  # fmt: skip
def test_triangular_systems(n, columns, dtype, lower, unit, trans, order, strided):
    a = random_matrix(n, n, dtype, seed=1) + (2 * n * np.eye(n)).astype(dtype)
    b = random_matrix(n, columns, dtype, seed=2)
    triangle = np.tril(a) if lower else np.triu(a)
    if unit:
        a = a / max(1, n)
        triangle = (np.tril(a, -1) if lower else np.triu(a, 1)) + np.eye(n).astype(dtype)
    poisoned = np.where(np.tri(n, dtype=bool) == lower, a, np.nan).astype(dtype)
    np.fill_diagonal(poisoned, np.diagonal(a))
    matrix = np.asarray(poisoned, order=order)
    if strided:
        matrix = np.repeat(np.repeat(matrix, 2, axis=0), 2, axis=1)[::2, ::2]
    x = solve_triangular(matrix, b, trans, lower, unit)
    assert_solved(OP[trans](triangle.astype(dtype)), x, b, np.dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky_and_lu_solve_from_files(tmp_path, dtype):
    a = positive_definite(29, dtype)
    b = random_matrix(29, 3, dtype, seed=4)
    for lower in (True, False):
        c, _ = cho_factor(a, lower, out=tmp_path / "L.npy", options=SLABS)
        assert_solved(a, cho_solve((c, lower), b), b, np.dtype(dtype))
        assert_solved(a, cho_solve((tmp_path / "L.npy", lower), b[:, 0]), b[:, 0], np.dtype(dtype))
    a = random_matrix(29, 29, dtype, seed=5)
    factors = lu_factor(a, out=tmp_path / "LU.npy", options=SLABS)
    for trans, code in enumerate("NTC"):
        x = lu_solve(factors, b, trans)
        assert_solved(OP[code](a), x, b, np.dtype(dtype))
        expected = scipy.linalg.lu_solve(scipy.linalg.lu_factor(a), b, trans)
        np.testing.assert_allclose(x, expected, rtol=1e5 * eps_of(dtype), atol=1e5 * eps_of(dtype))


def test_b_larger_than_memory_passes_in_groups_of_columns(tmp_path):
    n = 50
    a, b = random_matrix(n, n, "float64"), random_matrix(n, 2000, "float64", seed=1)
    np.save(tmp_path / "B.npy", b)
    factors = lu_factor(a)
    events = []
    x = lu_solve(
        factors, tmp_path / "B.npy", out=tmp_path / "X.npy",
        options=hdgemm.Options(host_memory=(BOUNCE_BYTES + 98_000) * 4 // 3),
        observer=events.append,
    )  # fmt: skip
    assert isinstance(x, np.memmap)
    assert_solved(a, x, b, np.dtype("float64"))
    # Each group is loaded, solved with both triangles, and stored.
    assert len(events) == 9 * (1 + 2 + 1)
    with pytest.raises(hdgemm.DoesNotFitError):
        lu_solve(
            factors, b, out=tmp_path / "X.npy", options=hdgemm.Options(host_memory=BOUNCE_BYTES)
        )


@pytest.mark.parametrize("assume_a", ["gen", "pos", "sym", "upper triangular", "lower triangular"])
@pytest.mark.parametrize("in_file", [True, False])
def test_solve(tmp_path, assume_a, in_file):
    a = positive_definite(31, "float64")
    if assume_a == "gen":
        a = random_matrix(31, 31, "float64")
    if "triangular" in assume_a:
        a = np.triu(a) if assume_a.startswith("upper") else np.tril(a)
    b = random_matrix(31, 2, "float64", seed=1)
    source = a
    if in_file:
        source = tmp_path / "A.npy"
        np.save(source, a)
    for transposed in (False, True):
        x = solve(source, b, assume_a=assume_a, transposed=transposed, options=SLABS)
        assert_solved(a.T if transposed else a, x, b, np.dtype("float64"))
    x = solve(source, b[:, 0], assume_a=assume_a, out=np.zeros(31), options=SLABS)
    assert_solved(a, x, b[:, 0], np.dtype("float64"))
    # The scratch file is gone, and A is as it was.
    assert [p.name for p in tmp_path.iterdir()] == (["A.npy"] if in_file else [])
    if in_file:
        np.testing.assert_array_equal(np.load(source), a)


@pytest.mark.parametrize("assume_a", ["gen", "pos"])
@pytest.mark.parametrize("in_file", [True, False])
def test_mixed_dtypes_are_promoted_before_the_factorisation(tmp_path, assume_a, in_file):
    a, b = positive_definite(9, "float32"), random_matrix(9, 2, "complex128")
    source = a
    if in_file:
        source = tmp_path / "A.npy"
        np.save(source, a)
    x = solve(source, b, assume_a=assume_a, overwrite_a=True, options=SLABS)
    assert x.dtype == np.complex128
    assert_solved(a.astype("complex128"), x, b, np.dtype("complex128"))
    np.testing.assert_array_equal(np.load(source) if in_file else source, a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_file_of_one_dimension_is_a_vector(tmp_path, dtype):
    a, b = random_matrix(23, 23, dtype), random_matrix(23, 1, dtype)[:, 0]
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    assert hdgemm.open(tmp_path / "b.npy").shape == (23, 1)
    x = solve(tmp_path / "a.npy", tmp_path / "b.npy", options=SLABS)
    assert x.shape == (23,)
    assert_solved(a, x, b, dtype)
    for name in ("x.npy", f"x.bin::23x1:{dtype}", "x.h5::X", "x.zarr"):
        place = tmp_path / name
        stored = solve(tmp_path / "a.npy", tmp_path / "b.npy", out=place, options=SLABS)
        assert stored.shape == (23,)
        assert isinstance(stored, np.memmap) == (name == "x.npy")
        np.testing.assert_array_equal(stored, x)
        fitted = linalg.lstsq(a[:, :5], b, out=tmp_path / name.replace("23x1", "5x1"))
        assert fitted[0].shape == (5,)
        assert linalg.lu_solve(lu_factor(a), b, out=place).shape == (23,)
        assert linalg.cho_solve((np.eye(23, dtype=dtype), True), b, out=place).shape == (23,)
        assert linalg.solve_triangular(np.eye(23, dtype=dtype), b, out=place).shape == (23,)
    given = np.zeros((23, 1), dtype)
    assert solve(a, b, out=given) is given
    fitted = linalg.lstsq(a[:, :5], tmp_path / "b.npy")[0]
    np.testing.assert_allclose(fitted, scipy.linalg.lstsq(a[:, :5], b)[0], rtol=1e3 * eps_of(dtype))


def test_lists_are_systems():
    assert solve([[2, 0], [0, 4]], [2, 4]).tolist() == [1.0, 1.0]


def test_an_out_of_lower_precision_is_refused(tmp_path):
    a, out = positive_definite(9, "float64"), np.zeros((9, 9), "float32")
    np.save(tmp_path / "A.npy", a)
    for call in (lu_factor, cholesky):
        with pytest.raises(hdgemm.InputTypeError, match=r"float32.*float64"):
            call(tmp_path / "A.npy", out=out)
    with pytest.raises(hdgemm.InputTypeError, match=r"float32.*float64"):
        solve(a, a, out=out)
    wide = np.zeros((9, 9), "complex128")
    assert solve(a, a, out=wide) is wide
    np.testing.assert_allclose(wide, np.eye(9), atol=1e-12)


def test_singular_matrices_are_errors(tmp_path):
    a = random_matrix(23, 23, "float64")
    a[:, 11] = 0
    np.save(tmp_path / "A.npy", a)
    for source in (a, tmp_path / "A.npy"):
        with pytest.raises(scipy.linalg.LinAlgError, match="pivot 12 ") as caught:
            solve(source, np.ones(23), options=SLABS)
        assert caught.value.order == 12
        with pytest.raises(scipy.linalg.LinAlgError, match="number 12 "):
            solve_triangular(source, np.ones(23))
        with pytest.raises(scipy.linalg.LinAlgError, match="order"):
            solve(source, np.ones(23), assume_a="pos", options=SLABS)
    assert [p.name for p in tmp_path.iterdir()] == ["A.npy"]


def test_scipys_names_of_structures():
    a, b = positive_definite(9, "float64"), np.ones(9)
    for name in (None, "general", "symmetric", "hermitian", "positive definite"):
        assert_solved(a, solve(a, b, assume_a=name), b, np.dtype("float64"))
    with pytest.raises(scipy.linalg.LinAlgError, match="order 1 "):  # Cholesky's error
        solve(-a, b, assume_a="positive definite")
    bands = np.diag(np.arange(1.0, 10)) + np.diag(np.ones(8), 1)
    for name in ("diagonal", "tridiagonal", "banded"):
        assert_solved(bands, solve(bands, b, assume_a=name), b, np.dtype("float64"))
    for name in ("band", ["gen"]):
        for call in (solve, lambda a, b, **how: linalg.plan("solve", a, columns=b, **how)):
            with pytest.raises(hdgemm.InputError, match=r"of None, 'gen'.*'lower triangular'"):
                call(a, b, assume_a=name)


@pytest.mark.parametrize("lower", [False, True])
def test_a_solve_in_an_array_holds_no_more_than_the_memory(tmp_path, lower):
    n = 300
    a, b = np.eye(n, order="F"), random_matrix(n, 2, "float64")
    np.save(tmp_path / "A.npy", a)
    for call in (
        lambda **how: solve_triangular(tmp_path / "A.npy", b, lower=lower, **how),
        lambda **how: cho_solve((tmp_path / "A.npy", lower), b, **how),
    ):
        with pytest.raises(hdgemm.DoesNotFitError) as caught:
            call(options=hdgemm.Options(host_memory="10kB"))
        enough, reports = 10_000 + caught.value.missing, []
        call(options=hdgemm.Options(host_memory=enough), report=reports.append)
        assert reports[0].plan["host_bytes"] <= enough
    # Nothing is held beside the caller's arrays.
    solve_triangular(a, b, options=hdgemm.Options(host_memory="10kB"), report=reports.append)
    assert reports[-1].plan["host_bytes"] == 0


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize(("row", "col"), [(20, 3), (20, 19), (20, 20)])
def test_the_first_nan_of_a_triangle_is_named(tmp_path, in_file, order, trans, row, col):
    a = np.array(random_matrix(31, 31, "float64"), order=order)
    a[row, col] = np.nan
    b, options = np.ones(31), hdgemm.Options(host_memory="30MB", tile=(1, 2, 7))
    for lower, matrix, place in ((True, a, (row, col)), (False, a.T, (col, row))):
        source = matrix
        if in_file:
            np.save(tmp_path / "A.npy", matrix)
            source = tmp_path / "A.npy"
        call = partial(solve_triangular, source, b, trans, lower, options=options)
        with pytest.raises(hdgemm.InputError, match=f"a has nan at row {place[0]},") as caught:
            call()
        assert (caught.value.row, caught.value.col) == place
        if row == col:
            call(unit_diagonal=True)  # the diagonal is not read


def test_wrong_arguments_are_refused():
    a, b = np.eye(5), np.ones(5)
    cases = (
        lambda: solve(a, np.ones(4)),
        lambda: solve(a, b, assume_a="bandage"),
        lambda: solve(a + 1j * a, b, assume_a="pos", transposed=True),
        lambda: solve(a, np.array([1, np.nan, 1, 1, 1])),
        lambda: solve_triangular(a, b, trans=3),
        lambda: lu_solve((a, np.arange(4)), b),
        lambda: lu_solve((a, np.arange(5)), b, trans=7),
        lambda: cho_solve((a[:3], True), b),
    )
    for case in cases:
        with pytest.raises(hdgemm.InputError):
            case()


@pytest.mark.parametrize("kept", [0, 3, 6])
@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("columns", [1, 3])
def test_parts_of_the_second_triangle_are_read_with_the_first_one(
    tmp_path, monkeypatch, kept, trans, order, columns
):
    n, block, dtype = 23, 4, np.dtype("complex64")
    found = solve_plan.kept_blocks

    def some(*arguments, lower):
        """Keep a few blocks, as with little memory."""
        starts, _ = found(*arguments, lower=lower)
        return starts[:kept], found(*arguments[:3], 1 << 40, lower=lower)[1] if kept else 0

    for module in ("planning.solve", "solving.triangles"):
        monkeypatch.setattr(f"hdgemm.linalg.{module}.kept_blocks", some)
    a, b = random_matrix(n, n, dtype.name, seed=1), random_matrix(n, columns, dtype.name, seed=2)
    lu, pivots = scipy.linalg.lu_factor(a)
    np.save(tmp_path / "LU.npy", np.asarray(lu, order=order))
    reports = []
    x = lu_solve((tmp_path / "LU.npy", pivots), b, trans, report=reports.append,
                 options=hdgemm.Options(host_memory="20MB"))  # fmt: skip
    assert_solved(OP["NTC"[trans]](a), x, b, dtype)
    (report,) = reports
    assert report.moved_bytes == report.planned_bytes
    # The first triangle's columns are read whole; the last block of 3 columns is kept first where
    # the second triangle is the lower one.
    ragged = (trans == 0) == (order == "C")
    width = min(n, kept * block - (1 if ragged and kept else 0))
    assert report.moved_bytes["load1"] == (2 * n - width) * n * 8 + b.nbytes


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_cholesky_factor_is_read_once_where_memory_holds_a_triangle(tmp_path, lower, order):
    n = 23
    a, b = positive_definite(n, "complex128"), random_matrix(n, 2, "complex128", seed=2)
    c, _ = scipy.linalg.cho_factor(a, lower=lower)
    np.save(tmp_path / "F.npy", np.asarray(c, order=order))
    reports = []
    x = cho_solve((tmp_path / "F.npy", lower), b, report=reports.append,
                  options=hdgemm.Options(host_memory="20MB"))  # fmt: skip
    assert_solved(a, x, b, np.dtype("complex128"))
    assert reports[0].moved_bytes["load1"] == reports[0].planned_bytes["load1"]
    assert reports[0].moved_bytes["load1"] == c.nbytes + b.nbytes
    assert reports[0].plan["host_bytes"] <= 20_000_000


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(0, 50), block=st.integers(1, 60), memory=st.integers(0, 10**6),
    lower=st.booleans(),
)  # fmt: skip
def test_kept_blocks_fit_the_memory(n, block, memory, lower):
    starts, held = solve_plan.kept_blocks(n, block, 8, memory, lower=lower)
    assert held <= memory
    assert set(starts) <= set(range(0, n, block))
    # With the memory that they take, the same ones fit.
    assert solve_plan.kept_blocks(n, block, 8, held, lower=lower) == (starts, held)
    rest = set(range(0, n, block)) - set(starts)
    assert all(first > max(rest, default=-1) for first in starts) if lower else all(
        first < min(rest, default=n) for first in starts)  # fmt: skip
