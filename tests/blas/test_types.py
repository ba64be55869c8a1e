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
    d = assert_type(hdgemm.dgemm(2.0, A, B), NDArray[Any])
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
