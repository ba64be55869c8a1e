"""Which memory is near a GPU, and how to take from it: Linux's NUMA nodes, without libnuma."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Numbers of the system call `set_mempolicy`; glibc has no wrapper for it.
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
_MPOL_DEFAULT: Final = 0
_MPOL_PREFERRED: Final = 1
_SYSFS: Final = Path("/sys")


def nodes(sysfs: Path = _SYSFS) -> tuple[int, ...]:
    """Return the numbers of the machine's memory nodes; empty where the system does not say."""
    found = (sysfs / "devices/system/node").glob("node[0-9]*")
    return tuple(sorted(int(path.name.removeprefix("node")) for path in found))


def node_of(bus_id: str, sysfs: Path = _SYSFS) -> int | None:
    """Return the node that a PCI device (``"0000:3b:00.0"``) hangs on.

    None where there is one node only, or the firmware does not say (virtual machines).
    """
    if len(nodes(sysfs)) < 2:
        return None
    try:
        node = int((sysfs / "bus/pci/devices" / bus_id / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


@contextmanager
def near(node: int | None) -> Iterator[None]:
    """Let this thread's new memory come from `node` while it has any, from elsewhere after that.

    Nothing happens for None, or where the system (a container's seccomp filter, say) refuses: far
    memory is slower, not wrong.
    """
    set_to = node is not None and _set_policy(_MPOL_PREFERRED, node)
    try:
        yield
    finally:
        if set_to:
            _set_policy(_MPOL_DEFAULT, None)


def _set_policy(mode: int, node: int | None) -> bool:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or os.name != "posix":
        return False
    words = [0] if node is None else [0] * (node // 64) + [1 << node % 64]
    mask = (ctypes.c_uint64 * len(words))(*words)
    # The kernel reads one bit less than it is told.
    bits = 0 if node is None else 64 * len(words) + 1
    call = ctypes.CDLL(None, use_errno=True).syscall
    return bool(call(number, mode, None if node is None else mask, ctypes.c_ulong(bits)) == 0)
