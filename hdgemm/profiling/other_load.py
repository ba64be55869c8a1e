"""Load of other processes on this machine: cores, the disk, time taken by the hypervisor."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCK_DEVICES: Final = Path("/sys/dev/block")
_DISKS: Final = Path("/sys/block")
_IN_MEMORY: Final = {"tmpfs", "ramfs", "devtmpfs"}
#: Processes that use less of a core than this are left out.
_IDLE: Final = 0.05


@dataclass(frozen=True, slots=True)
class BusyProcess:
    """Another process: its mean number of cores, and its resident bytes that are not shared."""

    pid: int
    name: str
    cores: float
    memory: int

    def words(self) -> str:
        """Return its name, cores and memory."""
        return f"{self.name} ({self.pid}): {self.cores:.1f} cores, {format_size(self.memory)}"


@dataclass(frozen=True, slots=True)
class OtherLoad:
    """Load of the rest of the machine over some seconds.

    Parameters
    ----------
    cores
        Mean number of cores that other processes used, of those that this process may use.
    stolen
        Mean number of cores that the hypervisor gave to other machines.
    disk
        Bytes/s that other processes moved on the disk; None where no counter says so.
    disk_busy
        Part of the time in which the disk had requests of other processes.
    processes
        The visible busy processes, the busiest first.
    """

    cores: float
    stolen: float
    disk: float | None
    disk_busy: float = 0.0
    processes: tuple[BusyProcess, ...] = ()

    @classmethod
    def typical(cls, samples: Sequence[OtherLoad]) -> OtherLoad:
        """Return the sample of median load of the cores."""
        if not samples:
            return cls(0.0, 0.0, None)
        return sorted(samples, key=lambda each: each.cores)[len(samples) // 2]

    def words(self) -> str:
        """Name the busiest processes."""
        if not self.processes:
            return "busy processes: none that is visible"
        return "busy processes: " + ", ".join(each.words() for each in self.processes[:3])


class _Counters(NamedTuple):
    """Cumulative counters of the kernel, in seconds and bytes."""

    wall: float
    busy: float
    stolen: float
    own: float
    disk: float
    disk_busy: float


class LoadMeter:
    """Measures the load of others from its construction on, while this process is idle."""

    def __init__(self, folder: Path) -> None:
        self._disks = _disks_below(folder)
        self._processes = _processes()
        self._began = self._count()

    def _count(self) -> _Counters:
        own = os.times()
        cores = _core_seconds()
        return _Counters(
            time.perf_counter(), *cores, own.user + own.system, *_disk_work(self._disks)
        )

    def read(self) -> OtherLoad:
        """Return the load since construction, less the CPU time of this process."""
        now = self._count()
        passed = _Counters(*(new - old for new, old in zip(now, self._began, strict=True)))
        seconds = max(1e-9, passed.wall)
        busy = []
        for pid, (name, spent, memory) in _processes().items():
            cores = (spent - self._processes.get(pid, (name, spent, 0))[1]) / seconds
            # Threads of the kernel have no memory of their own.
            if cores >= _IDLE and memory > 0:
                busy.append(BusyProcess(pid, name, cores, memory))
        return OtherLoad(
            cores=max(0.0, passed.busy - passed.own) / seconds,
            stolen=max(0.0, passed.stolen) / seconds,
            disk=passed.disk / seconds if self._disks else None,
            disk_busy=min(1.0, passed.disk_busy / seconds),
            processes=tuple(sorted(busy, key=lambda each: -each.cores)),
        )


def _processes() -> dict[int, tuple[str, float, int]]:
    """Return name, CPU seconds and bytes of own memory of every visible process but this one."""
    found = {}
    for each in psutil.process_iter(["name", "cpu_times", "memory_info"]):
        used, memory = each.info["cpu_times"], each.info["memory_info"]
        if each.pid != os.getpid() and used is not None and memory is not None:
            own = memory.rss - memory.shared
            found[each.pid] = (each.info["name"], used.user + used.system, own)
    return found


def _core_seconds() -> tuple[float, float]:
    """Return busy and stolen seconds of the usable cores since the machine started."""
    every = psutil.cpu_times(percpu=True)
    usable = os.sched_getaffinity(0)
    own = [times for number, times in enumerate(every) if number in usable] or every
    stolen = sum(getattr(times, "steal", 0.0) for times in own)
    return sum(times.user + times.nice + times.system for times in own), stolen


def _disks_below(folder: Path) -> tuple[str, ...]:
    """Return the block device below a folder; none for a folder in memory.

    A file system without a block device of its own, as in a container, gets all disks.
    """
    device = folder.stat().st_dev
    path = _BLOCK_DEVICES / f"{os.major(device)}:{os.minor(device)}"
    if path.exists():
        return (path.resolve().name,)
    if _file_system(folder) in _IN_MEMORY or not _DISKS.is_dir():
        return ()
    # Loop devices and RAM disks have no "device" entry.
    return tuple(disk.name for disk in _DISKS.iterdir() if (disk / "device").exists())


def _file_system(folder: Path) -> str:
    """Return the type of the file system of a folder."""
    place = folder.resolve()
    mounts = [
        part for part in psutil.disk_partitions(all=True) if place.is_relative_to(part.mountpoint)
    ]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else ""


def _disk_work(disks: Sequence[str]) -> tuple[float, float]:
    """Return the bytes that the disks moved, and the busy seconds of the busiest."""
    counters = psutil.disk_io_counters(perdisk=True)
    found = [counters[disk] for disk in disks if disk in counters]
    moved = sum(each.read_bytes + each.write_bytes for each in found)
    return float(moved), max((each.busy_time for each in found), default=0) / 1e3
