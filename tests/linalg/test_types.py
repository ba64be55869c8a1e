"""Static types of the results of linalg; mypy checks this module with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
from numpy.typing import NDArray

import hdgemm
from hdgemm.linalg import (
    CholeskyFactor,
    LUFactors,
    QRFactors,
    cho_factor,
    cho_solve,
    cholesky,
    corrcoef,
    cov,
    eigsh,
    inv,
    lstsq,
    lu_factor,
    lu_solve,
    pinv,
    qr,
    solve,
    solve_triangular,
    svd,
    svds,
)
from hdgemm.matrices.stored import StoredMatrix

if TYPE_CHECKING:
    from pathlib import Path

A: NDArray[np.float64] = np.diag([4.0, 9.0])
B: NDArray[np.float64] = np.ones((2, 1))


def test_arrays_give_arrays_of_their_dtype() -> None:
    single: NDArray[np.float32] = A.astype(np.float32)
    found = (
        assert_type(solve(A, B), NDArray[np.float64]),
        assert_type(inv(A), NDArray[np.float64]),
        assert_type(cholesky(single, lower=True), NDArray[np.float32]),
        assert_type(solve_triangular(A, B), NDArray[np.float64]),
    )
    assert [x.dtype for x in found] == ["float64", "float64", "float32", "float64"]
    mixed = assert_type(solve(single, B), NDArray[Any])
    assert mixed.dtype == "float64"


def test_factors_have_a_type_and_solve_an_array() -> None:
    lu = assert_type(lu_factor(A), LUFactors)
    factor = assert_type(cho_factor(A), CholeskyFactor)
    for x in (
        assert_type(lu_solve(lu, B), NDArray[Any]),
        assert_type(cho_solve(factor, B), NDArray[Any]),
    ):
        assert type(x) is np.ndarray


def test_locations_and_out(tmp_path: Path) -> None:
    where = tmp_path / "A.npy"
    np.save(where, A)
    assert type(assert_type(inv(where), NDArray[Any])) is np.ndarray
    out: NDArray[np.float64] = np.empty((2, 1))
    assert assert_type(solve(where, B, out=out), NDArray[np.float64]) is out
    stored = assert_type(solve(where, B, out=tmp_path / "x.npy"), NDArray[Any] | StoredMatrix)
    assert isinstance(stored, np.memmap)
    with hdgemm.create(tmp_path / "y.npy", (2, 1)) as y:
        assert assert_type(solve(A, B, out=y), StoredMatrix) is y


def test_reductions_of_arrays_give_arrays() -> None:
    found = (
        assert_type(cov(A), NDArray[Any]),
        assert_type(corrcoef(A), NDArray[Any]),
        assert_type(pinv(A), NDArray[Any]),
        *assert_type(svd(A), tuple[NDArray[Any], NDArray[Any], NDArray[Any]]),
        *assert_type(svds(A, 1), tuple[NDArray[Any], NDArray[Any], NDArray[Any]]),
        *assert_type(eigsh(A, 1), tuple[NDArray[Any], NDArray[Any]]),
        assert_type(svd(A, compute_uv=False), NDArray[Any]),
        assert_type(svds(A, 1, return_singular_vectors=False), NDArray[Any]),
        assert_type(eigsh(A, 1, return_eigenvectors=False), NDArray[Any]),
        assert_type(lstsq(A, B), tuple[NDArray[Any], NDArray[Any], int, NDArray[Any] | None])[0],
        assert_type(pinv(A, return_rank=True), tuple[NDArray[Any], int])[0],
    )
    assert {type(x) for x in found} == {np.ndarray}


def test_reductions_of_files_give_what_is_stored(tmp_path: Path) -> None:
    stored = NDArray[Any] | StoredMatrix
    where = tmp_path / "A.npy"
    np.save(where, A)
    u, _, vh = assert_type(
        svd(where, out=(tmp_path / "U.npy", None, None)), tuple[stored, stored, stored]
    )
    assert (type(u), type(vh)) == (np.memmap, np.ndarray)
    assert isinstance(assert_type(cov(where, out=tmp_path / "C.npy"), stored), np.memmap)
    out: NDArray[np.float64] = np.empty((2, 2))
    assert assert_type(pinv(where, out=out), NDArray[np.float64]) is out


def test_qr_of_arrays_gives_arrays() -> None:
    found = (
        *assert_type(qr(A), tuple[NDArray[Any], NDArray[Any]]),
        *assert_type(qr(A, mode="economic"), tuple[NDArray[Any], NDArray[Any]]),
        *assert_type(qr(A, mode="r"), tuple[NDArray[Any]]),
    )
    factors, r = assert_type(qr(A, mode="raw"), tuple[QRFactors, NDArray[Any]])
    assert {type(x) for x in (*found, factors.qr, factors.tau, r)} == {np.ndarray}


def test_qr_of_files_gives_what_is_stored(tmp_path: Path) -> None:
    stored = NDArray[Any] | StoredMatrix
    where, q_file, r_file = (tmp_path / name for name in ("A.npy", "Q.npy", "R.npy"))
    np.save(where, A)
    q, _ = assert_type(qr(where, out=(q_file, None)), tuple[stored, stored])
    (r,) = assert_type(qr(where, mode="r", out=r_file), tuple[stored])
    pair = assert_type(qr(where, mode="raw", out=(None, r_file)), tuple[QRFactors, stored])
    assert {type(x) for x in (q, r, pair[1])} == {np.memmap}
    alone = assert_type(qr(where, mode="raw", out=q_file), tuple[QRFactors, None])
    over = assert_type(
        qr(where, overwrite_a=True, mode="raw"), tuple[QRFactors, NDArray[Any] | None]
    )
    assert (alone[1], over[1]) == (None, None)
