"""Operands that are no matrices, and factors that do not belong together, are refused by name."""

import numpy as np
import pytest

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
    "det a": linalg.det,
    "inv a": linalg.inv,
    "lstsq a": lambda x: linalg.lstsq(x, B),
    "lstsq b": lambda x: linalg.lstsq(A, x),
    "lu a": linalg.lu,
    "lu_factor a": linalg.lu_factor,
    "lu_solve lu": lambda x: linalg.lu_solve((x, np.arange(4)), B),
    "lu_solve b": lambda x: linalg.lu_solve((A, np.arange(4)), x),
    "qr a": linalg.qr,
    "qr_multiply a": lambda x: linalg.qr_multiply(x, B),
    "qr_multiply c": lambda x: linalg.qr_multiply(A, x),
    "slogdet a": linalg.slogdet,
    "solve a": lambda x: linalg.solve(x, B),
    "solve b": lambda x: linalg.solve(A, x),
    "solve_triangular a": lambda x: linalg.solve_triangular(x, B),
    "solve_triangular b": lambda x: linalg.solve_triangular(A, x),
    "symm a": lambda x: hdgemm.symm(1.0, x, B),
    "syrk a": lambda x: hdgemm.syrk(1.0, x),
    "trmm a": lambda x: hdgemm.trmm(1.0, x, B),
    "trmm b": lambda x: hdgemm.trmm(1.0, A, x),
    "trsm a": lambda x: hdgemm.trsm(1.0, x, B),
    "trsm b": lambda x: hdgemm.trsm(1.0, A, x),
}  # fmt: skip
NO_MATRICES = {
    "nothing": None,
    "an object": object(),
    "rows of different lengths": [[1, 2], [3]],
    "a masked array": np.ma.masked_array(A, mask=A > 1),
    "texts": np.array([["1", "2"], ["3", "4"]]),
    "three dimensions": np.zeros((2, 2, 2)),
    "half precision": A.astype("float16"),
}


@pytest.mark.parametrize("call", OPERANDS)
@pytest.mark.parametrize("kind", NO_MATRICES)
def test_what_is_no_matrix_is_refused_by_name(call, kind):
    with pytest.raises(hdgemm.InputError, match=rf"^{call.split()[1]} (is|has|must) "):
        OPERANDS[call](NO_MATRICES[kind])


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


@pytest.mark.parametrize("location", [None, 5, A, b"\0", object()])
def test_a_location_is_a_text(location):
    with pytest.raises(hdgemm.InputError):
        linalg.open(location)
