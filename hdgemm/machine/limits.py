"""How much memory and how many cores this process may use, inside containers too."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import psutil

from hdgemm.errors import HdgemmError

#: The part of what is free that a run takes when it is not told.
_SHARE: Final = 0.6
#: Left to the interpreter and BLAS's own buffers.
_RESERVE: Final = 128 << 20
_LEAST: Final = 64 << 20
_CGROUP: Final = Path("/sys/fs/cgroup")


def default_host_bytes() -> int:
    """Return the default of `Options.host_memory` in bytes: a sensible part of what is free.

    Rounded down, so that plans of one size are the same from call to call.
    """
    part = int((available_bytes() - _RESERVE) * _SHARE)
    return max(_LEAST, part - part % _LEAST)


def available_bytes() -> int:
    """Return the bytes this process could still take: the machine's, or its cgroup's if fewer."""
    free = int(psutil.virtual_memory().available)
    return min([free, *(limit - used for limit, used in _cgroup_memory())])


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _cgroup_memory() -> list[tuple[int, int]]:
    """Return (limit, used) of every memory cgroup from this process's own up to the root."""
    found = []
    for folder, limit_name, used_name in _cgroup_folders():
        limit, used = _number(folder / limit_name), _number(folder / used_name)
        if limit is not None and used is not None:
            found.append((limit, used - _reclaimable(folder)))
    return found


def _cgroup_folders() -> list[tuple[Path, str, str]]:
    folders: list[tuple[Path, str, str]] = []
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = _CGROUP, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = _CGROUP / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = root / path.lstrip("/")
        # Inside a container the path is the host's, and the limits lie at the root.
        within = [f for f in [own, *own.parents] if f == root or root in f.parents]
        folders += [(folder, *names) for folder in within]
    return folders


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _reclaimable(folder: Path) -> int:
    """Return the page cache that the kernel would give up first."""
    try:
        text = (folder / "memory.stat").read_text(encoding="ascii")
    except OSError:
        return 0
    stats = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
    return int(stats.get("total_inactive_file", stats.get("inactive_file", 0)))


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises
    ------
    HdgemmError
        When the system's limit of threads or memory does not allow it.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise HdgemmError(
            f"the system refused to start the thread {thread.name!r} beside "
            f"{threading.active_count()} others of this process; raise its limit of threads "
            "(`ulimit -u`, the container's pids limit)"
        ) from error
