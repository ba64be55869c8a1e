"""Replacement of a Zarr array by its successor.

Where the kernel and the file system can, array and successor exchange their names in one step
(renameat2), and the array is removed last. Since names do not show whether that step was done, the
inode of the successor is in the name of an empty file, made before.

Elsewhere the array gets another name, and then the successor gets its name. The array or successor
that a killed process has left under such names, the next one that opens or creates the array finds.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shutil
import warnings
from typing import TYPE_CHECKING, Final

from hdgemm.matrices._zarr_store import open_store
from hdgemm.matrices.draft import real_path
from hdgemm.matrices.files import read_regular, sync

if TYPE_CHECKING:
    from pathlib import Path

_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1
_RENAME_EXCHANGE: Final = 2
#: Errors of kernels and file systems that do not have these flags, or not for these folders.
_NOT_OFFERED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV})


def old_name(part: Path) -> Path:
    """Return the name that a replaced array has while the draft of this name takes its place."""
    return part.with_suffix(".old")


def _exchange_name(part: Path, inode: int) -> Path:
    """Return the name of the file that says which folder is the draft of this name."""
    return part.with_suffix(f".{inode}.exchange")


def give_name(part: Path, path: Path) -> None:
    """Give a draft, which is complete and durable, the name `path`; an array there gets another."""
    if not _exchange(part, path):
        _rename_twice(part, path)


def _exchange(part: Path, path: Path) -> bool:
    """Give a draft its name in one step; return False where that is not offered."""
    mark = _exchange_name(part, part.stat().st_ino)
    while True:
        replaces = path.exists()
        if replaces:
            mark.touch()
            sync(part.parent)
        try:
            _rename(part, path, _RENAME_EXCHANGE if replaces else _RENAME_NOREPLACE)
        except (FileNotFoundError, FileExistsError):
            if not part.exists():
                raise
            # Another process has removed the array, or published one, in between.
        except OSError as error:
            mark.unlink(missing_ok=True)
            if error.errno in _NOT_OFFERED:
                return False
            raise
        else:
            return True


def _rename(source: Path, target: Path, flags: int) -> None:
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(source), None, str(target))


def _rename_twice(part: Path, path: Path) -> None:
    old = old_name(part)
    if path.exists():
        path.replace(old)
    try:
        part.replace(path)
    except OSError:
        if path.exists() and not part.exists():
            return  # another process, which opened the array between the renames, did this one
        if old.exists():
            old.replace(path)
        raise


def settle(root: Path, part: Path) -> None:
    """Let readers find an array that has its name now, and remove the one that had it before."""
    try:
        _consolidate(root)
    finally:
        shutil.rmtree(old_name(part), ignore_errors=True)
        finish_exchange(part)


def finish_exchange(part: Path) -> None:
    """Remove the array that has the name of a draft, which has another name by now."""
    for mark in _marks(part):
        if not part.exists() or mark != _exchange_name(part, part.stat().st_ino):
            shutil.rmtree(part, ignore_errors=True)
            mark.unlink(missing_ok=True)


def remove_draft(part: Path) -> None:
    """Remove a draft, and the file that tells it from an array that it has replaced."""
    shutil.rmtree(part, ignore_errors=True)
    finish_exchange(part)


def _marks(part: Path) -> list[Path]:
    folder = part.parent
    return [
        left
        for left in (folder.iterdir() if folder.is_dir() else ())
        if left.suffix == ".exchange" and left.stem.startswith(f"{part.stem}.")
    ]


def finish_replacements(root: Path, item: str) -> None:
    """Finish what killed processes have left of replacements of an array.

    A draft becomes the array, as it is complete before the array is renamed; without one, the old
    array gets its name back.
    """
    root = real_path(root)
    path = root / item
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}(\.old|\.[0-9]+\.exchange)")
    folder = path.parent
    for left in list(folder.iterdir()) if folder.is_dir() else ():
        found = name.fullmatch(left.name)
        if found is None:
            continue
        part = left.with_name(left.name.removesuffix(found[1]) + ".part")
        if found[1] != ".old":
            settle(root, part)
        elif not (path.exists() and part.exists()):  # not both are of the array that has the name
            if not path.exists():
                (part if part.exists() else left).replace(path)
                sync(folder)
            settle(root, part)


def _consolidate(root: Path) -> None:
    """Add a new array to the consolidated metadata of a store that has such: readers would not
    find it there.
    """
    metadata = root / "zarr.json"
    fields = json.loads(read_regular(metadata)) if metadata.exists() else {}
    if not (root / ".zmetadata").exists() and not fields.get("consolidated_metadata"):
        return
    import zarr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)  # of format 3
        zarr.consolidate_metadata(open_store(root, read_only=False))
