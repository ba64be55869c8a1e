"""What everybody else on this machine does meanwhile: cores, the disk, the hypervisor."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from hdgemm.limits import cores

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECTOR: Final = 512


@dataclass(frozen=True, slots=True)
class Others:
    """The rest of the machine over some seconds.

    Parameters
    ----------
    cores
        Cores that other processes were busy on, of those this process may use.
    stolen
        Cores that the hypervisor gave to other machines.
    disk
        Bytes per second that others moved on the disk; None where it cannot be told.
    """

    cores: float
    stolen: float
    disk: float | None

    @classmethod
    def median(cls, seen: Sequence[Others]) -> Others:
        """Return the middle of several looks, figure by figure."""
        if not seen:
            return cls(0.0, 0.0, None)
        middle = len(seen) // 2
        disks = sorted(each.disk for each in seen if each.disk is not None)
        return cls(
            sorted(each.cores for each in seen)[middle],
            sorted(each.stolen for each in seen)[middle],
            disks[len(disks) // 2] if disks else None,
        )


class Watch:
    """Counts what others do from its making on."""

    def __init__(self, folder: Path) -> None:
        self._disk = _disk_counters(folder)
        self._began = self._now()

    def _now(self) -> tuple[float, float, float, float, int | None, int]:
        busy, stolen = _processor_seconds()
        own = os.times()
        io = _own_disk_bytes()
        return (
            time.perf_counter(), busy, stolen, own.user + own.system, _disk_bytes(self._disk), io,
        )  # fmt: skip

    def read(self) -> Others:
        """Return what others did since then; this process's own part is taken off."""
        then, now = self._began, self._now()
        seconds = max(1e-9, now[0] - then[0])
        foreign = (now[1] - then[1] - (now[3] - then[3])) / seconds
        disk = None
        if now[4] is not None and then[4] is not None:
            disk = max(0.0, (now[4] - then[4] - (now[5] - then[5])) / seconds)
        return Others(max(0.0, foreign), max(0.0, (now[2] - then[2]) / seconds), disk)


def describe_machine() -> dict[str, Any]:
    """Return the processor, cores, memory in bytes and the load, as plain values."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load": os.getloadavg()[0],
        "system": " ".join(os.uname()[i] for i in (0, 2, 4)),
    }


def _processor_seconds() -> tuple[float, float]:
    """Return seconds that the cores were busy, and that were stolen, since the machine began."""
    whole = psutil.cpu_times(percpu=True)
    usable = os.sched_getaffinity(0)
    own = [times for number, times in enumerate(whole) if number in usable] or whole
    stolen = sum(getattr(times, "steal", 0.0) for times in own)
    return sum(times.user + times.nice + times.system for times in own), stolen


def _own_disk_bytes() -> int:
    try:
        io = psutil.Process().io_counters()
    except (psutil.Error, OSError, AttributeError):
        return 0
    return int(io.read_bytes + io.write_bytes)


def _disk_counters(folder: Path) -> Path | None:
    """Return the counters of the block device below a folder; None where there is none."""
    device = folder.stat().st_dev
    path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return path if path.exists() else None


def _disk_bytes(counters: Path | None) -> int | None:
    if counters is None:
        return None
    fields = counters.read_text(encoding="ascii").split()
    return (int(fields[2]) + int(fields[6])) * _SECTOR


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return os.uname().machine
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, os.uname().machine)
