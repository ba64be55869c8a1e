"""Interference: resources that other processes take, found without privileges.

- Disk: its own counters while this process is idle.
- Memory bandwidth: a thread reads memory, alone and beside a thread that copies. On a free bus
  the copy slows the reader clearly. Where another process holds the bus already, the copy slows it
  little. Rates are per CPU second: waiting for the bus counts as CPU time, waiting for a core does
  not.
- Cores: busy time of the processors, and time that a hypervisor took.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hdgemm.machine.limits import available_bytes
from hdgemm.threads import Worker
from hdgemm.units import format_rate, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from hdgemm.profiling.other_load import OtherLoad

#: Size of the last-level cache, and the value taken where the kernel does not give it.
_CACHE: Final = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_CACHE_BYTES: Final = 32 << 20
_LEAST, _MOST = 64 << 20, 256 << 20
#: Seconds of one round: a third of it reading alone, the rest beside a copy.
ROUND_SECONDS: Final = 0.12
#: Bytes of one read, and reads of one slice: about a millisecond, less than a scheduler's turn.
_PIECE: Final = 2 << 20
_SLICE: Final = 12
#: Parts of a slice with a core above which a thread counts as running, below which as parked.
_RUNNING: Final = 0.9
_PARKED: Final = 0.1
#: Slices of either kind that a result needs.
_ENOUGH: Final = 8
#: Parts of the disk's bytes, of its time, and of the cores from which on they are reported.
_DISK_PART: Final = 0.15
_DISK_BUSY: Final = 0.50
_CORES_PART: Final = 0.20
#: Part of its rate above which a reader beside a copy indicates a busy bus. Measured medians:
#: 0.68 to 0.76 on a free bus, 0.86 to 0.91 with memory hammered (docs/explanation/contention.md).
_KEPT: Final = 0.80
#: Cores that processes larger than the caches must use before the bus counts as taken by them.
_LARGE_CORES: Final = 0.50
#: Cores that one process needs, at most, to saturate a disk or the bus.
_ONE: Final = 1.1


@dataclass(frozen=True, slots=True)
class Interference:
    """A resource, ``"host_memory"``, ``"disk"`` or ``"cores"``, that other processes take in part.

    `taken` is None where the part is not measurable; `evidence` are the figures that say so.
    """

    resource: str
    taken: float | None
    evidence: str


class Slice(NamedTuple):
    """About a millisecond of reading memory, at `rate` bytes per second of the reader's CPU time.

    `own` and `beside` are the parts of it in which the reader, and the copying thread, had a core.
    """

    rate: float
    own: float
    beside: float


class Bus(NamedTuple):
    """Bytes per CPU second of a reader on the memory bus, alone and beside a copying thread."""

    alone: float
    beside: float

    @property
    def kept(self) -> float:
        """The rate beside a copy, relative to the rate alone."""
        return self.beside / self.alone

    @classmethod
    def of(cls, slices: Iterable[Slice]) -> Bus | None:
        """Return the medians; None with too few slices of either kind."""
        ran = [each for each in slices if each.own > _RUNNING]
        alone = [each.rate for each in ran if each.beside < _PARKED]
        beside = [each.rate for each in ran if each.beside > _RUNNING]
        if min(len(alone), len(beside)) < _ENOUGH:
            return None
        return cls(statistics.median(alone), statistics.median(beside))


def cache_bytes() -> int:
    """Return the size of the last-level cache; 32 MB where the kernel does not say."""
    try:
        text = _CACHE.read_text(encoding="ascii").strip()
        return int(text.removesuffix("K")) << 10
    except (OSError, ValueError):
        return _CACHE_BYTES


def measure_bus(rounds: int) -> list[Slice]:
    """Read memory alone, and for twice as long beside a copy, in each round.

    Holds nine times the last-level cache, from 192 to 768 MB; measures nothing where that is more
    than half of the free memory.
    """
    nbytes = min(_MOST, max(_LEAST, 3 * cache_bytes()))
    if 3 * nbytes > available_bytes() / 2:
        return []
    memory, source, target = (np.ones(nbytes // 8) for _ in range(3))
    copying, over = threading.Event(), threading.Event()

    def copy() -> None:
        while copying.wait() and not over.is_set():
            np.copyto(target, source)

    copier = Worker(copy, "bus-copier")
    copier.start()
    slices: list[Slice] = []
    try:
        clock = time.pthread_getcpuclockid(copier.ident or 0)
        for _ in range(rounds):
            slices += _read(memory, ROUND_SECONDS / 3, clock)
            copying.set()
            slices += _read(memory, 2 * ROUND_SECONDS / 3, clock)
            copying.clear()
    finally:
        over.set()
        copying.set()
        copier.join()
    return slices


def _read(memory: NDArray[np.float64], seconds: float, copier_clock: int) -> list[Slice]:
    found, at, piece = [], 0, _PIECE // 8
    clocks = (time.perf_counter, time.thread_time, lambda: time.clock_gettime(copier_clock))
    before = [clock() for clock in clocks]
    end = before[0] + seconds
    while before[0] < end:
        for _ in range(_SLICE):
            np.add.reduce(memory[at : at + piece])
            at = (at + piece) % memory.size
        now = [clock() for clock in clocks]
        wall, own, copier = (new - old for new, old in zip(now, before, strict=True))
        own = max(1e-9, own)
        found.append(Slice(_SLICE * _PIECE / own, own / wall, copier / wall))
        before = now
    return found


def find_interference(
    load: OtherLoad, bus: Bus | None, disk_rate: float, *, cores: int
) -> tuple[Interference, ...]:
    """Return the resources that others take, the most specific evidence first.

    Parameters
    ----------
    load
        Load of others while this process was idle.
    bus
        None where it could not be measured.
    disk_rate
        Bytes/s that this process moved on the disk; 0 where it was not measured.
    cores
        Cores that this process may use.
    """
    specific = _disk(load, disk_rate) or _memory(load, bus)
    # The process that saturates a disk or the bus uses a core for it.
    explained = 0.0 if specific is None else _ONE
    found = (specific, _cores(load, explained, cores))
    return tuple(each for each in found if each is not None)


def unsteady_load(samples: Sequence[OtherLoad], *, cores: int) -> tuple[str, ...]:
    """Say that the load of others varied too much between samples to be judged."""
    busy = [each.cores for each in samples]
    if not busy or max(busy) - min(busy) <= _CORES_PART * cores:
        return ()
    text = (
        f"Other processes used {min(busy):.1f} to {max(busy):.1f} of {cores} cores in "
        f"{len(samples)} samples ({samples[-1].words()})."
    )
    return (text,)


def _disk(load: OtherLoad, rate: float) -> Interference | None:
    if load.disk is None:
        return None
    part = load.disk / (rate + load.disk) if rate > 0 else 0.0
    heavy = rate > 0 and load.disk >= _DISK_PART * rate
    if not heavy and load.disk_busy < _DISK_BUSY:
        return None
    evidence = (
        f"others move {format_rate(load.disk)} on it and keep it busy {load.disk_busy:.0%} of "
        f"the time; {load.words()}"
    )
    return Interference("disk", max(part, load.disk_busy), evidence)


def _memory(load: OtherLoad, bus: Bus | None) -> Interference | None:
    large = sum(each.cores for each in load.processes if each.memory >= cache_bytes())
    if bus is None or bus.kept <= _KEPT or large < _LARGE_CORES:
        return None
    evidence = (
        f"a reader gets {format_size(bus.alone)} per CPU second and keeps {bus.kept:.0%} of that "
        f"beside a copy, where a free bus leaves less than {_KEPT:.0%}; {load.words()}"
    )
    return Interference("host_memory", None, evidence)


def _cores(load: OtherLoad, explained: float, cores: int) -> Interference | None:
    gone = load.cores + load.stolen
    if gone - explained < _CORES_PART * cores:
        return None
    evidence = f"others use {load.cores:.1f} of {cores} cores while this process is idle"
    if load.stolen > 0.05 * cores:
        evidence += f", and the hypervisor takes {load.stolen:.1f}"
    return Interference("cores", min(1.0, gone / cores), f"{evidence}; {load.words()}")
