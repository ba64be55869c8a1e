"""Opening and creating matrices of every format by location."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices.draft import Draft, real_path
from hdgemm.matrices.hdf5 import from_dataset, open_hdf5
from hdgemm.matrices.hdf5_draft import NewFileDraft, create_hdf5
from hdgemm.matrices.layout import check_dtype
from hdgemm.matrices.location import Location, parse_location
from hdgemm.matrices.npy import create_npy, open_npy
from hdgemm.matrices.objectstore import create_objects, open_objects
from hdgemm.matrices.raw import RawLayout, create_raw, open_raw
from hdgemm.matrices.rectangles import RectangleMatrix
from hdgemm.matrices.zarr_draft import create_zarr, reopen_zarr
from hdgemm.matrices.zarrs import from_zarr, open_zarr

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from numpy.typing import DTypeLike

    from hdgemm.matrices.base import Matrix


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
    matrix, flipped = _open(place, writable=writable)
    matrix.opened_from = place, flipped
    return matrix, flipped


def _open(place: Location, *, writable: bool) -> tuple[Matrix, bool]:
    if place.format == "raw":
        return open_raw(place.path, _layout(place), writable=writable)
    if place.format == "hdf5":
        return open_hdf5(place.path, place.item, writable=writable), False
    if place.url:
        return open_objects(place, writable=writable), False
    if place.format == "zarr":
        return open_zarr(place.path, place.item, writable=writable), False
    return open_npy(place.path, writable=writable)


def from_store(x: Any, what: str, *, writable: bool = False) -> Matrix | None:
    """Take an h5py dataset, a Zarr array or anything with `shape`, `dtype` and rectangle indexing.

    Returns None for any other object. Raises `InputError` when it is not 2-D, or cannot be written
    though `writable`, `InputTypeError` when its dtype cannot be multiplied.
    """
    for module, name, take in (("h5py", "Dataset", from_dataset), ("zarr", "Array", from_zarr)):
        if _is(x, module, name):
            matrix = take(x, what, writable=writable)
            matrix.opened_from = x, False
            return matrix
    if not _has_rectangles(x):
        return None
    if len(x.shape) != 2:
        raise InputError(f"{what} must be a matrix (2-D), it has shape {tuple(x.shape)}")
    check_dtype(_dtype(x, what), what)
    if writable and not hasattr(x, "__setitem__"):
        raise InputError(f"{what} is to be overwritten, but a {type(x).__name__} takes no elements")
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


def _is(x: Any, module: str, name: str) -> bool:
    """Return whether `x` is an instance of a library's class, without importing the library."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(x, kind)


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
    if isinstance(chunks, tuple) and len(chunks) == 2 and all(type(n) is int for n in chunks):
        return chunks
    return None


def create_matrix(
    where: str | os.PathLike[str] | Location,
    shape: tuple[int, int],
    dtype: DTypeLike,
    part: Path | None = None,
    order: str = "C",
    *,
    sparse: bool = False,
) -> Draft[Any]:
    """Begin a new matrix, with its space reserved, that gets its name when it is published.

    Publishing replaces a matrix of that name: a whole file, one dataset of an HDF5 file, one array
    of a Zarr store. `part` is its name until then, beside the final one; None for any. `order` is
    that of a .npy file; ``"F"`` stores columns one after the other. A `sparse` .npy or raw file
    has no space for its elements yet, see `reserve`.

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
    if order not in ("C", "F"):
        raise InputError(f"order must be 'C' or 'F', got {order!r}")
    if order == "F" and place.format != "npy" and (place.raw is None or place.raw.order != "F"):
        raise InputError(
            f"{place} cannot be created in order 'F': .npy files can, and raw files whose location "
            "ends in ':F'"
        )
    if place.url:
        return create_objects(place, shape, dtype)
    if place.format == "raw":
        layout = _layout(place)
        wanted = check_dtype(dtype, str(place))
        if layout.shape != tuple(shape) or np.dtype(layout.dtype) != wanted:
            raise InputError(
                f"{place} is described as {layout.shape} {layout.dtype}, but holds a {shape} "
                f"{wanted} matrix"
            )
        return create_raw(place.path, layout, part, sparse=sparse)
    if place.format == "hdf5":
        return create_hdf5(place.path, place.item, shape, dtype, part)
    if place.format == "zarr":
        return create_zarr(place.path, place.item, shape, dtype, part)
    return create_npy(place.path, shape, dtype, order, part, sparse=sparse)


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
    draft = create_matrix(place, shape, dtype, order=order, sparse=sparse)
    draft.part.unlink(missing_ok=True)
    return draft


def reopen_draft(place: Location, part: Path) -> Draft[Any]:
    """Resume a draft that another process began with `create_matrix` and this `part`."""
    if place.format == "zarr":
        return reopen_zarr(place.path, place.item, part)
    if place.format == "hdf5":
        dataset = open_hdf5(part, place.item, writable=True)
        return NewFileDraft(real_path(place.path), place.item, part, dataset)
    matrix, flipped = open_location(replace(place, path=part), writable=True)
    return Draft(real_path(place.path), part, matrix, trans=flipped)


def _layout(place: Location) -> RawLayout:
    if place.raw is None:
        raise InputError(f"{place} is raw: its shape and dtype must be given")
    return place.raw
