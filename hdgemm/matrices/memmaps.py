"""The files behind memory-mapped arrays."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdgemm.matrices.transfer import address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Mapping:
    """The file that holds the elements of a memmap, from byte `offset` on.

    `mode` is `numpy.memmap`'s: ``"r"``, ``"r+"``, ``"w+"`` or ``"c"``. The flush of `mapped`
    writes changed pages to the file.
    """

    path: Path
    offset: int
    mode: str
    mapped: mmap.mmap


class MappedPlace(NamedTuple):
    """Device and inode of a mapped file, and the offset in it."""

    identity: tuple[int, int]
    offset: int


def find_mapping(array: NDArray[Any]) -> Mapping | None:
    """Return the file behind an array made from a `numpy.memmap`; None for any other array, and
    when the file has lost its name.
    """
    bases = list(_bases(array))
    owner = next((x for x in bases if isinstance(x, np.memmap) and x.filename is not None), None)
    if owner is None or not isinstance(bases[-1], mmap.mmap):
        return None
    path = Path(str(owner.filename))
    if (place := mapped_place(array)) is None or not path.exists():
        return None
    status = path.stat()
    if place.identity != (status.st_dev, status.st_ino):
        return None
    return Mapping(path, place.offset, owner.mode, bases[-1])


def mapped_place(array: NDArray[Any]) -> MappedPlace | None:
    """Return the file and the offset of an array's first element, however the file was mapped;
    None for memory that is no mapping of a file.
    """
    root = list(_bases(array))[-1]
    if not array.size or (isinstance(root, np.ndarray) and root.flags.owndata):
        return None
    where = address(array)
    for line in _maps():
        extent, _, offset, device, inode, *name = line.split(maxsplit=5)
        first, last = (int(bound, 16) for bound in extent.split("-"))
        if first <= where < last:
            if inode == "0":
                return None
            major, minor = (int(number, 16) for number in device.split(":"))
            identity = _named_identity(name, int(inode)) or (os.makedev(major, minor), int(inode))
            return MappedPlace(identity, int(offset, 16) + where - first)
    return None


def _maps() -> list[str]:
    try:
        return Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _named_identity(name: list[str], inode: int) -> tuple[int, int] | None:
    """Return device and inode of a mapped file as `os.stat` has them: some file systems show
    another device number in the maps.
    """
    try:
        status = Path(name[0]).stat()
    except (OSError, IndexError):
        return None
    return (status.st_dev, status.st_ino) if status.st_ino == inode else None


def _bases(array: Any) -> Iterator[Any]:
    while array is not None:
        yield array
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
