"""What everybody else on this machine does meanwhile: cores, the disk, the hypervisor."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

from hdgemm.machine.limits import cores
from hdgemm.profiling.processes import ProcessWatch, typical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.profiling.processes import Busy

_SECTOR: Final = 512
_BLOCKS: Final = Path("/sys/dev/block")
_IN_MEMORY: Final = {"tmpfs", "ramfs", "devtmpfs"}


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
    disk_busy
        The part of the time in which the disk had requests of others.
    processes
        Who was busy, as far as it can be seen, the busiest first.
    """

    cores: float
    stolen: float
    disk: float | None
    disk_busy: float = 0.0
    processes: tuple[Busy, ...] = ()

    @classmethod
    def median(cls, seen: Sequence[Others]) -> Others:
        """Return the middle of several looks, figure by figure."""
        if not seen:
            return cls(0.0, 0.0, None)
        disks = [each.disk for each in seen if each.disk is not None]
        return cls(
            median(each.cores for each in seen),
            median(each.stolen for each in seen),
            median(disks) if disks else None,
            median(each.disk_busy for each in seen),
            typical([each.processes for each in seen]),
        )


class _Counters(NamedTuple):
    """What the kernel has counted so far; seconds and bytes."""

    wall: float
    busy: float
    stolen: float
    own: float
    disk: float
    disk_busy: float
    own_disk: float


class Watch:
    """Counts what others do from its making on; this process should do nothing meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._disks = _disk_counters(folder)
        self._processes = ProcessWatch()
        self._began = self._now()

    def _now(self) -> _Counters:
        busy, stolen = _processor_seconds()
        own = os.times()
        disk, disk_busy = _disk_work(self._disks)
        return _Counters(
            time.perf_counter(), busy, stolen, own.user + own.system, disk, disk_busy,
            _own_disk_bytes(),
        )  # fmt: skip

    def read(self) -> Others:
        """Return what others did since then; this process's own part is taken off."""
        now = self._now()
        passed = _Counters(*(new - old for new, old in zip(now, self._began, strict=True)))
        seconds = max(1e-9, passed.wall)
        foreign = max(0.0, passed.disk - passed.own_disk) / seconds
        return Others(
            cores=max(0.0, passed.busy - passed.own) / seconds,
            stolen=max(0.0, passed.stolen) / seconds,
            disk=foreign if self._disks else None,
            disk_busy=min(1.0, passed.disk_busy / seconds) if passed.own_disk == 0 else 0.0,
            processes=self._processes.read(seconds),
        )


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


def _disk_counters(folder: Path) -> tuple[Path, ...]:
    """Return the counters of the block device below a folder.

    Where its file system has none of its own, as in a container, those of all disks; none in
    memory.
    """
    device = folder.stat().st_dev
    path = _BLOCKS / f"{os.major(device)}:{os.minor(device)}" / "stat"
    if path.exists():
        return (path,)
    if _file_system(folder) in _IN_MEMORY:
        return ()
    disks = sorted(Path("/sys/block").iterdir()) if Path("/sys/block").is_dir() else []
    # Loops and RAM disks have no device below them.
    return tuple(disk / "stat" for disk in disks if (disk / "device").exists())


def _file_system(folder: Path) -> str:
    """Return the type of the file system that a folder lies in."""
    place = folder.resolve()
    mounts = [
        part for part in psutil.disk_partitions(all=True) if place.is_relative_to(part.mountpoint)
    ]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else ""


def _disk_work(counters: tuple[Path, ...]) -> tuple[float, float]:
    """Return bytes that the disks moved, and seconds in which the busiest had requests."""
    moved, busy = 0, 0.0
    for path in counters:
        fields = path.read_text(encoding="ascii").split()
        moved += (int(fields[2]) + int(fields[6])) * _SECTOR
        busy = max(busy, int(fields[9]) / 1e3)
    return float(moved), busy


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return os.uname().machine
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, os.uname().machine)
