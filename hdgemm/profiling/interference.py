"""From figures alone to what else on this machine takes a resource away.

None of the evidence needs privileges, and the most specific comes first, since who hammers a disk
or memory needs a core for it too:

- disk: the disk's own counters while this process is idle.
- memory: a reader that loses little beside a copy of ours, since somebody else's traffic slows it
  already (`hdgemm.profiling.bus`), and somebody at work who holds more memory than caches do.
- cores: busy time of the processors less this process's own, and time that a hypervisor took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.profiling.bus import cache_bytes
from hdgemm.profiling.conclusions import Interference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.profiling.bus import Bus
    from hdgemm.profiling.other_load import Others

#: What must be gone of the disk's bytes or time, of memory bandwidth, or of the cores before it is
#: worth a word.
_DISK_PART: Final = 0.15
_DISK_BUSY: Final = 0.50
_MEMORY_PART: Final = 0.15
_CORES_PART: Final = 0.20
#: A reader on a free bus that keeps more than this beside a copy is not to be expected.
_KEPT: Final = 0.80
#: The same against the best figures of this machine: rate lost times part kept.
_SCORE: Final = 1.30
#: Cores that must be busy on behalf of large processes for one of them to hold the bus; or, where
#: processes are not seen, cores and the part of all others' work that these must make up.
_SEEN: Final = 0.50
_ABLE: Final = 0.20
_MOST: Final = 0.60
#: What a process needs of a core, at most, to hammer one disk or the bus.
_ONE: Final = 1.1
#: A loss smaller than this cannot be told from the machine's own noise.
_NOISE: Final = 0.05

#: Names of the figures that are remembered: bytes per CPU-second, and what a copy takes of them.
BUS_ALONE: Final = "bus, bytes per CPU-second alone"
BUS_LOSS: Final = "bus, alone over beside a copy"


def bus_figures(bus: Bus | None) -> dict[str, float]:
    """Return the figures of a bus to remember; the best of both are those of a quiet machine."""
    return {} if bus is None else {BUS_ALONE: bus.alone, BUS_LOSS: 1 / bus.kept}


def find_interference(
    others: Others,
    bus: Bus | None,
    disk_rate: float,
    best: Mapping[str, float],
    *,
    cores: int,
) -> tuple[Interference, ...]:
    """Name the resources that something else takes, the most specific evidence first.

    Parameters
    ----------
    others
        What the rest of the machine did while this process was idle.
    bus
        What a reader got of memory; None where too little was seen of it.
    disk_rate
        Bytes per second that this process got of the disk; 0 where it was not measured.
    best
        The best figures ever seen here, by name: of `bus_figures`, and ``"disk"``.
    cores
        How many this process may use.
    """
    specific = _disk(others, disk_rate, best.get("disk", 0.0)) or _memory(others, bus, best)
    # One process that hammers something else explains a core.
    explained = 0.0 if specific is None else _ONE
    found = (specific, _cores(others, explained, cores))
    return tuple(each for each in found if each is not None)


def noise(looks: Sequence[Others], bus: Bus | None, *, cores: int) -> tuple[str, ...]:
    """Say what cannot be told since other load is too much or does not hold still."""
    if not looks:
        return ()
    found = []
    low, high = min(look.cores for look in looks), max(look.cores for look in looks)
    if high - low > _CORES_PART * cores:
        found.append(
            f"Too noisy to tell what it does when quiet: others kept {low:.1f} to {high:.1f} of "
            f"{cores} cores busy in {len(looks)} looks; {_who(looks[-1], 'the last time ')}."
        )
    disks = [look.disk_busy for look in looks]
    if max(disks) > _DISK_BUSY > 2 * min(disks):
        found.append(
            "Too noisy to tell what its disk does when quiet: others kept it busy "
            f"{min(disks):.0%} to {max(disks):.0%} of the time in {len(looks)} looks."
        )
    if bus is None and cores > 1:
        found.append(
            "Too noisy to tell whether others take memory bandwidth: two threads of this process "
            "seldom had a core each, or there was too little memory to try."
        )
    return tuple(found)


def _disk(others: Others, rate: float, best: float) -> Interference | None:
    if others.disk is None:
        return None
    most = max(rate, best)
    heavy = most > 0 and others.disk >= _DISK_PART * most
    if not heavy and others.disk_busy < _DISK_BUSY:
        return None
    evidence = (
        f"others move {others.disk / 1e9:.2f} GB/s on it and keep it busy "
        f"{others.disk_busy:.0%} of the time"
    )
    if best > 0 and rate > 0:
        evidence += f"; this process gets {min(1.0, rate / best):.0%} of its best here"
    part = others.disk / (most + others.disk) if most > 0 else 0.0
    return Interference("disk", max(part, others.disk_busy), f"{evidence}; {_who(others)}")


def _memory(others: Others, bus: Bus | None, best: Mapping[str, float]) -> Interference | None:
    if bus is None:
        return None
    known, loss = best.get(BUS_ALONE, 0.0), best.get(BUS_LOSS, 0.0)
    gone = 1 - bus.alone / known if known > 0 else 0.0
    if not _able(others, seen=known > 0.0 and gone <= _NOISE):
        return None
    slower = known == 0 or gone > _MEMORY_PART
    if not (slower and bus.kept > _KEPT) and known * loss * bus.kept <= _SCORE * bus.alone:
        return None
    evidence = (
        f"a reader gets {bus.alone / 1e9:.1f} GB per CPU-second and keeps {bus.kept:.0%} of that "
        "beside a copy of ours, as where another's traffic slows it already"
    )
    if known > 0 and loss > 0:
        evidence += (
            f"; the best seen here is {known / 1e9:.1f}, of which a copy left {1 / loss:.0%}"
        )
    evidence = f"{evidence}; {_who(others)}"
    return Interference("host_memory", gone if gone > _NOISE else None, evidence)


def _able(others: Others, *, seen: bool) -> bool:
    """Say whether somebody at work may hold more memory than the caches do.

    Who cannot be seen, or has ended, may, where that is most of the work; but with `seen` only
    who is seen counts, as where the reader is no slower than ever and its part kept is the only
    evidence.
    """
    large = sum(each.cores for each in others.processes if each.memory >= cache_bytes())
    if seen or large >= _SEEN:
        return large >= _SEEN
    rest = others.cores - sum(each.cores for each in others.processes) + large
    return rest >= max(_ABLE, _MOST * others.cores)


def _cores(others: Others, explained: float, cores: int) -> Interference | None:
    gone = others.cores + others.stolen
    if gone - explained < _CORES_PART * cores:
        return None
    evidence = f"others keep {others.cores:.1f} of {cores} cores busy while this process is idle"
    if others.stolen > 0.05 * cores:
        evidence += f", and the hypervisor takes {others.stolen:.1f}"
    return Interference("cores", min(1.0, gone / cores), f"{evidence}; {_who(others)}")


def _who(others: Others, when: str = "") -> str:
    """Name the busiest of the others."""
    if not others.processes:
        return f"{when}at work: nobody for long, or nobody who can be seen"
    return f"{when}at work: " + ", ".join(each.words() for each in others.processes[:3])
