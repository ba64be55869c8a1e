"""Links and virtual datasets of HDF5 files: all files on the way to a dataset are regular.

HDF5 opens the files that links and virtual datasets name, and waits for a FIFO's writer while it
holds a lock. They are looked at first, on the ways that HDF5 tries.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import InputError, load_extra
from hdgemm.matrices.files import check_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Links that HDF5 follows on the way to a dataset, and virtual datasets within each other.
_MOST: Final = 16


def check_links(file: Any, item: str, most: int = _MOST) -> None:
    """Raise `InputError` unless all files on the way to an item of an open file, and all files of
    a virtual dataset's elements, are regular. Missing ones HDF5 reports.
    """
    h5py = load_extra("h5py", "HDF5 files need h5py", "hdf5")
    group, names = file, _names(item)
    while names:
        name = names.pop(0)
        link = group.get(name, getlink=True)
        if link is not None and not isinstance(link, h5py.HardLink):
            most -= 1
            if most < 0:
                raise InputError(f"{file.filename}::{item} leads over more than {_MOST} links")
        if isinstance(link, h5py.ExternalLink):
            with _linked(file, link.filename, "HDF5_EXT_PREFIX") as other:
                if other is not None:
                    check_links(other, "/".join([link.path, *names]), most)
            return
        if isinstance(link, h5py.SoftLink):
            group, names = file if link.path.startswith("/") else group, _names(link.path) + names
            continue
        node = None if link is None else group[name]
        if isinstance(node, h5py.Dataset) and node.is_virtual:
            _check_sources(file, node, most - 1)
        if not isinstance(node, h5py.Group):
            return
        group = node


def datasets_in(group: Any) -> list[str]:
    """Return the names of the datasets of a group itself, which opens no other file."""
    h5py = load_extra("h5py", "HDF5 files need h5py", "hdf5")
    kinds = {name: group.get(name, getlink=True) for name in group}
    own = [name for name, link in kinds.items() if isinstance(link, h5py.HardLink)]
    return [name for name in own if isinstance(group[name], h5py.Dataset)]


def _names(item: str) -> list[str]:
    return [name for name in item.split("/") if name not in ("", ".")]


def _check_sources(file: Any, dataset: Any, most: int) -> None:
    if most < 0:
        raise InputError(f"{dataset.name} has sources that are virtual, {_MOST} times over")
    for name, item in {(each.file_name, each.dset_name) for each in dataset.virtual_sources()}:
        if name == ".":
            check_links(file, item, most)
            continue
        with _linked(file, name, "HDF5_VDS_PREFIX") as other:
            if other is not None:
                check_links(other, item, most)


@contextmanager
def _linked(file: Any, name: str, prefix: str) -> Iterator[Any]:
    """Open the file that a link or a source names, the first one that is there; None without one.

    Raises
    ------
    InputError
        When HDF5 would find something else than a regular file.
    """
    found = [place for place in _places(Path(file.filename), name, prefix) if place.exists()]
    for place in found:
        check_regular(place)
    if not found or found[0].samefile(file.filename):
        yield file if found else None
        return
    h5py, opened = load_extra("h5py", "HDF5 files need h5py", "hdf5"), None
    with suppress(OSError):  # HDF5 will report a file that is not its own
        opened = h5py.File(found[0], "r")
    try:
        yield opened
    finally:
        if opened is not None:
            opened.close()


def _places(file: Path, name: str, prefix: str) -> list[Path]:
    """Return where HDF5 looks for a file, in its order."""
    file = file.absolute()
    given = os.environ.get(prefix, "").replace("${ORIGIN}", str(file.parent))
    folders = [Path(each) for each in given.split(":") if each]
    folders += [file.parent, file.resolve().parent, Path.cwd()]
    names = [name, PurePosixPath(name).name]
    return [folder / each for each in names for folder in folders]
