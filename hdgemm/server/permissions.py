"""Access to the service's own files: their permissions, and their place outside the roots."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final

from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)
#: The umask of the service's processes.
PRIVATE: Final = 0o077


def current_umask() -> int:
    """Return this process's umask, which can only be read by setting it."""
    found = os.umask(PRIVATE)
    os.umask(found)
    return found


def make_private(folder: Path) -> None:
    """Create a folder and those above it for this user alone; take it from others if it exists."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    mode = folder.stat().st_mode
    if mode & PRIVATE:
        try:
            folder.chmod(mode & ~PRIVATE)
        except PermissionError:
            log.warning(
                "%s belongs to another user, and its permissions are %03o: take a folder in it",
                folder,
                mode & 0o777,
            )


def open_private(file: Path) -> IO[bytes]:
    """Open a file for appending; a new one is for this user alone."""
    return open(file, "ab", opener=lambda path, flags: os.open(path, flags, 0o600))


def give_mode(files: Iterable[Path], mode: int) -> None:
    """Set the permissions of the files that exist, as far as they are this user's."""
    for file in files:
        with suppress(FileNotFoundError, PermissionError):
            file.chmod(mode)


def check_apart(own: Iterable[Path], roots: Sequence[Path]) -> None:
    """Refuse a place of the service's own files within a root, and a root within such a place.

    Jobs read and write all files of the roots: with the database among them, they could take its
    tokens. Folders are compared by inode, so that a bind mount is no way around.

    Raises
    ------
    InputError
        Names both folders.
    """
    for place in own:
        for root in roots:
            if _holds(root, place) or _holds(place, root):
                raise InputError(
                    f"the service keeps its own files in {place}, and jobs may use the folder "
                    f"{root}: neither may lie in the other; choose another --data-dir or --root",
                    place=str(place),
                    root=str(root),
                )


def _holds(folder: Path, path: Path) -> bool:
    real = path.resolve()
    return any(
        each == folder or (each.exists() and folder.exists() and each.samefile(folder))
        for each in (real, *real.parents)
    )
