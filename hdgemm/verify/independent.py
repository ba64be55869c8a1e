"""Matrices read by their format's own library: h5py, zarr, or NumPy for .npy and raw files.

A check that reads its operands as the product did repeats an error of hdgemm's readers. These
readers share no code with `hdgemm.matrices` but the names of locations.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hdgemm.errors import HdgemmError, MatrixIOError
from hdgemm.matrices.base import Matrix
from hdgemm.matrices.hdf5 import LIBRARY_LOCK, load_h5py
from hdgemm.matrices.location import Location
from hdgemm.matrices.zarrs import load_zarr

if TYPE_CHECKING:
    from contextlib import ExitStack

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Operand

#: Formats of which a run's own check reads the inputs by their library.
LIBRARY_FORMATS = ("hdf5", "zarr")


class LibraryMatrix(Matrix):
    """A rectangle of a library's array, or with `flipped` its transpose; it is only read,
    `block_bytes` but at least one row at a time.
    """

    def __init__(self, store: Any, matrix: Matrix, *, flipped: bool, block_bytes: int) -> None:
        self.name, self.shape, self.dtype = matrix.name, matrix.shape, np.dtype(store.dtype)
        self._store = store
        self._origin = matrix.origin
        self._flipped = flipped
        self._block_bytes = block_bytes
        # HDF5 serves one thread at a time, for all files together.
        self._lock = LIBRARY_LOCK if _is_hdf5(store) else contextlib.nullcontext()

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]``."""
        height = max(1, self._block_bytes // max(1, out.shape[1] * self.dtype.itemsize))
        for first in range(0, len(out), height):
            part = out[first : first + height]
            np.copyto(part, self._block(row + first, col, part.shape), casting="same_kind")

    def _block(self, row: int, col: int, shape: tuple[int, ...]) -> NDArray[Any]:
        rows, cols = (
            slice(start + origin, start + origin + extent)
            for start, origin, extent in zip((row, col), self._origin, shape, strict=True)
        )
        try:
            with self._lock:
                block = np.asarray(self._store[(cols, rows) if self._flipped else (rows, cols)])
        except HdgemmError:
            raise
        except Exception as error:
            raise MatrixIOError(
                f"{self.name} cannot be read by its library: {error}",
                path=self.name, offset=row, length=shape[0] * shape[1] * self.dtype.itemsize,
            ) from error  # fmt: skip
        return block.T if self._flipped else block


def read_independently(
    operand: Operand, stack: ExitStack, *, memory: int, formats: tuple[str, ...] | None = None
) -> Operand:
    """Return the same op(X), read by its format's own library; `stack` closes what is opened here.

    Arrays in RAM, GPU arrays, object stores and user classes, and matrices of other than the given
    formats (None for all), are returned as they are. An eighth of `memory`, in bytes, is taken from
    the library at a time.
    """
    source, flipped = operand.matrix.opened_from or (None, False)
    kind = _format(source)
    if kind is None or (formats is not None and kind not in formats):
        return operand
    store = _open(source, stack) if isinstance(source, Location) else source
    matrix = LibraryMatrix(store, operand.matrix, flipped=flipped, block_bytes=memory // 8)
    return replace(operand, matrix=matrix)


def _format(source: Any) -> str | None:
    if isinstance(source, Location):
        return None if source.url else source.format
    if isinstance(source, np.ndarray):
        return "npy"
    if _is_hdf5(source):
        return "hdf5"
    return "zarr" if type(source).__module__.startswith("zarr") else None


def _is_hdf5(store: Any) -> bool:
    return type(store).__module__.startswith("h5py")


def _open(place: Location, stack: ExitStack) -> Any:
    """Open a matrix by its library, as the caller named it."""
    try:
        if place.format == "hdf5":
            with LIBRARY_LOCK:
                file = load_h5py().File(place.path, "r")
                stack.callback(_close, file)
                return file[place.item]
        if place.format == "zarr":
            return load_zarr().open_array(store=place.path, path=place.item, mode="r")
        if place.raw is None:
            return np.load(place.path, mmap_mode="r", allow_pickle=False)
        raw = place.raw
        order: Literal["C", "F"] = "F" if raw.order == "F" else "C"
        return np.memmap(place.path, raw.dtype, "r", raw.offset, raw.shape, order)
    except Exception as error:
        raise MatrixIOError(
            f"cannot open {place} by its own library: {error}", path=str(place), offset=0, length=0
        ) from error


def _close(file: Any) -> None:
    with LIBRARY_LOCK:
        file.close()
