"""New HDF5 datasets: contiguous, at an offset that is aligned for direct I/O."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from hdgemm.errors import InputError
from hdgemm.matrices._hdf5 import library, load_h5py, open_file
from hdgemm.matrices._hdf5_links import check_links
from hdgemm.matrices.draft import (
    Draft,
    allocate,
    aside,
    final_name,
    no_space,
    real_path,
    require_space,
)
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile, check_regular, sync_file
from hdgemm.matrices.layout import check_written
from hdgemm.matrices.transfer import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy as np
    from numpy.typing import DTypeLike

    from hdgemm.matrices.base import Matrix


class _DatasetDraft(Draft[FileMatrix]):
    """A dataset under a temporary name in a file that has others: it is renamed within it."""

    def __init__(
        self, path: Path, item: str, part: str, matrix: FileMatrix, new_groups: list[str]
    ) -> None:
        super().__init__(path, path, matrix)
        self._item, self._part_item = item, part
        self._new_groups = new_groups

    def _give_name(self) -> None:
        with library("change", self.path), open_file(self.path, "r+") as file:
            if self._item in file:
                del file[self._item]
            file.move(self._part_item, self._item)

    def _settle(self) -> None:
        sync_file(self.path)

    def _remove(self) -> None:
        _remove_dataset(self.path, self._part_item, self._new_groups)


def _remove_dataset(path: Path, item: str, groups: list[str]) -> None:
    """Remove a dataset from a file, and each of the groups that is empty then."""
    with library("change", path), open_file(path, "r+") as file:
        file.pop(item, None)
        for group in groups:
            if group in file and not len(file[group]):
                del file[group]


class NewFileDraft(Draft[Any]):
    """A dataset in a file aside, which gets the name `path`.

    A file of that name is replaced where it holds nothing but a dataset of this name; into another
    one, which another process has made meanwhile, the dataset is copied.
    """

    def __init__(self, path: Path, item: str, part: Path, matrix: Matrix) -> None:
        super().__init__(path, part, matrix)
        self._item = item

    def _give_name(self) -> None:
        try:
            os.link(self.part, self.path)
        except FileExistsError:
            # A process that was killed here leaves one file with both names.
            if not self.path.samefile(self.part):
                if _holds_only(self.path, self._item):
                    super()._give_name()
                    return
                self._copy()
        except OSError:  # the file system has no hard links
            super()._give_name()
            return
        self.part.unlink()

    def _copy(self) -> None:
        _missing_groups(self.path, self._item)
        with (
            library("change", self.path),
            open_file(self.part, "r") as part,
            open_file(self.path, "r+") as file,
        ):
            if self._item in file:
                del file[self._item]
            part.copy(self._item, file, self._item)

    def _settle(self) -> None:
        sync_file(self.path)


def create_hdf5(
    path: Path,
    item: str,
    shape: tuple[int, int],
    dtype: DTypeLike,
    part: Path | None = None,
    *,
    beside: Collection[str] = (),
) -> Draft[FileMatrix]:
    """Begin a new contiguous dataset, with its space reserved, replacing one of that name.

    A new file is written aside and renamed; in a file that exists the dataset is written aside
    within it, and the rest of the file stays as it is. With `part`, the name that a new file is to
    have until it is published, the file must be new, or hold nothing but a dataset of that name and
    datasets `beside`, which the same call replaces.
    """
    stored = check_written(dtype, f"{path}::{item}")
    path = real_path(path)
    item = "/" + item.strip("/")
    require_space(path, shape[0] * shape[1] * stored.itemsize)
    if path.exists():
        _check_existing(path, item, durable=part is not None, beside=beside)
    if path.exists() and part is None:
        folder, _, last = item.rpartition("/")
        part_item = f"{folder}/{aside(Path(last)).name}"
        new_groups = _missing_groups(path, item)
        offset = _allocate(path, "r+", part_item, shape, stored)
        try:
            matrix = FileMatrix(BlockFile(path, writable=True), shape, stored, offset)
        except BaseException:
            _remove_dataset(path, part_item, new_groups)
            raise
        draft: Draft[FileMatrix] = _DatasetDraft(path, item, part_item, matrix, new_groups)
    else:
        part = part or aside(path)
        try:
            part.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"cannot create {path}: {error.strerror}", path=str(path)) from error
        try:
            offset = _allocate(part, "x", item, shape, stored)
            matrix = FileMatrix(BlockFile(part, writable=True), shape, stored, offset)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        draft = NewFileDraft(path, item, part, matrix)
    _reserve(draft, offset)
    return draft


def check_new_hdf5(path: Path, item: str, *, durable: bool, beside: Collection[str] = ()) -> None:
    """Raise the `InputError` of `create_hdf5` where it would refuse the place; nothing is written.

    Parameters
    ----------
    durable
        A durable run makes the dataset, in a file of its own.
    beside
        Datasets of the file that the same run replaces.
    """
    path = real_path(path)
    require_space(path, 0)
    item = "/" + item.strip("/")
    if path.exists():
        _check_existing(path, item, durable=durable, beside=beside)
        _missing_groups(path, item)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"cannot create {path}: permission denied", path=str(path))


def _check_existing(path: Path, item: str, *, durable: bool, beside: Collection[str]) -> None:
    check_regular(path)
    if durable and not _holds_only(path, item, *beside):
        raise InputError(
            f"{path} exists and holds more than {item}, and HDF5 cannot change a file so that a "
            "crash leaves it whole: give C a file of its own, or leave checkpoint out",
            path=str(path),
        )


def _holds_only(path: Path, *items: str) -> bool:
    """Return whether a file holds nothing but some datasets, their drafts and groups for them."""
    with library("read", path), open_file(path, "r") as file:
        return not file.userblock_size and _is_made_of(
            file, "", {"/" + item.strip("/") for item in items}
        )


def _is_made_of(group: Any, name: str, items: set[str]) -> bool:
    """Return whether a group has no attributes, and no members but datasets and ways to them."""
    h5py = load_h5py()
    if group.attrs:
        return False
    for member in group:
        whole = f"{name}/{member}"
        if not isinstance(group.get(member, getlink=True), h5py.HardLink):
            return False
        node = group[member]
        if isinstance(node, h5py.Group):
            if not any(item.startswith(f"{whole}/") for item in items):
                return False
            if not _is_made_of(node, whole, items):
                return False
        elif not isinstance(node, h5py.Dataset) or f"{name}/{final_name(member)}" not in items:
            return False
    return True


def _missing_groups(path: Path, item: str) -> list[str]:
    """Return the groups that an item needs and the file does not have, from the inside out.

    Raises `InputError` where the item is a group, or a dataset has the name of one of its groups.
    """
    h5py = load_h5py()
    groups = list(map(str, PurePosixPath(item).parents))
    with library("read", path), open_file(path, "r") as file:
        check_links(file, item)
        if item in file and not isinstance(file[item], h5py.Dataset):
            raise InputError(f"{path}::{item} is a group; choose another name", path=str(path))
        for group in groups:
            if group in file and not isinstance(file[group], h5py.Group):
                raise InputError(
                    f"{path}::{group} is a dataset, no group for {item}; choose another name",
                    path=str(path),
                )
        return [group for group in groups if group not in file]


def _reserve(draft: Draft[FileMatrix], offset: int) -> None:
    matrix = draft.matrix
    try:
        allocate(matrix.file.fileno(), offset, max(1, matrix.end - offset))
    except OSError as error:
        draft.discard()
        raise no_space(draft.path, matrix.end - offset, error) from error


def _allocate(
    path: Path, mode: str, item: str, shape: tuple[int, int], dtype: np.dtype[Any]
) -> int:
    """Make a dataset whose place in the file is settled; return that place."""
    h5py = load_h5py()
    with library("create", path):
        try:
            file = h5py.File(path, mode, alignment_threshold=1 << 16, alignment_interval=ALIGNMENT)
        except OSError as error:
            raise InputError(f"cannot create {path}: {error}", path=str(path)) from error
        with file:
            layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            layout.set_layout(h5py.h5d.CONTIGUOUS)
            layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            folder, _, name = item.rpartition("/")
            group = file.require_group(folder or "/")
            made = h5py.h5d.create(
                group.id,
                name.encode(),
                h5py.h5t.py_create(dtype, logical=True),
                h5py.h5s.create_simple(shape),
                layout,
            )
            offset: int | None = made.get_offset()
    return offset or 0
