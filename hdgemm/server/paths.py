"""Files that jobs may name: inside the allowed roots, after symlinks, opened without races.

A path is resolved once, at submit, to the real path that is stored. When it is used, it is opened
component by component from the root without following links, so that a folder swapped for a link
in between is refused. A file must be a regular one: opening a FIFO or a device can block.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def resolve(path: str, roots: Sequence[Path], use: str = "read") -> Path:
    """Return the real path of a user's path, absolute or relative to a root.

    Raises `InputError` when it lies in no root, in the same words whether it exists or not.
    """
    if "\x00" in path:
        raise InputError("a path cannot hold a NUL character")
    named = [Path(path)] if path.startswith("/") else [root / path for root in roots]
    allowed = [real for real in map(_real, named) if _root_of(real, roots) is not None]
    for real in allowed:
        if _exists(real):
            return real
    if allowed:
        return allowed[0]
    raise InputError(
        f"{path!r} lies in none of the folders that you may {use} "
        f"({len(roots)} allowed; hdgemm serve --root sets them, GET /v1 lists them)",
        path=path,
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise InputError(f"cannot look for {str(path)[:200]!r}: {error.strerror}") from error


def _real(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot resolve {str(path)!r}: {error}") from error


def mount_point(folder: Path) -> Path:
    """Return where the file system that holds a folder is mounted."""
    while not os.path.ismount(folder):
        folder = folder.parent
    return folder


def _root_of(path: Path, roots: Sequence[Path]) -> Path | None:
    return next((root for root in roots if path.is_relative_to(root)), None)


@contextmanager
def opened(path: Path, roots: Sequence[Path], flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a resolved path below its root, following no link; yield the descriptor.

    Raises `InputError` when the path has left the roots since it was resolved, cannot be opened, or
    is neither a regular file nor, with O_DIRECTORY, a folder.
    """
    root = _root_of(path, roots)
    if root is None:
        raise InputError(f"{path} lies in none of the folders that this server may use")
    try:
        fd = _descend(root, path.relative_to(root).parts or (".",), flags | os.O_NONBLOCK)
    except OSError as error:
        why = error.strerror
        if error.errno == errno.ELOOP:
            why = "it was replaced by a symbolic link, or links to itself: name the file itself"
        raise InputError(f"cannot open {path}: {why}", path=str(path)) from error
    try:
        if not flags & os.O_DIRECTORY and not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InputError(f"{path} is not a regular file", path=str(path))
        yield fd
    finally:
        os.close(fd)


def _descend(root: Path, parts: tuple[str, ...], flags: int) -> int:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in parts[:-1]:
            fd = _step(fd, folder, os.O_RDONLY | os.O_DIRECTORY)
        return _step(fd, parts[-1], flags)
    except OSError:
        os.close(fd)
        raise


def _step(folder: int, name: str, flags: int) -> int:
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    os.close(folder)
    return fd
