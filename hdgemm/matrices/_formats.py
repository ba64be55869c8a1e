"""The formats of stored matrices: .npy, raw, HDF5, Zarr; each is registered here by one line."""

# ruff: noqa: ARG002  (a method has the parameters that some format needs)

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.matrices._hdf5 import from_dataset, load_h5py, open_hdf5
from hdgemm.matrices._hdf5_draft import NewFileDraft, check_new_hdf5, create_hdf5
from hdgemm.matrices._hdf5_links import check_links
from hdgemm.matrices._raw import RawLayout, create_raw, open_raw
from hdgemm.matrices._zarrs import from_zarr, open_zarr
from hdgemm.matrices.draft import real_path
from hdgemm.matrices.files import PARSING, check_regular
from hdgemm.matrices.layout import check_written
from hdgemm.matrices.location import Format, formats, register
from hdgemm.matrices.npy import create_npy, open_npy, read_header
from hdgemm.matrices.objectstore import create_objects, open_objects
from hdgemm.matrices.zarr_draft import check_new_zarr, chunk_of, create_zarr, reopen_zarr
from hdgemm.matrices.zarr_replacement import finish_replacements

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix
    from hdgemm.matrices.draft import Draft
    from hdgemm.matrices.location import Location, MatrixSpec

#: Metadata of a Zarr array, then of a group.
_ARRAY: Final = ("zarr.json", ".zarray")
_GROUP: Final = (*_ARRAY, ".zgroup")


class Npy(Format):
    """NumPy's .npy files; files that no format recognises are opened as such, too."""

    name = "npy"
    suffixes = frozenset({".npy"})
    takes_order = True

    def holds_vector(self, place: Location) -> bool:
        """Say whether the file has one dimension only."""
        return len(read_header(place.path).shape) == 1

    def identity(self, place: Location) -> dict[str, Any]:
        """Return no field: journals named no format when this was the only one."""
        return {}

    def open(self, place: Location, *, writable: bool = False) -> tuple[Matrix, bool]:
        """Open an existing matrix."""
        return open_npy(place.path, writable=writable)

    def create(self, place: Location, spec: MatrixSpec) -> Draft[Any]:
        """Begin a new matrix."""
        return create_npy(
            place.path, spec.shape, spec.dtype, spec.order, spec.part, sparse=spec.sparse
        )

    def map(self, place: Location) -> NDArray[Any] | None:
        """Map the whole file."""
        with PARSING:
            found: NDArray[Any] = np.load(place.path, mmap_mode="r")
        return found


class Raw(Format):
    """Files without a header, in the layout that the location states."""

    name = "raw"
    has_header = False

    def refuses_suffix(self, suffix: str) -> bool:
        """Refuse the suffixes by which the other formats are known."""
        return any(suffix in each.suffixes for each in formats())

    def order(self, place: Location, asked: str) -> str:
        """Return the order of the layout, whichever is asked for."""
        return _layout(place).order

    def identity(self, place: Location) -> dict[str, Any]:
        """Return the fields of the location and the layout."""
        layout = _layout(place)
        return super().identity(place) | {
            "layout": [layout.dtype, layout.order, layout.offset or 0]
        }

    def open(self, place: Location, *, writable: bool = False) -> tuple[Matrix, bool]:
        """Open an existing matrix."""
        return open_raw(place.path, _layout(place), writable=writable)

    def create(self, place: Location, spec: MatrixSpec) -> Draft[Any]:
        """Begin a new matrix."""
        layout = _layout(place)
        wanted = check_written(spec.dtype, str(place))
        if layout.shape != tuple(spec.shape) or np.dtype(layout.dtype) != wanted:
            rows, cols = spec.shape
            raise InputError(
                f"the matrix for {place} is {rows}×{cols} {wanted}, its location says "
                f"{'×'.join(map(str, layout.shape))} {layout.dtype}: write "
                f"{place.path.name}::{rows}x{cols}:{wanted}"
            )
        return create_raw(place.path, layout, spec.part, sparse=spec.sparse)


class Hdf5(Format):
    """Datasets of HDF5 files."""

    name = "hdf5"
    suffixes = frozenset({".h5", ".hdf5", ".hdf", ".he5"})
    magic = b"\x89HDF\r\n\x1a\n"
    whole_file = False
    shared = False

    def check_item(self, whole: str, path: Path, item: str) -> None:
        """Refuse a new file without the name of a dataset; one that exists may have only one."""
        if not item.strip("/") and not path.is_file():
            raise InputError(f"{whole} names no dataset; write it like '{path}::/group/A'")

    def holds_matrix(self, place: Location) -> bool:
        """Say whether there is such an item."""
        _check_named(place)
        check_regular(place.path)
        with load_h5py().File(place.path, "r") as file:
            check_links(file, place.item)
            return place.item in file

    def open(self, place: Location, *, writable: bool = False) -> tuple[Matrix, bool]:
        """Open an existing matrix."""
        return open_hdf5(place.path, place.item, writable=writable), False

    def create(self, place: Location, spec: MatrixSpec) -> Draft[Any]:
        """Begin a new matrix."""
        _check_named(place)
        return create_hdf5(
            place.path, place.item, spec.shape, spec.dtype, spec.part, beside=spec.beside
        )

    def check_new(self, place: Location, *, durable: bool, beside: Collection[str] = ()) -> None:
        """Refuse a dataset that cannot be created."""
        _check_named(place)
        check_new_hdf5(place.path, place.item, durable=durable, beside=beside)

    def reopen(self, place: Location, part: Path) -> Draft[Any]:
        """Resume a draft."""
        dataset = open_hdf5(part, place.item, writable=True)
        return NewFileDraft(real_path(place.path), place.item, part, dataset)

    def take(self, x: Any, what: str, *, writable: bool) -> Matrix | None:
        """Take an object of the format's library."""
        return from_dataset(x, what, writable=writable) if _is(x, "h5py", "Dataset") else None


class Zarr(Format):
    """Arrays of Zarr stores, in folders or, where the location has a URL, in object stores."""

    name = "zarr"
    suffixes = frozenset({".zarr"})
    whole_file = False
    item_folders = True

    def recognises(self, path: Path, start: bytes) -> bool:
        """Say whether a folder has the names of a store."""
        if not path.exists():  # a store whose replacement was interrupted gets its name back
            with suppress(OSError):
                finish_replacements(path, "")
        return any((path / name).exists() for name in _GROUP)

    def check_item(self, whole: str, path: Path, item: str) -> None:
        """Take any item, and none: a store may be one array."""

    def chunk(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the chunk of a new array."""
        return chunk_of(shape)

    def holds_matrix(self, place: Location) -> bool:
        """Say whether there is such an item."""
        return any((self.own_path(place) / name).exists() for name in _ARRAY)

    def open(self, place: Location, *, writable: bool = False) -> tuple[Matrix, bool]:
        """Open an existing matrix."""
        if place.url:
            return open_objects(place, writable=writable), False
        return open_zarr(place.path, place.item, writable=writable), False

    def create(self, place: Location, spec: MatrixSpec) -> Draft[Any]:
        """Begin a new matrix."""
        if place.url:
            return create_objects(place, spec.shape, spec.dtype, spec.part)
        return create_zarr(place.path, place.item, spec.shape, spec.dtype, spec.part)

    def check_new(self, place: Location, *, durable: bool, beside: Collection[str] = ()) -> None:
        """Refuse an array that cannot be created."""
        if not place.url:
            check_new_zarr(place.path, place.item)

    def reopen(self, place: Location, part: Path) -> Draft[Any]:
        """Resume a draft."""
        return reopen_zarr(place.path, place.item, part)

    def take(self, x: Any, what: str, *, writable: bool) -> Matrix | None:
        """Take an object of the format's library."""
        return from_zarr(x, what, writable=writable) if _is(x, "zarr", "Array") else None


def _is(x: Any, module: str, name: str) -> bool:
    """Return whether `x` is an instance of a library's class, without importing the library."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(x, kind)


def _check_named(place: Location) -> None:
    """Refuse a new dataset without a name."""
    if not place.item:
        raise InputError(f"{place} names no dataset; write it like '{place.path}::/group/A'")


def _layout(place: Location) -> RawLayout:
    if place.raw is None:
        raise InputError(f"{place} is raw: its shape and dtype must be given")
    return place.raw


register(Npy())
register(Raw())
register(Hdf5())
register(Zarr())
