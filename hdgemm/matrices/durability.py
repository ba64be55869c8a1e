"""Waiting until what was written outlives a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Return when a file's content, or the names in a folder, are durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Return when a file and its name are durable."""
    sync(path)
    sync(path.parent)


def sync_tree(folder: Path) -> None:
    """Return when all files and names under a folder are durable."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place, name))
        sync(Path(place))
