"""From figures alone to what else on this machine takes a resource away.

Three kinds of evidence, none of which needs privileges:

- memory: a copy that waits for the memory bus still counts as CPU time, so bytes copied per
  CPU-second fall, while a product that stays in the caches does its flop per CPU-second as ever.
  A core that is taken away leaves both as they are.
- disk: the disk's own counters, less what this process moved.
- cores: busy time of the processors, less this process's own; and time stolen by a hypervisor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.profiling.conclusions import Interference
from hdgemm.profiling.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.profiling.others import Others
    from hdgemm.profiling.windows import Work

#: What must be gone of a resource before it is worth a word.
_MEMORY_PART: Final = 0.15
_DISK_PART: Final = 0.15
_CORES_PART: Final = 0.20


def per_cpu_second(alone: Mapping[str, tuple[Work, ...]]) -> dict[str, float]:
    """Return what each probe alone did per CPU-second: the figures to compare with the best."""
    found = {}
    for name in ("load1", "store2", "cores"):
        rates = [w.amount / w.cpu_seconds for w in alone.get(name, ()) if w.cpu_seconds > 0.01]
        if rates:
            found[f"{name} per CPU-second"] = Sample.of(rates).median
    return found


def wall_rates(alone: Mapping[str, tuple[Work, ...]]) -> dict[str, float]:
    """Return each probe's median rate alone."""
    return {name: Sample.of(w.rate for w in works).median for name, works in alone.items() if works}


def find_interference(
    measured: Mapping[str, float],
    best: Mapping[str, float],
    others: Others,
    *,
    cores: int,
) -> tuple[Interference, ...]:
    """Name the resources that something else takes, the most specific evidence first.

    Who hammers memory or a disk needs a core for it too, so cores come last.

    Parameters
    ----------
    measured, best
        Figures of `per_cpu_second` and `wall_rates`: of this profile, and the best ever seen.
    others
        What the rest of the machine did while this process was idle.
    cores
        How many this process may use.
    """
    found = [_memory(measured, best), _disk(measured, best, others), _cores(others, cores)]
    return tuple(each for each in found if each is not None)


def _memory(measured: Mapping[str, float], best: Mapping[str, float]) -> Interference | None:
    kept = {
        name: measured[key] / best[key]
        for name in ("load1", "store2", "cores")
        if (key := f"{name} per CPU-second") in measured and best.get(key, 0.0) > 0
    }
    copies = [kept[name] for name in ("load1", "store2") if name in kept]
    if not copies or "cores" not in kept:
        return None
    # What slows both is the clock of the cores, or a sibling thread, and not the bus.
    part = sum(copies) / len(copies) / min(1.0, kept["cores"])
    if part > 1 - _MEMORY_PART:
        return None
    return Interference(
        "host_memory",
        1 - part,
        f"copies move {part:.0%} of the most ever seen here per CPU-second, while a product in "
        f"the caches keeps {min(1.0, kept['cores']):.0%}",
    )


def _disk(
    measured: Mapping[str, float], best: Mapping[str, float], others: Others
) -> Interference | None:
    rate = max(measured.get("disk", 0.0), best.get("disk", 0.0))
    if others.disk is None or rate <= 0 or others.disk < _DISK_PART * rate:
        return None
    evidence = f"others move {others.disk / 1e9:.2f} GB/s on the disk"
    if best.get("disk", 0.0) > 0 and "disk" in measured:
        evidence += f"; this process gets {measured['disk'] / best['disk']:.0%} of its best"
    return Interference("disk", min(1.0, others.disk / (rate + others.disk)), evidence)


def _cores(others: Others, cores: int) -> Interference | None:
    gone = (others.cores + others.stolen) / cores
    if gone < _CORES_PART:
        return None
    evidence = f"others keep {others.cores:.1f} of {cores} cores busy while this process is idle"
    if others.stolen > 0.05 * cores:
        evidence += f", and the hypervisor takes {others.stolen:.1f}"
    return Interference("cores", min(1.0, gone), evidence)
