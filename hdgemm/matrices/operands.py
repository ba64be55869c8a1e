"""Arguments of the public calls opened as matrices; `hdgemm.open` and `hdgemm.create`."""

from __future__ import annotations

import os
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices._dlpack import host_view
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.matrices.base import Operand
from hdgemm.matrices.device_arrays import from_device_array, is_device_array
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile
from hdgemm.matrices.layout import check_read, check_written, row_pitch
from hdgemm.matrices.location import Location
from hdgemm.matrices.memmaps import find_mapping
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.stores import create_matrix, from_store, open_location, refuse_sparse
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from hdgemm.matrices.base import Matrix

__all__ = ["Operand", "as_array", "create", "open", "open_operand"]


def open_operand(
    x: Any, *, what: str = "a", trans: bool = False, conj: bool = False, writable: bool = False
) -> Operand:
    """Open one of A, B and C, wherever it lies; nothing is read.

    `x` is a 2-D array of any strides and byte order; a `numpy.memmap`, which is read and written
    through its file rather than by page faults where it lies there as rows or columns; an array on
    a GPU, or another library's in host memory that offers DLPack; a `StoredMatrix` or a view of
    one; an h5py dataset, a Zarr array or anything with `shape`, `dtype` and rectangle indexing; a
    `Location` or its text; or, unless `writable`, what `as_array` takes: nothing else is copied.
    `what` is its name in errors.

    The product uses its transpose (`trans`), its conjugate (`conj`), or overwrites its elements in
    place (`writable`). Column-major operands come as the row-major transpose, with `trans` flipped.

    Raises `InputError` when it is not 2-D, read-only though `writable`, or a file that is missing,
    truncated or no matrix; `InputTypeError` when it has none of BLAS's dtypes, or is no matrix.
    """
    matrix: Matrix | None
    if isinstance(x, StoredMatrix):
        if writable and not x.writable:
            raise InputError(
                f"{what} is to be overwritten, but it was opened for reading only: open it with "
                "mode='r+'"
            )
        stored = x.operand
        return replace(stored, trans=trans != stored.trans, conj=conj)
    if isinstance(x, str | os.PathLike | Location):
        matrix, flipped = open_location(x, writable=writable)
    elif isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
        matrix, flipped = _from_array(x, what, writable=writable)
    elif is_device_array(x):
        found = from_device_array(x, what, writable=writable)
        matrix, flipped = found.matrix, found.trans
    elif (view := host_view(x, what)) is not None:
        matrix, flipped = _from_array(view, what, writable=writable)
    elif (matrix := from_store(x, what, writable=writable)) is not None:
        flipped = False
    elif writable:
        raise _no_matrix(x, what)
    else:
        matrix, flipped = _from_array(as_array(x, what), what, writable=False)
    return Operand(matrix, trans != flipped, conj)


def as_array(x: Any, what: str) -> NDArray[Any]:
    """Return a list, a table or another object in memory as the array that NumPy makes of it.

    Raises
    ------
    InputTypeError
        For sparse matrices, masked arrays, and objects that are no numbers.
    """
    refuse_sparse(x, what)
    if isinstance(x, np.ma.MaskedArray):
        raise InputTypeError(f"{what} is a masked array: fill it with .filled(value)")
    try:
        array = np.asarray(x)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputTypeError(f"{what} is a {type(x).__name__} and no matrix: {error}") from error
    if array.ndim == 0 and array.dtype.kind in "OSU":
        raise _no_matrix(x, what)
    return array


def _no_matrix(x: Any, what: str) -> InputTypeError:
    return InputTypeError(
        f"{what} is a {type(x).__name__}; it must be a 2-D array of numbers, something with shape, "
        "dtype and rectangle indexing, or the path of a file"
    )


def _from_array(x: NDArray[Any], what: str, *, writable: bool) -> tuple[Matrix, bool]:
    if x.ndim != 2:
        raise InputError(f"{what} must be a matrix (2-D), it has shape {x.shape}", shape=x.shape)
    (check_written if writable else check_read)(x.dtype, what)
    if writable:
        _check_writable(x, what)
    plain = x.view(np.ndarray)
    flipped = _pitch(plain) is None and _pitch(plain.T) is not None
    stored = plain.T if flipped else plain
    return _from_mapping(stored, writable=writable) or ArrayMatrix(stored), flipped


def _check_writable(x: NDArray[Any], what: str) -> None:
    if not x.flags.writeable:
        raise InputError(f"{what} is to be overwritten, but the array is read-only: pass a copy")
    (short, extent), (long, repeated) = sorted(
        (abs(stride), extent) for stride, extent in zip(x.strides, x.shape, strict=True)
    )
    overlapping = (extent > 1 and short < x.itemsize) or (
        repeated > 1 and long < short * (extent - 1) + x.itemsize
    )
    if x.size and overlapping:
        raise InputError(f"{what} is to be overwritten, but its elements share memory: pass a copy")


def _pitch(x: NDArray[Any]) -> int | None:
    return row_pitch(x.shape, x.strides, x.itemsize)


def _from_mapping(x: NDArray[Any], *, writable: bool) -> FileMatrix | None:
    """Return `x` as a part of its file, None where it must be treated as an array."""
    pitch = _pitch(x)
    if pitch is None or (mapping := find_mapping(x)) is None or mapping.mode == "c":
        return None
    if mapping.mode != "r":
        mapping.mapped.flush()
    rows, cols = x.shape
    try:
        file = BlockFile(mapping.path, writable=writable)
    except InputError:
        return None
    found = FileMatrix(file, (rows, cols), x.dtype, mapping.offset, pitch)
    found.opened_from = x, False
    return found


@refuses_unknown
def open(location: Any, mode: str = "r") -> StoredMatrix:  # noqa: A001 - `hdgemm.open`
    """Open a stored matrix; nothing is read.

    Parameters
    ----------
    location
        A path or text: ``A.npy``, ``file.h5::/group/A``, ``store.zarr::A``,
        ``A.bin::2000x3000:float64``, ``s3://bucket/store.zarr::A``; or an array, a memmap, an
        h5py dataset or a Zarr array.
    mode
        ``"r"`` for reading, ``"r+"`` for reading and writing in place.

    Returns
    -------
    StoredMatrix
        With `shape`, `dtype`, `.T`, views ``[r0:r1, c0:c1]``, `numpy.asarray`, and, for
        ``"r+"``, assignment. Close it, or use it as a context manager.

    Raises
    ------
    InputError
        When it is missing, truncated, no matrix, or cannot be opened for writing.
    InputTypeError
        When its dtype cannot be multiplied.

    See Also
    --------
    create : A new matrix.
    generated : A matrix that a function computes.

    Examples
    --------
    >>> with hdgemm.open("A.npy") as a:
    ...     c = hdgemm.matmul(a[:100], a.T)
    """
    if mode not in ("r", "r+"):
        raise InputError(f"mode must be 'r' or 'r+', got {mode!r}; hdgemm.create makes new files")
    operand = open_operand(location, what="location", writable=mode == "r+")
    return StoredMatrix(operand, writable=mode == "r+")


@refuses_unknown
def create(
    location: str | os.PathLike[str],
    shape: tuple[int, int],
    dtype: DTypeLike = np.float64,
    order: str = "C",
) -> StoredMatrix:
    """Create a matrix of zeros with its disk space reserved, and open it for writing.

    A matrix that had this location is replaced.

    Parameters
    ----------
    location
        As in `hdgemm.open`. HDF5 and Zarr arrays are created inside existing files and groups.
    shape
        Rows and columns.
    dtype
        float32, float64, complex64, complex128 or int64.
    order
        ``"C"`` stores rows one after the other, ``"F"`` columns (.npy files; raw files have it
        in their location).

    Returns
    -------
    StoredMatrix
        Open for reading and writing; close it, or use it as a context manager.

    Raises
    ------
    InputError
        When the place cannot be written to, or the format has no such order.
    MatrixIOError
        When the disk is too full (`requested` and `available` in bytes).

    See Also
    --------
    open : An existing matrix.

    Examples
    --------
    >>> with hdgemm.create("D.npy", (400, 300), order="F") as d:
    ...     d[:10] = 1.0
    """
    try:
        rows, cols = map(index, shape)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"shape must be two integers, got {shape!r}") from error
    if min(rows, cols) < 0:
        raise InputError(f"shape must not be negative, got {shape!r}")
    with create_matrix(location, (rows, cols), dtype, order=order) as draft:
        draft.publish()
    return open(location, "r+")
