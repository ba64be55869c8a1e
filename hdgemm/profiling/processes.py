"""Which other processes are at work, and whether they hold enough memory to keep a bus busy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
#: Who used less of a core than this is not named.
_IDLE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Busy:
    """Another process that is at work.

    Parameters
    ----------
    cores
        Cores that it was busy on.
    memory
        Bytes of its own and shared memory that are resident; what it maps of files not counted.
    """

    pid: int
    name: str
    cores: float
    memory: int

    def words(self) -> str:
        """Return its name, cores and memory."""
        return f"{self.name} ({self.pid}): {self.cores:.1f} cores, {self.memory / 1e6:.0f} MB"


class ProcessWatch:
    """Counts the CPU time of every other process that can be seen, from its making on."""

    def __init__(self) -> None:
        self._began = _cpu_seconds()

    def read(self, seconds: float) -> tuple[Busy, ...]:
        """Return who was busy in the seconds since then, the busiest first."""
        found = []
        for pid, (name, used) in _cpu_seconds().items():
            before = self._began.get(pid, (name, 0.0))[1]
            cores = (used - before) / seconds
            # Without memory are threads of the kernel, and who has ended meanwhile.
            if cores >= _IDLE and (memory := _memory(pid)) > 0:
                found.append(Busy(pid, name, cores, memory))
        return tuple(sorted(found, key=lambda busy: -busy.cores))


def typical(looks: Sequence[Sequence[Busy]]) -> tuple[Busy, ...]:
    """Return those that were busy in at least half of the looks, with their middle figures."""
    seen: dict[int, list[Busy]] = {}
    for each in (busy for look in looks for busy in look):
        seen.setdefault(each.pid, []).append(each)
    often = [busy for busy in seen.values() if 2 * len(busy) >= len(looks)]
    middle = [sorted(each, key=lambda busy: busy.cores)[len(each) // 2] for each in often]
    return tuple(sorted(middle, key=lambda busy: -busy.cores))


def _cpu_seconds() -> dict[int, tuple[str, float]]:
    """Return names and CPU seconds by process; those that end meanwhile are left out."""
    found = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            line = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # The name is in brackets and may hold brackets and spaces itself.
        name, _, rest = line.partition("(")[2].rpartition(")")
        fields = rest.split()
        found[int(folder.name)] = (name, (int(fields[11]) + int(fields[12])) / _TICKS)
    return found


def _memory(pid: int) -> int:
    """Return resident bytes that are no file's; 0 where the process has ended."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines.splitlines() if ":" in line)
    kilobytes = (fields.get(name, "0").split()[0] for name in ("RssAnon", "RssShmem"))
    return sum(int(each) for each in kilobytes) << 10
