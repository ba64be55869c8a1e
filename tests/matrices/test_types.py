"""Static types of operators and indices of stored matrices; mypy checks this module, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
import pytest
from numpy.typing import NDArray

import hdgemm
from hdgemm.matrices.stored import StoredMatrix

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def stored(tmp_path: Path) -> StoredMatrix:
    where = tmp_path / "A.npy"
    np.save(where, np.arange(9.0).reshape(3, 3))
    return hdgemm.open(where)


def test_operators_give_arrays(stored: StoredMatrix) -> None:
    x = np.ones(3)
    found = (
        assert_type(stored @ x, NDArray[Any]),
        assert_type(stored @ stored.T, NDArray[Any]),
        assert_type(stored @ [1.0, 2.0, 3.0], NDArray[Any]),
        assert_type([1.0, 2.0, 3.0] @ stored, NDArray[Any]),
        assert_type(stored * 2, NDArray[Any]),
        assert_type(2.0 * stored, NDArray[Any]),
        assert_type(stored * np.float32(2), NDArray[Any]),
    )
    assert {type(each) for each in found} == {np.ndarray}


def test_integers_read_and_slices_view(stored: StoredMatrix) -> None:
    arrays = (
        assert_type(stored[0], NDArray[Any]),
        assert_type(stored[np.int64(0)], NDArray[Any]),
        assert_type(stored[0, 1:], NDArray[Any]),
        assert_type(stored[..., 0], NDArray[Any]),
    )
    assert {type(each) for each in arrays} == {np.ndarray}
    views = (
        assert_type(stored[1:], StoredMatrix),
        assert_type(stored[::2, ::-1], StoredMatrix),
        assert_type(stored[...], StoredMatrix),
        assert_type(stored[()], StoredMatrix),
    )
    assert {type(each) for each in views} == {StoredMatrix}
    element: float = stored[1, 2]
    assert element == 5.0


def test_devices_may_be_a_list(stored: StoredMatrix) -> None:
    options = hdgemm.Options(devices=["host"])
    assert options.devices == ("host",)
    assert (stored @ np.ones(3)).shape == hdgemm.matmul(stored, np.ones(3), options=options).shape
