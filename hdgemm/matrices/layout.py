"""Element types and row layouts that BLAS takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from hdgemm.dtypes import SUPPORTED
from hdgemm.errors import InputTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike, NDArray

_ADVICE: Final = {
    "f": "convert it with .astype('float32') or .astype('float64')",
    "c": "convert it with .astype('complex128')",
    "i": "convert it with .astype('float64')",
    "u": "convert it with .astype('float64')",
    "b": "convert it with .astype('float64')",
    "O": "give it a number type with .astype('float64')",
    "V": "take one field of it",
}


def check_dtype(wanted: DTypeLike, what: str) -> np.dtype[Any]:
    """Return a dtype that is one of BLAS's four, in whatever byte order; `InputTypeError` for
    others.
    """
    try:
        dtype = np.dtype(wanted)
    except TypeError as error:
        raise InputTypeError(
            f"{what} cannot have the dtype {wanted!r}; it must be one of {', '.join(SUPPORTED)}"
        ) from error
    if dtype.newbyteorder("=").name in SUPPORTED and dtype.kind in "fc":
        return dtype
    advice = _ADVICE.get(dtype.kind, "a matrix holds numbers")
    raise InputTypeError(
        f"{what} has dtype {dtype}; it must be one of {', '.join(SUPPORTED)}: {advice}",
        dtype=str(dtype),
    )


def row_pitch(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int | None:
    """Return the bytes from one row to the next where every row is contiguous and rows do not
    overlap; None for any other layout.
    """
    rows, cols = shape
    row_bytes = cols * itemsize
    if cols > 1 and strides[1] != itemsize:
        return None
    if rows <= 1:
        return row_bytes
    return strides[0] if strides[0] >= row_bytes else None


def blas_takes(array: NDArray[Any] | None, dtype: np.dtype[Any]) -> TypeGuard[NDArray[Any]]:
    """Return whether BLAS can use an array in place, row-major with a leading dimension: it has
    the product's dtype in native byte order, aligned elements, and contiguous rows whose distance
    is a whole number of elements.
    """
    if array is None or array.dtype != dtype or not array.dtype.isnative:
        return False
    pitch = row_pitch(array.shape, array.strides, array.itemsize)
    return array.flags.aligned and pitch is not None and pitch % array.itemsize == 0


def rectangles(shape: tuple[int, int], most: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut a matrix into (row, col, rows, cols) of at most `most` elements, one at least: whole
    rows, or parts of rows that are too long.
    """
    height, width = shape
    cols = max(1, min(width, most))
    rows = max(1, most // cols)
    for row in range(0, height, rows):
        for col in range(0, width, cols):
            yield row, col, min(rows, height - row), min(cols, width - col)
