"""Replacement of a Zarr array by its successor, which takes two renames.

The array gets another name, the successor gets its name, and the array is removed last. What a
process that was killed meanwhile has left, the next one that opens or creates the array finishes.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from typing import TYPE_CHECKING

from hdgemm.matrices.draft import real_path
from hdgemm.matrices.files import sync

if TYPE_CHECKING:
    from pathlib import Path


def old_name(part: Path) -> Path:
    """Return the name that a replaced array has while the draft of this name takes its place."""
    return part.with_suffix(".old")


def give_name(part: Path, path: Path) -> None:
    """Rename a draft, which is complete and durable, to `path`, and an array there aside."""
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


def finish_replacements(root: Path, item: str) -> None:
    """Finish what killed processes have left of replacements of an array.

    A draft becomes the array, as it is complete before the array is renamed; without one, the old
    array gets its name back.
    """
    root = real_path(root)
    path = root / item
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.old")
    folder = path.parent
    for old in list(folder.iterdir()) if folder.is_dir() else ():
        part = old.with_suffix(".part")
        if not name.fullmatch(old.name) or (path.exists() and part.exists()):
            continue  # not both are of the array that has the name
        if not path.exists():
            (part if part.exists() else old).replace(path)
            sync(folder)
        settle(root, part)


def _consolidate(root: Path) -> None:
    """Add a new array to the consolidated metadata of a store that has such: readers would not
    find it there.
    """
    metadata = root / "zarr.json"
    fields = json.loads(metadata.read_text(encoding="utf-8")) if metadata.exists() else {}
    if not (root / ".zmetadata").exists() and not fields.get("consolidated_metadata"):
        return
    import zarr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)  # of format 3
        zarr.consolidate_metadata(root)
