"""Memory and cores that this process may use, inside containers too."""

from __future__ import annotations

import math
import os
import re
import resource
import threading
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from hdgemm.errors import DoesNotFitError, HdgemmError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.options import Options

#: The part of the free memory that a run takes where the options name no limit.
_SHARE: Final = 0.6
#: Bytes left to the interpreter and to BLAS's own buffers.
_RESERVE: Final = 128 << 20
#: Free memory assumed where the system does not tell, as without /proc.
_UNKNOWN: Final = 1 << 30
_LEAST: Final = 64 << 20
#: Addresses of a thread's stack where no limit tells, and of its heap.
_STACK: Final = 8 << 20
_HEAP: Final = 128 << 20
_CGROUP: Final = Path("/sys/fs/cgroup")
#: Version 1 of cgroups has a larger number where there is no limit.
_NO_LIMIT: Final = 1 << 62
#: Lines of memory.stat with the inactive page cache: version 1 of cgroups has a total, too.
_INACTIVE: Final = re.compile(rb"^(total_inactive_file|inactive_file) (\d+)$", re.MULTILINE)


def default_host_bytes() -> int:
    """Return the default of `Options.host_memory` in bytes: a part of the free memory.

    It is rounded down, so that products of one size have the same plan from call to call.
    """
    part = int((available_bytes() - _RESERVE) * _SHARE)
    return max(_LEAST, part - part % _LEAST)


def host_bytes(options: Options) -> int:
    """Return the host memory, in bytes, that one computation may take under some options."""
    return options.host_bytes or default_host_bytes()


def available_bytes() -> int:
    """Return the bytes this process could still take: the machine's, or its cgroup's if fewer."""
    try:
        free = int(psutil.virtual_memory().available)
    except (OSError, ValueError, KeyError, psutil.Error):
        free = _UNKNOWN
    return min([free, *(limit - used for limit, used in _cgroup_memory())])


def total_bytes() -> int:
    """Return the bytes of memory of this machine, or the limit of its cgroup if it is smaller."""
    try:
        total = int(psutil.virtual_memory().total)
    except (OSError, ValueError, KeyError, psutil.Error):
        total = _NO_LIMIT
    return min([total, *(limit for limit, _ in _cgroup_memory())])


def cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _cgroup_memory() -> list[tuple[int, int]]:
    """Return limit and use in bytes of each memory cgroup from this process's up to the root."""
    found = []
    for folder, limit_name, used_name in _cgroup_folders():
        limit = _number(folder / limit_name)
        if limit is None or limit >= _NO_LIMIT:
            continue
        used = _number(folder / used_name)
        if used is not None:
            found.append((limit, used - _reclaimable(folder)))
    return found


def _cgroup_folders() -> list[tuple[Path, str, str]]:
    try:
        text = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return _folders_of(text)


@lru_cache(maxsize=1)  # a process hardly ever moves to another cgroup
def _folders_of(text: str) -> list[tuple[Path, str, str]]:
    folders: list[tuple[Path, str, str]] = []
    parts = (line.split(":", 2) for line in text.splitlines() if line.count(":") > 1)
    for _, controllers, path in parts:
        if controllers == "":
            root, names = _CGROUP, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = _CGROUP / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = root / path.lstrip("/")
        # Inside a container the path is the host's, and the limits are in the root's files.
        within = [f for f in [own, *own.parents] if f == root or root in f.parents]
        folders += [(folder, *names) for folder in within]
    return folders


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _reclaimable(folder: Path) -> int:
    """Return the bytes of page cache that the kernel reclaims first."""
    try:
        stats: dict[bytes, bytes] = dict(_INACTIVE.findall((folder / "memory.stat").read_bytes()))
    except OSError:
        return 0
    return int(stats.get(b"total_inactive_file", stats.get(b"inactive_file", b"0")))


@contextmanager
def thread_limit() -> Iterator[None]:
    """Turn Python's refusal to start one more thread into an `HdgemmError`."""
    try:
        yield
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        raise HdgemmError(
            f"the system refused to start a thread beside the {threading.active_count()} of this "
            f"process; {_thread_advice()}"
        ) from error


def _thread_advice() -> str:
    """Return what a thread may have lacked: addresses for its stack and heap, or its number."""
    limit, stack = (
        resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_STACK)
    )
    needed = (_STACK if stack == resource.RLIM_INFINITY else stack) + _HEAP
    held = int(psutil.Process().memory_info().vms)
    if limit != resource.RLIM_INFINITY and held + needed > limit:
        return (
            f"it has {held} bytes of memory addresses and may have {limit}, and a thread takes "
            f"{needed}: raise the limit (`ulimit -v`, RLIMIT_AS)"
        )
    return "raise its limit of threads (`ulimit -u`, a container's pids limit)"


@contextmanager
def memory_limit() -> Iterator[None]:
    """Turn the system's refusal of memory into an `HdgemmError`."""
    try:
        yield
    except HdgemmError:
        raise
    except MemoryError as error:
        # NumPy's error has the array's shape and dtype.
        shape: Any = getattr(error, "shape", None)
        dtype: Any = getattr(error, "dtype", None)
        known = shape is not None and dtype is not None
        numbers = {"requested": math.prod(shape) * dtype.itemsize} if known else {}
        asked = f"{numbers['requested']:,} bytes of memory" if known else "memory"
        raise DoesNotFitError(
            f"the system refused {asked}; lower host_memory, or raise the limit of this process "
            "(`ulimit -v`)",
            **numbers,
        ) from error
