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

#: Numbers of the system calls `set_mempolicy` and `get_mempolicy`; glibc has no wrappers.
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
_GET_MEMPOLICY: Final = {"x86_64": 239, "aarch64": 236}
_MPOL_PREFERRED: Final = 1
#: 64-bit words of a mask of nodes: as many as the kernel can be built for.
_WORDS: Final = 16
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
    memory is slower, not wrong. The thread's own policy (``numactl``) holds again afterwards.
    """
    before = None if node is None or node >= 64 * _WORDS else _policy()
    if before is None or node is None:
        yield
        return
    wanted = _Mask()
    wanted[node // 64] = 1 << node % 64
    _set_policy(_MPOL_PREFERRED, wanted)
    try:
        yield
    finally:
        _set_policy(*before)


_Mask = ctypes.c_uint64 * _WORDS


def _policy() -> tuple[int, ctypes.Array[ctypes.c_uint64]] | None:
    """Return this thread's policy and its nodes, None where the system does not say."""
    mode, mask = ctypes.c_int(), _Mask()
    done = _call(_GET_MEMPOLICY, ctypes.byref(mode), mask, _bits(), None, ctypes.c_ulong(0))
    return (mode.value, mask) if done else None


def _set_policy(mode: int, mask: ctypes.Array[ctypes.c_uint64]) -> None:
    # A mode that takes no nodes wants none named.
    nodes = mask if any(mask) else None
    _call(_SET_MEMPOLICY, mode, nodes, _bits() if nodes is not None else ctypes.c_ulong(0))


def _bits() -> ctypes.c_ulong:
    return ctypes.c_ulong(64 * _WORDS)


def _call(numbers: dict[str, int], *arguments: object) -> bool:
    number = numbers.get(platform.machine())
    if number is None or os.name != "posix":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments) == 0)
