"""Operands of the calls, opened as stored matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError
from hdgemm.matrices.base import Converted
from hdgemm.matrices.conversion import computed_in
from hdgemm.matrices.location import parse_location
from hdgemm.matrices.operands import as_array, open_operand
from hdgemm.matrices.planned import PlannedMatrix
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.stores import is_stored
from hdgemm.product.target import is_location

if TYPE_CHECKING:
    from numpy.typing import NDArray


def open_matrix(x: Any, what: str = "a") -> StoredMatrix:
    """Open an operand for reading; integers become float64, as in SciPy, float16 and bfloat16
    float32, when they are loaded.

    To close it closes the files that are opened here: of a caller's stored matrix it is a view.

    Raises
    ------
    InputError
        When it is no matrix, or a file that is missing or truncated.
    """
    if isinstance(x, StoredMatrix) and computed_in(x.dtype) == x.dtype.newbyteorder("="):
        return x[:, :]
    if not (is_location(x) or is_stored(x)):
        x = _as_numbers(x, what)
    operand = open_operand(x, what=what)
    dtype = computed_in(operand.matrix.dtype)
    if dtype != operand.matrix.dtype.newbyteorder("="):
        operand = replace(operand, matrix=Converted(operand.matrix, dtype))
    return StoredMatrix(operand, writable=False)


def open_columns(x: Any, what: str = "b") -> tuple[StoredMatrix, bool]:
    """Open a matrix, or a vector as one column; say whether it is a vector."""
    if is_location(x):
        place = parse_location(x)
        return open_matrix(place, what), place.kind.holds_vector(place)
    if not is_stored(x):
        x = _as_numbers(x, what)
    vector = isinstance(x, np.ndarray) and x.ndim == 1
    return open_matrix(x[:, np.newaxis] if vector else x, what), vector


def stored_dtype(matrix: StoredMatrix) -> np.dtype[Any]:
    """Return the dtype of the elements before they are converted, in native byte order."""
    stored = matrix.operand.matrix
    found = stored.stored.dtype if isinstance(stored, Converted) else stored.dtype
    return found.newbyteorder("=")


def _as_numbers(x: Any, what: str) -> NDArray[Any]:
    """Return what `as_array` takes; integers as float64."""
    array = as_array(x, what)
    return array.astype(np.float64) if array.dtype.kind in "iub" else array


def absolute(x: Any) -> Any:
    """Return a location with its absolute path, anything else as it is: the working directory may
    change before the matrix is opened.
    """
    return parse_location(x) if is_location(x) else x


def open_square(x: Any, what: str = "a") -> StoredMatrix:
    """Open an operand and check that it is square."""
    matrix = open_matrix(x, what)
    check_square(matrix.shape, what)
    return matrix


def check_square(shape: tuple[int, int], what: str = "a") -> None:
    """Raise `InputError` where a matrix has not as many rows as columns."""
    if shape[0] != shape[1]:
        raise InputError(f"{what} must be square, it has shape {shape}", shape=shape)


def in_memory(stored: StoredMatrix, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return the column-major array that a matrix is, None where LAPACK cannot work in it."""
    operand = stored.operand
    if operand.matrix.array is None or operand.matrix.dtype != dtype:
        return None
    array = operand.matrix.array.T if operand.trans else operand.matrix.array
    return array if array.flags.f_contiguous and array.flags.aligned else None


def computes_in_place(stored: StoredMatrix, dtype: np.dtype[Any]) -> bool:
    """Say whether LAPACK can work in a matrix: a column-major array, also one that is described."""
    matrix = stored.operand.matrix
    if isinstance(matrix, PlannedMatrix):
        return matrix.in_ram and matrix.dtype == dtype and stored.order == "F"
    return in_memory(stored, dtype) is not None
