"""Static types of the results of linalg; mypy checks this module with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
from numpy.typing import NDArray

import hdgemm
from hdgemm.decomposition import PCA, PrincipalComponents, pca
from hdgemm.linalg import (
    CholeskyFactor,
    LUFactors,
    QRFactors,
    RidgeFit,
    cho_factor,
    cho_solve,
    cholesky,
    corrcoef,
    cov,
    det,
    eigsh,
    inv,
    lstsq,
    lu,
    lu_factor,
    lu_solve,
    pinv,
    qr,
    qr_multiply,
    ridge,
    slogdet,
    solve,
    solve_triangular,
    svd,
    svds,
    svdvals,
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
    factors = assert_type(lu_factor(A), LUFactors[NDArray[np.float64]])
    factor = assert_type(cho_factor(A), CholeskyFactor[NDArray[np.float64]])
    for x in (
        assert_type(factors.lu, NDArray[np.float64]),
        assert_type(factor.c, NDArray[np.float64]),
        assert_type(lu_solve(factors, B), NDArray[Any]),
        assert_type(cho_solve(factor, B), NDArray[Any]),
    ):
        assert type(x) is np.ndarray


def test_factors_in_files(tmp_path: Path) -> None:
    where = tmp_path / "A.npy"
    np.save(where, A)
    stored = assert_type(lu_factor(where, out=tmp_path / "LU.npy").lu, NDArray[Any] | StoredMatrix)
    assert isinstance(stored, np.memmap)
    assert type(assert_type(cho_factor(where).c, NDArray[Any])) is np.ndarray
    out: NDArray[np.float64] = np.empty((2, 2))
    assert assert_type(lu_factor(where, out=out), LUFactors[NDArray[np.float64]]).lu is out
    over = assert_type(lu_factor(where, overwrite_a=True), LUFactors[NDArray[Any] | StoredMatrix])
    assert isinstance(over.lu, np.memmap)
    plain: LUFactors = over
    assert plain.piv.dtype == np.int64


def test_determinants_of_real_arrays_are_real() -> None:
    wide: NDArray[np.complex128] = A.astype(complex)
    real = (
        assert_type(det(A), float),
        assert_type(det(A.astype(np.int64)), float),
        assert_type(slogdet(A).sign, float),
        assert_type(slogdet(wide).logabsdet, float),
    )
    assert {type(x) for x in real} == {float}
    either = assert_type(det(wide), complex), assert_type(slogdet(wide).sign, complex)
    assert {type(x) for x in either} == {complex}
    assert type(assert_type(det(lu_factor(A)), complex)) is float


def test_lu_of_arrays_and_files(tmp_path: Path) -> None:
    array = NDArray[Any]
    stored = NDArray[Any] | StoredMatrix
    found = (
        *assert_type(lu(A), tuple[array, array, array]),
        *assert_type(lu(A, permute_l=True), tuple[array, array]),
    )
    assert {type(x) for x in found} == {np.ndarray}
    places = tmp_path / "L.npy", tmp_path / "U.npy"
    p, left, right = assert_type(lu(A, out=places, p_indices=True), tuple[array, stored, stored])
    pair = assert_type(lu(A, True, out=(None, places[1])), tuple[stored, stored])
    assert [type(x) for x in (p, left, right, *pair)] == [
        np.ndarray,
        np.memmap,
        np.memmap,
        np.ndarray,
        np.memmap,
    ]


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
        assert_type(cov(A), NDArray[np.float64]),
        assert_type(corrcoef(A), NDArray[np.float64]),
        assert_type(svdvals(A), NDArray[np.float64]),
        assert_type(svdvals(A.astype(complex)), NDArray[Any]),
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
        svd(where, out=(tmp_path / "U.npy", None, None)), tuple[stored, NDArray[Any], NDArray[Any]]
    )
    assert (type(u), type(vh)) == (np.memmap, np.ndarray)
    place = f"{tmp_path}/s.bin::2x1:float64"
    _, s, v = assert_type(
        svd(where, out=(None, place, tmp_path / "Vh.npy")), tuple[stored, NDArray[Any], stored]
    )
    assert (type(s), type(v)) == (np.ndarray, np.memmap)
    w, _ = assert_type(eigsh(where, 1, out=(None, tmp_path / "V.npy")), tuple[NDArray[Any], stored])
    assert type(w) is np.ndarray
    values: NDArray[np.float64] = np.empty(2)
    assert assert_type(svdvals(where, out=values), NDArray[np.float64]) is values
    assert isinstance(assert_type(svdvals(where, out=tmp_path / "s.npy"), NDArray[Any]), np.memmap)
    assert isinstance(assert_type(cov(where, out=tmp_path / "C.npy"), stored), np.memmap)
    out: NDArray[np.float64] = np.empty((2, 2))
    assert assert_type(pinv(where, out=out), NDArray[np.float64]) is out


def test_qr_of_arrays_gives_arrays() -> None:
    found = (
        *assert_type(qr(A), tuple[NDArray[Any], NDArray[Any]]),
        *assert_type(qr(A, mode="economic"), tuple[NDArray[Any], NDArray[Any]]),
        *assert_type(qr(A, mode="r"), tuple[NDArray[Any]]),
    )
    factors, r = assert_type(qr(A, mode="raw"), tuple[QRFactors[NDArray[Any]], NDArray[Any]])
    assert {type(x) for x in (*found, factors.qr, factors.tau, r)} == {np.ndarray}


def test_qr_of_files_gives_what_is_stored(tmp_path: Path) -> None:
    stored = NDArray[Any] | StoredMatrix
    where, q_file, r_file = (tmp_path / name for name in ("A.npy", "Q.npy", "R.npy"))
    np.save(where, A)
    q, _ = assert_type(qr(where, out=(q_file, None)), tuple[stored, NDArray[Any]])
    _, second = assert_type(qr(where, out=(None, r_file)), tuple[NDArray[Any], stored])
    assert isinstance(second, np.memmap)
    both = assert_type(qr(where, out=(q_file, r_file)), tuple[stored, stored])
    assert {type(x) for x in both} == {np.memmap}
    (r,) = assert_type(qr(where, mode="r", out=r_file), tuple[stored])
    pair = assert_type(qr(where, mode="raw", out=(None, r_file)), tuple[QRFactors[stored], stored])
    assert {type(x) for x in (q, r, pair[1])} == {np.memmap}
    alone = assert_type(qr(where, mode="raw", out=q_file), tuple[QRFactors[stored], None])
    over = assert_type(
        qr(where, overwrite_a=True, mode="raw"), tuple[QRFactors[stored], NDArray[Any] | None]
    )
    assert (alone[1], over[1]) == (None, None)


def test_qr_multiply(tmp_path: Path) -> None:
    array = NDArray[Any]
    stored = NDArray[Any] | StoredMatrix
    found = assert_type(qr_multiply(A, B, "left"), tuple[array, array])
    places = tmp_path / "QB.npy", None
    product, r = assert_type(qr_multiply(A, B, "left", out=places), tuple[stored, stored])
    assert [type(x) for x in (*found, product, r)] == [
        np.ndarray,
        np.ndarray,
        np.memmap,
        np.ndarray,
    ]


def test_ridge_of_several_penalties_gives_arrays() -> None:
    several = assert_type(ridge(A, B[:, 0], [0.1, 1.0]), RidgeFit[NDArray[Any]])
    for each in (several.intercept, several.residues, several.degrees_of_freedom, several.r2):
        assert assert_type(each, NDArray[Any]).shape == (2,)
    one = ridge(A, B[:, 0], 0.1)
    values = one.intercept, one.residues, one.degrees_of_freedom, one.r2
    for value in values:
        assert isinstance(assert_type(value, np.inexact[Any] | NDArray[Any]), np.float64)
    assert float(one.r2) < 1


def test_principal_components(tmp_path: Path) -> None:
    array = NDArray[Any]
    stored = NDArray[Any] | StoredMatrix
    samples = np.arange(12.0).reshape(6, 2) ** 2
    where = tmp_path / "scores.npy"
    found = assert_type(pca(samples, 1), PrincipalComponents[array, array])
    written = assert_type(
        pca(samples, 1, out=(where, None, None)), PrincipalComponents[stored, array]
    )
    assert [type(x) for x in (found.scores, found.components, found.mean)] == [np.ndarray] * 3
    assert isinstance(written.scores, np.memmap)
    model = PCA(1).fit(samples)
    out: NDArray[np.float64] = np.empty((6, 1))
    scores = assert_type(model.transform(samples), array)
    assert type(assert_type(PCA(1).fit_transform(samples), array)) is np.ndarray
    assert assert_type(model.transform(samples, out=out), NDArray[np.float64]) is out
    assert isinstance(assert_type(model.transform(samples, out=where), stored), np.memmap)
    assert type(assert_type(model.inverse_transform(scores), array)) is np.ndarray
