"""Element types and row layouts that BLAS takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from hdgemm.dtypes import CONVERTED, SUPPORTED, WHOLE
from hdgemm.errors import DoesNotFitError, InputTypeError
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import DTypeLike, NDArray

_ADVICE: Final = {
    "f": "convert it with .astype('float64')",
    "c": "convert it with .astype('complex128')",
    "i": "convert it with .astype('float64')",
    "u": "convert it with .astype('float64')",
    "b": "convert it with .astype('float64')",
    "O": "give it a number type with .astype('float64')",
    "V": "take one field of it; bfloat16 has the dtype of ml_dtypes",
}
#: Bytes of a chunk, as stored and decoded, that are not counted as host memory.
_SMALL_CHUNKS: Final = 128 << 20


def check_dtype(wanted: DTypeLike, what: str, also: Collection[str] = ()) -> np.dtype[Any]:
    """Return a dtype that is one of BLAS's four or has a name in `also`, in whatever byte order;
    `InputTypeError` for others.
    """
    names = ", ".join((*SUPPORTED, *also))
    try:
        dtype = as_dtype(wanted)
    except InputTypeError:
        raise
    except TypeError as error:
        raise InputTypeError(
            f"{what} cannot have the dtype {wanted!r}; it must be one of {names}"
        ) from error
    name = dtype.newbyteorder("=").name
    if (name in SUPPORTED and dtype.kind in "fc") or name in also:
        return dtype
    advice = _ADVICE.get(dtype.kind, "a matrix holds numbers")
    raise InputTypeError(
        f"{what} has dtype {dtype}; it must be one of {names}: {advice}", dtype=str(dtype)
    )


def check_read(wanted: DTypeLike, what: str) -> np.dtype[Any]:
    """Return a dtype that elements can be loaded from; `InputTypeError` for others."""
    return check_dtype(wanted, what, CONVERTED)


def check_written(wanted: DTypeLike, what: str) -> np.dtype[Any]:
    """Return a dtype that a result is stored in; `InputTypeError` for others."""
    return check_dtype(wanted, what, (WHOLE,))


def as_dtype(wanted: DTypeLike) -> np.dtype[Any]:
    """Return a dtype; ml_dtypes has bfloat16.

    Raises
    ------
    InputTypeError
        For bfloat16 without the library.
    """
    if isinstance(wanted, str) and wanted == "bfloat16":
        try:
            from ml_dtypes import bfloat16
        except ImportError as error:
            raise InputTypeError(
                "bfloat16 needs ml_dtypes: install hdgemm[ml]", dtype="bfloat16"
            ) from error
        found: np.dtype[Any] = np.dtype(bfloat16)
        return found
    return np.dtype(wanted)


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


def check_decoded(chunk_bytes: int, what: str, limit: int) -> None:
    """Raise `DoesNotFitError` where an encoded chunk, as stored and decoded, exceeds a limit.

    Small chunks fit the memory beside `host_memory`, which the interpreter and BLAS take, too.
    """
    if 2 * chunk_bytes > max(limit, _SMALL_CHUNKS):
        size = format_size(chunk_bytes)
        raise DoesNotFitError.within(
            f"decoding a chunk of {what}, {size}, beside its stored bytes", 2 * chunk_bytes, limit
        )
