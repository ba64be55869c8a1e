"""Static types of the products' results; mypy checks this module with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
from numpy.typing import NDArray

import hdgemm
from hdgemm.matrices.stored import StoredMatrix

if TYPE_CHECKING:
    from pathlib import Path

A = np.ones((3, 4))
B = np.ones((4, 2))


def test_arrays_give_an_array() -> None:
    c = assert_type(hdgemm.matmul(A, B), NDArray[np.float64])
    mixed = assert_type(hdgemm.matmul(A.tolist(), B, options=hdgemm.Options()), NDArray[Any])
    d = assert_type(hdgemm.dgemm(2.0, A, B), NDArray[np.float64])
    for x in (c, mixed, d):
        assert isinstance(x, np.ndarray)


def test_out_is_returned_with_its_type(tmp_path: Path) -> None:
    out: NDArray[np.float64] = np.empty((3, 2))
    assert assert_type(hdgemm.matmul(A, B, out), NDArray[np.float64]) is out
    assert assert_type(hdgemm.matmul(A, B, out=(out,)), NDArray[np.float64]) is out
    assert assert_type(hdgemm.dgemm(1.0, A, B, out=out), NDArray[np.float64]) is out
    with hdgemm.create(tmp_path / "s.npy", (3, 2)) as stored:
        assert assert_type(hdgemm.matmul(A, B, out=stored), StoredMatrix) is stored


def test_a_location_gives_a_memmap_or_a_stored_matrix(tmp_path: Path) -> None:
    c = assert_type(hdgemm.matmul(A, B, out=tmp_path / "c.npy"), NDArray[Any] | StoredMatrix)
    d = assert_type(
        hdgemm.dgemm(1.0, A, B, out=f"{tmp_path}/d.bin::3x2:float64"),
        NDArray[Any] | StoredMatrix,
    )
    assert isinstance(c, np.memmap)
    assert isinstance(d, StoredMatrix)
    d.close()


def test_a_function_is_returned() -> None:
    def add(rows: slice, cols: slice, tile: NDArray[np.float64]) -> None:
        total[rows, cols] += tile

    total = np.zeros((3, 2))
    found = (
        hdgemm.matmul(A, B, out=add),
        hdgemm.matmul(A, B, (add,)),
        hdgemm.dgemm(1.0, A, B, out=add),
    )
    assert found == (add, add, add)
    assert np.array_equal(total, 3 * A @ B)


def test_a_product_of_half_precision_is_single() -> None:
    half = A.astype(np.float16)
    assert assert_type(hdgemm.matmul(half, half.T), NDArray[Any]).dtype == np.float32


def test_level_3_routines_keep_the_dtype(tmp_path: Path) -> None:
    s: NDArray[np.float32] = np.eye(4, dtype=np.float32)
    b: NDArray[np.float32] = B.astype(np.float32)
    found = (
        assert_type(hdgemm.syrk(1.0, s), NDArray[np.float32]),
        assert_type(hdgemm.herk(1.0, s, 1.0, s), NDArray[np.float32]),
        assert_type(hdgemm.syr2k(1.0, s, s), NDArray[np.float32]),
        assert_type(hdgemm.her2k(1.0, s, s), NDArray[np.float32]),
        assert_type(hdgemm.symm(1.0, s, b), NDArray[np.float32]),
        assert_type(hdgemm.hemm(1.0, s, b), NDArray[np.float32]),
        assert_type(hdgemm.trmm(1.0, s, b), NDArray[np.float32]),
        assert_type(hdgemm.trsm(1.0, s, b, overwrite_b=True), NDArray[np.float32]),
    )
    assert {x.dtype.name for x in found} == {"float32"}
    mixed = assert_type(hdgemm.trsm(1.0, s, B), NDArray[Any])
    assert mixed.dtype == np.float64
    out: NDArray[np.float64] = np.zeros((4, 4))
    assert assert_type(hdgemm.syrk(1.0, s, out=out), NDArray[np.float64]) is out
    stored = NDArray[Any] | StoredMatrix
    where = tmp_path / "C.npy"
    assert isinstance(assert_type(hdgemm.syrk(1.0, s, out=where), stored), np.memmap)
    assert isinstance(assert_type(hdgemm.trsm(1.0, s, B, out=where), stored), np.memmap)
