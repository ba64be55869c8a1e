"""From what a caller passes to what the pipeline reads and writes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.matrices.base import Operand
from hdgemm.matrices.device_arrays import from_device_array, is_device_array
from hdgemm.matrices.dtypes import check_dtype
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile
from hdgemm.matrices.location import Location
from hdgemm.matrices.memmaps import find_mapping
from hdgemm.matrices.stores import from_store, open_location

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix

__all__ = ["Operand", "open_operand"]


def open_operand(
    x: Any, *, what: str = "a", trans: bool = False, conj: bool = False, writable: bool = False
) -> Operand:
    """Open one of A, B and C, wherever it lies; nothing is copied or read.

    Parameters
    ----------
    x
        A 2-D array of any strides and byte order; a `numpy.memmap`, which is read and written
        through its file rather than by page faults where it lies there as rows or columns; an
        array on a GPU; an h5py dataset, a Zarr array or anything with `shape`, `dtype` and
        rectangle indexing; or a `Location` or its text: ``A.npy``, ``file.h5::/group/A``,
        ``store.zarr::A``, ``A.bin::2000x3000:float64``.
    what
        What errors call it.
    trans, conj
        The product uses the transpose, the conjugate, of `x`.
    writable
        Elements will be overwritten, in place.

    Returns
    -------
    Operand
        Column-major operands come as the row-major transpose, with `trans` flipped.

    Raises
    ------
    InputError
        When it is not 2-D, read-only though `writable`, or a file that is missing, truncated or
        no matrix.
    InputTypeError
        When its dtype is not float32, float64, complex64 or complex128, or it is no matrix.
    """
    matrix: Matrix | None
    if isinstance(x, str | os.PathLike | Location):
        matrix, flipped = open_location(x, writable=writable)
    elif isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
        matrix, flipped = _from_array(x, what, writable=writable)
    elif is_device_array(x):
        found = from_device_array(x, what, writable=writable)
        matrix, flipped = found.matrix, found.trans
    elif (matrix := from_store(x, what, writable=writable)) is not None:
        flipped = False
    else:
        raise InputTypeError(
            f"{what} is a {type(x).__name__}; it must be a 2-D array of numbers, something with "
            "shape, dtype and rectangle indexing, or the path of a file"
        )
    return Operand(matrix, trans != flipped, conj)


def _from_array(x: NDArray[Any], what: str, *, writable: bool) -> tuple[Matrix, bool]:
    if x.ndim != 2:
        raise InputError(f"{what} must be a matrix (2-D), it has shape {x.shape}", shape=x.shape)
    check_dtype(x.dtype, what)
    if writable:
        _check_writable(x, what)
    plain = x.view(np.ndarray)
    flipped = not _has_rows(plain) and _has_rows(plain.T)
    stored = plain.T if flipped else plain
    return _from_mapping(stored, writable=writable) or ArrayMatrix(stored), flipped


def _check_writable(x: NDArray[Any], what: str) -> None:
    if not x.flags.writeable:
        raise InputError(f"{what} is to be overwritten, but the array is read-only: pass a copy")
    if x.size and any(
        stride == 0 and extent > 1 for stride, extent in zip(x.strides, x.shape, strict=True)
    ):
        raise InputError(f"{what} is to be overwritten, but its elements share memory: pass a copy")


def _has_rows(x: NDArray[Any]) -> bool:
    """Say whether each row is contiguous and the rows follow one another without overlap."""
    rows, cols = x.shape
    row_bytes = cols * x.itemsize
    return (cols <= 1 or x.strides[1] == x.itemsize) and (rows <= 1 or x.strides[0] >= row_bytes)


def _from_mapping(x: NDArray[Any], *, writable: bool) -> FileMatrix | None:
    """Return `x` as a part of its file, None where it must be treated as an array."""
    if not _has_rows(x) or (mapping := find_mapping(x)) is None or mapping.mode == "c":
        return None
    if mapping.mode != "r":
        mapping.mapped.flush()
    rows, cols = x.shape
    pitch = x.strides[0] if rows > 1 else cols * x.itemsize
    try:
        file = BlockFile(mapping.path, writable=writable)
    except InputError:
        return None
    return FileMatrix(file, (rows, cols), x.dtype, mapping.offset, pitch)
