"""New Zarr arrays: uncompressed, written aside in their store, with their space reserved."""

from __future__ import annotations

import json
import math
import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices._zarr_store import open_store
from hdgemm.matrices._zarrs import from_zarr, load_zarr, make_chunk, open_zarr
from hdgemm.matrices.draft import Draft, aside, real_path, require_space
from hdgemm.matrices.files import read_regular, sync
from hdgemm.matrices.layout import check_written
from hdgemm.matrices.zarr_replacement import finish_replacements, give_name, remove_draft, settle
from hdgemm.threads import call_uninterrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from hdgemm.matrices.base import Matrix

#: Files that mark a Zarr group or array.
_METADATA: Final = ("zarr.json", ".zgroup", ".zarray")
#: Rows and columns of a chunk of a new array: 8 MiB of float64.
CHUNK: Final = (1024, 1024)


class _ArrayDraft(Draft["Matrix"]):
    """An array in a folder aside, which is renamed; an array that had the name is removed.

    `new_groups` are the folders of groups that were made for it, from the outside in.
    """

    def __init__(
        self, root: Path, item: str, part: Path, matrix: Matrix, new_groups: Sequence[Path] = ()
    ) -> None:
        super().__init__(root / item, part, matrix)
        self._root = root
        self._new_groups = new_groups

    def _give_name(self) -> None:
        give_name(self.part, self.path)

    def _settle(self) -> None:
        try:
            super()._settle()
        finally:
            settle(self._root, self.part)

    def _remove(self) -> None:
        remove_draft(self.part)
        _remove_groups(self._new_groups)


def reopen_zarr(root: Path, item: str, part: Path) -> Draft[Matrix]:
    """Resume a draft that another process has begun."""
    return _ArrayDraft(real_path(root), item, part, open_zarr(part, "", writable=True))


def chunk_of(shape: tuple[int, int]) -> tuple[int, int]:
    """Return the chunk of a new array: no larger than the matrix, so that the edges of a small one
    are not stored as megabytes.
    """
    return max(1, min(CHUNK[0], shape[0])), max(1, min(CHUNK[1], shape[1]))


def create_zarr(
    root: Path, item: str, shape: tuple[int, int], dtype: DTypeLike, part: Path | None = None
) -> Draft[Matrix]:
    """Begin a new uncompressed array, with its space reserved chunk by chunk.

    It has the Zarr format of the group that it is in, or of the array that it replaces, and else
    format 3. `part` is the name it has until it is published, None for any. After `InputError`,
    where `root` holds something that is no Zarr group, and on a full disk nothing is left behind.
    """
    load_zarr()
    stored = check_written(dtype, f"{root}::{item}")
    root = real_path(root)
    finish_replacements(root, item)
    target, parts = root / item, Path(item).parts
    _check_array(target)
    chunk = chunk_of(shape)
    count = math.prod(-(-extent // step) for extent, step in zip(shape, chunk, strict=True))
    require_space(root, count * math.prod(chunk) * stored.itemsize)
    groups = [root / Path(*parts[:depth]) for depth in range(len(parts))]
    new_groups = [folder for folder in groups if not folder.exists()]
    part = part or aside(target)
    remove_draft(part)
    try:
        begin = partial(_begin_array, root, item, part, shape, stored)
        # zarr's thread would make the folder again after an interrupt.
        matrix = call_uninterrupted(begin, "hdgemm-zarr")
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        _remove_groups(new_groups)
        if isinstance(error, OSError) and not isinstance(error, MatrixIOError):
            raise InputError(f"cannot create {target}: {error}", path=str(target)) from error
        raise
    return _ArrayDraft(root, item, part, matrix, new_groups)


def _begin_array(
    root: Path, item: str, part: Path, shape: tuple[int, int], dtype: np.dtype[Any]
) -> Matrix:
    """Make an array in the folder `part`, with its space reserved, and the groups that it needs."""
    version = _zarr_format(root / item, _require_groups(root, item) if item else None)
    chunk = chunk_of(shape)
    array = load_zarr().create_array(
        store=part,
        shape=shape,
        chunks=chunk,
        dtype=dtype,
        compressors=None,
        fill_value=0,
        zarr_format=version,
    )
    for index in np.ndindex(*array.cdata_shape):
        make_chunk(part / array.metadata.encode_chunk_key(index), chunk, dtype, 0)
    if item:  # another run may have removed them while they were empty
        _require_groups(root, item)
    return from_zarr(array, str(part), writable=True)


def check_new_zarr(root: Path, item: str) -> None:
    """Raise the `InputError` of `create_zarr` where it refuses the place; nothing is written."""
    zarr, root, parts = load_zarr(), real_path(root), Path(item).parts
    require_space(root, 0)
    _check_array(root / item)
    for folder in [root / Path(*parts[:depth]) for depth in range(len(parts))]:
        if not folder.exists():
            break
        try:
            if any((folder / name).exists() for name in _METADATA) or not folder.is_dir():
                zarr.open_group(store=folder, mode="r", use_consolidated=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder} is no Zarr group to put {item} in: {error}") from error
    home = next(folder for folder in (root / item, *(root / item).parents) if folder.exists())
    if not os.access(home, os.W_OK):
        raise InputError(f"cannot create {root / item}: permission denied", path=str(root / item))


def _check_array(target: Path) -> None:
    if target.exists() and not _is_array(target):
        raise InputError(f"{target} exists and is no Zarr array; choose another name")


def _is_array(folder: Path) -> bool:
    """Say whether a folder of a store is an array: groups of format 3 have a zarr.json, too."""
    metadata = folder / "zarr.json"
    if not metadata.exists():
        return (folder / ".zarray").exists()
    try:
        return bool(json.loads(read_regular(metadata))["node_type"] == "array")
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _zarr_format(target: Path, group: Any) -> int:
    if group is not None:
        return int(group.metadata.zarr_format)
    return 2 if (target / ".zarray").exists() else 3


def _require_groups(root: Path, item: str) -> Any:
    """Return the group that an item goes into; the groups on the way are made."""
    zarr = load_zarr()
    parent = item.rpartition("/")[0]
    try:
        store = open_store(root, read_only=False)
        group = zarr.open_group(store=store, mode="a", use_consolidated=False)
        if parent:
            group = group.require_group(parent)
        _sync_groups(root, parent)
    except MatrixIOError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{root} is no Zarr group to put {item} in: {error}") from error
    return group


def _remove_groups(folders: Sequence[Path]) -> None:
    """Remove groups, from the inside out, that hold nothing but their own metadata.

    Another run may begin an array in one at any moment. So a folder is removed only while it is
    empty, and gets its metadata back otherwise.
    """
    for folder in reversed(folders):
        files = list(folder.iterdir()) if folder.is_dir() else []
        if not {path.name for path in files} <= {"zarr.json", ".zgroup", ".zattrs"}:
            return
        # Metadata that is moved away needs no read, which a failing disk may refuse.
        moved = {path: aside(folder.with_name(f"{folder.name}.{path.name}")) for path in files}
        try:
            for path, place in moved.items():
                path.replace(place)
            folder.rmdir()
        except OSError:
            for path, place in moved.items():
                if place.exists() and folder.is_dir():
                    place.replace(path)
            if folder.is_dir():
                return
        for place in moved.values():
            place.unlink(missing_ok=True)


def _sync_groups(root: Path, item: str) -> None:
    folder = root
    for name in ("", *item.split("/")):
        folder = folder / name
        for metadata in ("zarr.json", ".zgroup"):
            if (folder / metadata).exists():
                sync(folder / metadata)
        sync(folder)
    sync(root.parent)
