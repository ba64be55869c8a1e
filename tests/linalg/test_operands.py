"""Operands that are no matrices, and factors that do not belong together, are refused by name."""

import io

import numpy as np
import pytest
import scipy.linalg

import hdgemm
from hdgemm import linalg
from hdgemm.linalg.factor_check import check_cholesky, check_lu

A, B = np.eye(4) + 0.1, np.ones((4, 2))
OPERANDS = {
    "cholesky a": linalg.cholesky,
    "cho_factor a": linalg.cho_factor,
    "cho_solve c": lambda x: linalg.cho_solve((x, True), B),
    "cho_solve b": lambda x: linalg.cho_solve((A, True), x),
    "cond a": linalg.cond,
    "corrcoef a": linalg.corrcoef,
    "cov a": linalg.cov,
    "det a": linalg.det,
    "dgemm b": lambda x: hdgemm.dgemm(1.0, A, x),
    "inv a": linalg.inv,
    "lstsq a": lambda x: linalg.lstsq(x, B),
    "lstsq b": lambda x: linalg.lstsq(A, x),
    "lu a": linalg.lu,
    "lu_factor a": linalg.lu_factor,
    "lu_solve lu": lambda x: linalg.lu_solve((x, np.arange(4)), B),
    "lu_solve b": lambda x: linalg.lu_solve((A, np.arange(4)), x),
    "matmul a": lambda x: hdgemm.matmul(x, B),
    "multiply a": lambda x: hdgemm.multiply(x, B, out=np.empty((4, 2))),
    "plan b": lambda x: hdgemm.plan(A, x),
    "qr a": linalg.qr,
    "qr_multiply a": lambda x: linalg.qr_multiply(x, B),
    "qr_multiply c": lambda x: linalg.qr_multiply(A, x),
    "slogdet a": linalg.slogdet,
    "solve a": lambda x: linalg.solve(x, B),
    "solve b": lambda x: linalg.solve(A, x),
    "solve_triangular a": lambda x: linalg.solve_triangular(x, B),
    "solve_triangular b": lambda x: linalg.solve_triangular(A, x),
    "stream a": lambda x: next(hdgemm.stream(x, B)),
    "symm a": lambda x: hdgemm.symm(1.0, x, B),
    "syrk a": lambda x: hdgemm.syrk(1.0, x),
    "topk a": lambda x: hdgemm.topk(x, B, 1),
    "trmm a": lambda x: hdgemm.trmm(1.0, x, B),
    "trmm b": lambda x: hdgemm.trmm(1.0, A, x),
    "trsm a": lambda x: hdgemm.trsm(1.0, x, B),
    "trsm b": lambda x: hdgemm.trsm(1.0, A, x),
    "verify c": lambda x: hdgemm.verify(A, B, x),
}
NO_MATRICES = {
    "nothing": None,
    "an object": object(),
    "a generator": (row for row in A),
    "a dictionary": {"a": 1},
    "a set": {1.0, 2.0},
    "a file": io.BytesIO(),
    "rows of different lengths": [[1, 2], [3]],
    "a masked array": np.ma.masked_array(A, mask=A > 1),
    "texts": np.array([["1", "2"], ["3", "4"]]),
    "three dimensions": np.zeros((2, 2, 2)),
    "extended precision": A.astype("longdouble"),
    "bytes": b"A.npy",
}


@pytest.mark.parametrize("call", OPERANDS)
@pytest.mark.parametrize("kind", NO_MATRICES)
def test_what_is_no_matrix_is_refused_by_name(call, kind):
    with pytest.raises(hdgemm.InputError, match=rf"^{call.split()[1]} (is|has|must) "):
        OPERANDS[call](NO_MATRICES[kind])


@pytest.mark.parametrize("kind", ["nothing", "a generator", "a dictionary", "a file", "bytes"])
def test_what_numpy_makes_no_array_of_is_no_scalar(kind):
    for call in (lambda x: hdgemm.matmul(x, B), linalg.det):
        with pytest.raises(hdgemm.InputTypeError, match=r"^a is a \w+; it must be a 2-D array of"):
            call(NO_MATRICES[kind])
    with pytest.raises(hdgemm.InputError, match=r"use \* for a scalar"):
        hdgemm.matmul(5, B)


def test_a_table_of_several_arrays_is_refused_with_its_librarys_advice():
    xarray = pytest.importorskip("xarray")
    with pytest.raises(hdgemm.InputTypeError, match=r"^a is a Dataset and no matrix: .*DataArray"):
        hdgemm.matmul(xarray.Dataset({"x": (("row", "column"), A)}), B)


def multiplied(x, y):
    out = np.empty(B.shape)
    hdgemm.multiply(x, y, out=out)
    return out


TABLES = {
    "matmul": hdgemm.matmul,
    "multiply": multiplied,
    "dgemm": lambda x, y: hdgemm.dgemm(1.0, x, y, 2.0, y),
    "topk": lambda x, _: hdgemm.topk(x, x, 2, trans_b=True).values,
    "verify": lambda x, y: hdgemm.verify(x, y, hdgemm.matmul(x, y)).passed,
    "stream": lambda x, y: [tile.copy() for *_, tile in hdgemm.stream(x, y)],
    "plan": lambda x, y: hdgemm.plan(x, y)[0].problem.m,
    "syrk": lambda x, _: hdgemm.syrk(1.0, x),
    "syr2k": lambda x, _: hdgemm.syr2k(1.0, x, x),
    "symm": lambda x, y: hdgemm.symm(1.0, x, y),
    "trmm": lambda x, y: hdgemm.trmm(1.0, x, y),
    "trsm": lambda x, y: hdgemm.trsm(1.0, x, y),
    "cov": lambda x, _: linalg.cov(x),
    "solve": linalg.solve,
    "open": lambda x, _: hdgemm.open(x).read(),
}


@pytest.mark.parametrize("kind", ["list", "DataFrame"])
@pytest.mark.parametrize("call", TABLES.values(), ids=TABLES)
def test_lists_and_tables_are_taken_as_arrays(call, kind):
    table = np.ndarray.tolist if kind == "list" else pytest.importorskip("pandas").DataFrame
    np.testing.assert_array_equal(call(table(A), table(B)), call(A, B))


def test_the_matrix_of_a_plan_comes_after_its_routine():
    with pytest.raises(hdgemm.InputTypeError, match="name such as 'lu', got a ndarray: pass the"):
        linalg.plan(A, "lu")


PIVOTS = {
    "beyond the matrix": [4, 1, 2, 3],
    "negative": [-1, 1, 2, 3],
    "fractions": [0.5, 1, 2, 3],
    "texts": ["0", "1", "2", "3"],
    "too few": [0, 1, 2],
    "too many": [0, 1, 2, 3, 3],
    "none": None,
}


@pytest.mark.parametrize("kind", PIVOTS)
def test_pivots_that_are_no_rows_are_refused(kind):
    """LAPACK would interchange memory beyond the matrix."""
    factors = (A, PIVOTS[kind])
    calls = (
        lambda: linalg.lu_solve(factors, B),
        lambda: linalg.inv(factors),
        lambda: linalg.det(factors),
        lambda: linalg.slogdet(factors),
        lambda: linalg.cond(A, factors=factors),
        lambda: check_lu(A, factors),
    )
    for call in calls:
        with pytest.raises(hdgemm.InputError, match="piv"):
            call()


@pytest.mark.parametrize("factors", [None, A, "LU.npy", (A,), (A, A, A), 5])
def test_factors_are_a_pair(factors):
    calls = [
        lambda: linalg.lu_solve(factors, B),
        lambda: linalg.cho_solve(factors, B),
    ]
    if factors is not None:
        calls.append(lambda: linalg.cond(A, factors=factors))
    if isinstance(factors, tuple):
        calls += [lambda: check_lu(A, factors), lambda: check_cholesky(A, factors)]
    for call in calls:
        with pytest.raises(hdgemm.InputError, match="must be the pair"):
            call()


@pytest.mark.parametrize("lower", ["U", "L", None, 2, 1.0])
def test_lower_is_no_letter(lower):
    """As truth values, "U" and "L" would both mean the lower triangle."""
    calls = (
        lambda: linalg.cholesky(A, lower),
        lambda: linalg.cho_factor(A, lower),
        lambda: linalg.solve(A, B, lower, assume_a="sym"),
        lambda: linalg.solve_triangular(A, B, lower=lower),
    )
    for call in calls:
        with pytest.raises(hdgemm.InputError, match="lower must be 0 or 1"):
            call()


def test_factors_of_another_kind_are_refused():
    lu, chol = linalg.lu_factor(A), linalg.cho_factor(A)
    reflectors, _ = linalg.qr(A, mode="raw")
    calls = {
        "lu_and_piv must be the pair that lu_factor returned, got CholeskyFactor":
            lambda: linalg.inv(chol),
        "lu_and_piv must be the pair that lu_factor returned, got QRFactors":
            lambda: linalg.lu_solve(reflectors, B),
        "factors must be the pair that lu_factor returned, got CholeskyFactor":
            lambda: linalg.cond(A, factors=chol),
        "c_and_lower must be the pair that cho_factor returned, got LUFactors":
            lambda: linalg.cho_solve(lu, B),
        r"lower has shape \(4,\)": lambda: linalg.cho_solve(scipy.linalg.lu_factor(A), B),
    }  # fmt: skip
    for message, call in calls.items():
        with pytest.raises(hdgemm.InputError, match=message):
            call()


COMPLEX_OUT = {
    "cholesky": lambda out: linalg.cholesky(A, out=out),
    "lu_factor": lambda out: linalg.lu_factor(A, out=out),
    "qr raw": lambda out: linalg.qr(A, mode="raw", out=out),
    "qr full": lambda out: linalg.qr(A, out=(out, out.copy())),
}


@pytest.mark.parametrize("call", COMPLEX_OUT)
def test_a_complex_out_of_real_factors_is_refused_before_it_is_written(call):
    out = np.full((4, 4), 7j)
    with pytest.raises(hdgemm.InputTypeError, match="out has dtype complex128, but the result"):
        COMPLEX_OUT[call](out)
    assert (out == 7j).all()


def test_out_is_named_in_refusals(tmp_path):
    np.save(tmp_path / "A.npy", A)
    with (
        hdgemm.open(tmp_path / "A.npy") as a,
        pytest.raises(hdgemm.InputError, match=r"^a is to be"),
    ):
        linalg.lu_factor(a, overwrite_a=True)
    with pytest.raises(hdgemm.InputError, match=r"^out must be a matrix"):
        linalg.qr(A, mode="r", out=np.zeros(4))


def test_a_vector_may_go_into_one_column():
    out = np.zeros((4, 1))
    assert linalg.solve(A, B[:, 0], out=out) is out
    np.testing.assert_allclose(A @ out, B[:, :1])


@pytest.mark.parametrize("mode", ["left", "right"])
def test_the_place_of_a_nan_in_c_of_qr_multiply(mode):
    c = np.ones((4, 4))
    c[1, 2] = np.nan
    with pytest.raises(hdgemm.InputError, match=r"^c has nan at row 1, column 2"):
        linalg.qr_multiply(A, c, mode)


@pytest.mark.parametrize("location", [None, 5, A, b"\0", object()])
def test_a_location_is_a_text(location):
    with pytest.raises(hdgemm.InputError):
        linalg.open(location)
