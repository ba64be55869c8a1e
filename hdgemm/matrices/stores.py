"""Opening and creating matrices of every format by location."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import HdgemmError, InputError, InputTypeError
from hdgemm.matrices._rectangles import RectangleMatrix, check_unit
from hdgemm.matrices.layout import check_read, check_written
from hdgemm.matrices.location import Location, MatrixSpec, formats, parse_location

if TYPE_CHECKING:
    import os
    from collections.abc import Collection
    from pathlib import Path

    from numpy.typing import DTypeLike

    from hdgemm.matrices.base import Matrix
    from hdgemm.matrices.draft import Draft


def open_location(
    where: str | os.PathLike[str] | Location, *, writable: bool = False
) -> tuple[Matrix, bool]:
    """Open an existing matrix; return it row-major, and whether that is its transpose.

    Raises
    ------
    InputError
        When it is missing, truncated or no matrix.
    InputTypeError
        When its dtype cannot be multiplied.
    """
    place = parse_location(where)
    matrix, flipped = place.kind.open(place, writable=writable)
    if writable:
        _check_writable(matrix)
    matrix.opened_from = place, flipped
    return matrix, flipped


def _check_writable(matrix: Matrix) -> None:
    """Refuse elements that hdgemm reads, but does not write."""
    try:
        check_written(matrix.dtype, matrix.name)
    except InputTypeError:
        matrix.close()
        raise


def from_store(x: Any, what: str, *, writable: bool = False) -> Matrix | None:
    """Take an h5py dataset, a Zarr array or anything with `shape`, `dtype` and rectangle indexing.

    Returns None for any other object. Raises `InputError` when it is not 2-D, or cannot be written
    though `writable`, `InputTypeError` when its dtype cannot be multiplied.
    """
    for each in formats():
        if (matrix := each.take(x, what, writable=writable)) is not None:
            matrix.opened_from = x, False
            if writable:
                _check_writable(matrix)
            return matrix
    refuse_sparse(x, what)
    if not _has_rectangles(x):
        return None
    if len(x.shape) != 2:
        raise InputError(f"{what} must be a matrix (2-D), it has shape {tuple(x.shape)}")
    (check_written if writable else check_read)(_dtype(x, what), what)
    if writable and not hasattr(x, "__setitem__"):
        raise InputError(f"{what} is to be overwritten, but {type(x).__name__} takes no elements")
    return RectangleMatrix(
        x, name=type(x).__name__, chunk=_chunk(x), keeps=not writable, lock=threading.Lock()
    )


def is_stored(x: Any) -> bool:
    """Return whether `x` is read by rectangles: it is no NumPy array, has two dimensions or more
    and a dtype that NumPy knows.
    """
    try:
        return _has_rectangles(x) and len(x.shape) >= 2 and np.dtype(x.dtype) is not None
    except TypeError:
        return False


def _has_rectangles(x: Any) -> bool:
    return not isinstance(x, np.ndarray | np.generic) and all(
        hasattr(x, name) for name in ("shape", "dtype", "__getitem__")
    )


def refuse_sparse(x: Any, what: str) -> None:
    """Raise `InputTypeError` where `x` is a sparse matrix of SciPy, of whatever kind."""
    sparse = sys.modules.get("scipy.sparse")
    if sparse is not None and sparse.issparse(x):
        raise InputTypeError(
            f"{what} is a {type(x).__name__} of scipy.sparse, and hdgemm takes dense matrices: "
            "pass its toarray(), or multiply by scipy.sparse's own @"
        )


def _dtype(x: Any, what: str) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(x.dtype)
    except TypeError as error:
        raise InputTypeError(
            f"{what} has dtype {x.dtype}, which NumPy does not know: pass numpy.asarray of it"
        ) from error
    return dtype


def _chunk(x: Any) -> tuple[int, int] | None:
    chunks = getattr(x, "chunks", None)
    if not isinstance(chunks, tuple) or len(chunks) != 2:
        return None
    if all(type(n) is int for n in chunks):
        return chunks
    if all(isinstance(extents, tuple) for extents in chunks):
        return _even_chunk(x, chunks)
    return None


def _even_chunk(x: Any, chunks: tuple[tuple[Any, ...], ...]) -> tuple[int, int]:
    """Return the chunk of a Dask array, whose chunks have one shape but for the last ones.

    Raises
    ------
    InputError
        For other chunks: tiles could not end where these end, so that chunks would be computed
        several times.
    """
    if not all(
        extents and all(n == extents[0] for n in extents[:-1]) and extents[-1] <= extents[0]
        for extents in chunks
    ):
        raise InputError(
            f"the {type(x).__name__} has chunks of different shapes: pass x.rechunk((ROWS, COLS)) "
            "with chunks of one shape"
        )
    rows, cols = (max(1, int(extents[0])) for extents in chunks)
    check_unit(
        rows * cols * np.dtype(x.dtype).itemsize,
        f"the {type(x).__name__} has chunks of {rows}×{cols}",
        "pass x.rechunk((ROWS, COLS)) with smaller chunks",
    )
    return rows, cols


def create_matrix(
    where: str | os.PathLike[str] | Location,
    shape: tuple[int, int],
    dtype: DTypeLike,
    part: Path | None = None,
    order: str = "C",
    *,
    sparse: bool = False,
    beside: Collection[str] = (),
) -> Draft[Any]:
    """Begin a new matrix, with its space reserved, that gets its name when it is published.

    Publishing replaces a matrix of that name: a whole file, one dataset of an HDF5 file, one array
    of a Zarr store. `part` is its name until then, beside the final one; None for any. In an object
    store, which renames nothing, it is the journal of the run that writes the array. `order` is
    a .npy file's; ``"F"`` stores columns one after the other. A `sparse` .npy or raw file
    has no space for its elements yet, see `reserve`. `beside` are items of the same file that the
    same call replaces.

    Raises
    ------
    InputError
        When the place cannot be written to, a raw location has another shape or dtype, or the
        format does not have this order.
    MatrixIOError
        When the disk is too full (`requested` and `available` in bytes).
    """
    place = parse_location(where)
    place.check_suffix()
    kind = place.kind
    if order not in ("C", "F"):
        raise InputError(f"order must be 'C' or 'F', got {order!r}")
    if order == "F" and kind.order(place, order) != "F":
        raise InputError(
            f"{place} cannot be created in order 'F': .npy files can, and raw files whose location "
            "ends in ':F'"
        )
    return kind.create(place, MatrixSpec(shape, dtype, order, part, sparse, beside))


def create_scratch(
    folder: Path,
    shape: tuple[int, int],
    dtype: DTypeLike,
    order: str = "C",
    *,
    sparse: bool = False,
) -> Draft[Any]:
    """Begin a matrix in a file of a folder that is never published; other parameters and errors as
    of `create_matrix`. The file has no name, so that even a killed process leaves nothing of it.
    """
    place = Location(folder / "hdgemm-scratch.npy")
    try:
        draft = create_matrix(place, shape, dtype, order=order, sparse=sparse)
    except HdgemmError as error:
        named = str(error).replace(str(place.path), f"a work file in {folder}")
        raise type(error)(named, **error.numbers) from error
    draft.part.unlink(missing_ok=True)
    return draft


def reopen_draft(place: Location, part: Path) -> Draft[Any]:
    """Resume a draft that another process began with `create_matrix` and this `part`."""
    return place.kind.reopen(place, part)
