"""How free the memory bus is: told without knowing what this machine reaches when quiet.

A thread reads more memory than caches hold, in turns alone and beside a thread of ours that
copies. On a free bus the copy costs the reader a good part of its rate. Where somebody else's
traffic holds the reader back already, ours takes little more: both rates come near each other.
Rates are by CPU time, so a core that is taken away leaves them as they are: what waits for the bus
counts as CPU time, and what waits for a core does not.
"""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hdgemm.machine.limits import available_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self

#: Where the kernel says how large the last cache is, and what is taken where it does not.
_CACHE: Final = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_CACHE_BYTES: Final = 32 << 20
_LEAST, _MOST = 64 << 20, 256 << 20
#: Bytes of one read, and reads of one slice: about a millisecond, less than a thread's turn.
_PIECE: Final = 2 << 20
_SLICE: Final = 12
#: The part of a slice that a thread must have had a core to count as running in it, or may have
#: had to count as not running.
_RUNNING: Final = 0.9
_PARKED: Final = 0.1
#: Fewer slices than this tell nothing.
_ENOUGH: Final = 8


class Slice(NamedTuple):
    """About a millisecond of reading.

    Parameters
    ----------
    rate
        Bytes per second of the reader's CPU time.
    own, beside
        The part of the time in which the reader, and the copying thread, had a core.
    """

    rate: float
    own: float
    beside: float


@dataclass(frozen=True, slots=True)
class Bus:
    """What a reader gets of the memory bus, in bytes per CPU-second.

    Parameters
    ----------
    alone
        With no other thread of this process at work.
    beside
        While a thread of this process copied on another core.
    """

    alone: float
    beside: float

    @property
    def kept(self) -> float:
        """The part of its rate that the reader keeps beside a copy."""
        return self.beside / self.alone

    @classmethod
    def of(cls, slices: Iterable[Slice]) -> Bus | None:
        """Take medians; None where too few slices of either kind were seen."""
        ran = [each for each in slices if each.own > _RUNNING]
        alone = [each.rate for each in ran if each.beside < _PARKED]
        beside = [each.rate for each in ran if each.beside > _RUNNING]
        if min(len(alone), len(beside)) < _ENOUGH:
            return None
        return cls(statistics.median(alone), statistics.median(beside))


def cache_bytes() -> int:
    """Return the size of the last cache of the first core; 32 MB where the kernel is silent."""
    try:
        text = _CACHE.read_text(encoding="ascii").strip()
        return int(text.removesuffix("K")) << 10
    except (OSError, ValueError):
        return _CACHE_BYTES


def watch_bus(rounds: int, seconds: float) -> list[Slice]:
    """Read alone for `seconds` and beside a copy for twice as long, so many rounds.

    Holds 192 to 768 MB meanwhile, nine times the last cache; where that is more than half of what
    is free, it reads nothing.
    """
    nbytes = min(_MOST, max(_LEAST, 3 * cache_bytes()))
    if 3 * nbytes > available_bytes() / 2:
        return []
    reader = _Reader(nbytes)
    slices: list[Slice] = []
    with _Copier(nbytes) as copier:
        for _ in range(rounds):
            slices += reader.read(seconds, copier)
            with copier.working():
                slices += reader.read(2 * seconds, copier)
    return slices


class _Reader:
    """Walks through memory; this thread."""

    def __init__(self, nbytes: int) -> None:
        self._memory = np.ones(nbytes // 8)
        self._at = 0

    def read(self, seconds: float, copier: _Copier) -> list[Slice]:
        """Read for so long and return what each slice saw."""
        found = []
        wall, own, beside = time.perf_counter(), time.thread_time(), copier.cpu_seconds()
        end = wall + seconds
        while wall < end:
            for _ in range(_SLICE):
                self._step()
            now = time.perf_counter(), time.thread_time(), copier.cpu_seconds()
            took, ran = now[0] - wall, max(1e-9, now[1] - own)
            found.append(Slice(_SLICE * _PIECE / ran, ran / took, (now[2] - beside) / took))
            wall, own, beside = now
        return found

    def _step(self) -> None:
        piece = _PIECE // 8
        np.add.reduce(self._memory[self._at : self._at + piece])
        self._at = (self._at + piece) % self._memory.size


class _Copier:
    """A thread that copies memory while it is told to; a context that ends it."""

    def __init__(self, nbytes: int) -> None:
        self._source, self._target = np.ones(nbytes // 8), np.ones(nbytes // 8)
        self._go = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="bus-copier", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        ident = self._thread.ident
        assert ident is not None  # noqa: S101  (it has started)
        self._clock = time.pthread_getcpuclockid(ident)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over = True
        self._go.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._go.wait()
            if self._over:
                return
            np.copyto(self._target, self._source)

    def cpu_seconds(self) -> float:
        """CPU time of the copying thread."""
        return time.clock_gettime(self._clock)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Copy within this context."""
        self._go.set()
        try:
            yield
        finally:
            self._go.clear()
