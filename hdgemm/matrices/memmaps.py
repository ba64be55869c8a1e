"""Finding the file behind an array that was mapped from one."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.matrices.transfer import address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Mapping:
    """The file that an array's elements live in.

    Parameters
    ----------
    path
        The mapped file.
    offset
        Bytes from the file's start to the array's first element.
    mode
        As `numpy.memmap`'s: ``"r"``, ``"r+"``, ``"w+"`` or ``"c"``.
    mapped
        Its `flush` writes out what was changed through the mapping.
    """

    path: Path
    offset: int
    mode: str
    mapped: mmap.mmap


def find_mapping(array: NDArray[Any]) -> Mapping | None:
    """Return the file behind `array`, None when it is not one or is no longer under its name."""
    owner, mapped = None, None
    for base in _bases(array):
        if owner is None and isinstance(base, np.memmap) and base.filename is not None:
            owner = base
        if isinstance(base, mmap.mmap):
            mapped = base
    if owner is None or mapped is None or not array.size:
        return None
    path = Path(str(owner.filename))
    # NumPy maps from the last allocation boundary before the offset; slices inherit the offset
    # of the whole, so that only addresses tell where a slice lies.
    start = owner.offset - owner.offset % mmap.ALLOCATIONGRANULARITY
    within = address(array) - address(np.frombuffer(mapped, np.uint8))
    if not _still_named(address(array), path):
        return None
    return Mapping(path, start + within, owner.mode, mapped)


def _bases(array: Any) -> Iterator[Any]:
    while array is not None:
        yield array
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)


def _still_named(where: int, path: Path) -> bool:
    """Say whether the file mapped at this address is the one that `path` names now."""
    try:
        inode = path.stat().st_ino
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    for line in maps.splitlines():
        extent, _, _, _, number = line.split(maxsplit=5)[:5]
        first, last = (int(bound, 16) for bound in extent.split("-"))
        if first <= where < last:
            return int(number) == inode
    return False
