"""Probes alone, in pairs and all together for a while, and what each got done meanwhile."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from hdgemm.pipeline.worker import Worker
from hdgemm.profiling.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hdgemm.profiling.probes import Probe


class Work(NamedTuple):
    """What one probe did in a window.

    Parameters
    ----------
    amount
        Bytes, or flop.
    seconds
        Wall time of its operations.
    """

    amount: int
    seconds: float

    @property
    def rate(self) -> float:
        """Amount a second."""
        return self.amount / self.seconds if self.seconds > 0 else 0.0


def run_window(probes: Sequence[Probe], seconds: float) -> dict[str, Work]:
    """Repeat the probes side by side, each in a thread of its own, for so many seconds.

    Raises
    ------
    HdgemmError
        The first that a probe raised.
    """
    barrier, over = threading.Barrier(len(probes)), threading.Event()
    found: dict[str, Work] = {}
    errors: list[BaseException] = []

    def repeat(probe: Probe) -> None:
        try:
            barrier.wait()
            found[probe.name] = _repeat(probe.step, seconds, over)
        except BaseException as error:  # noqa: BLE001  (raised again below)
            errors.append(error)

    threads = [Worker(partial(repeat, probe), f"probe-{probe.name}") for probe in probes]
    try:
        for thread in threads:
            thread.start()
        _wait(threads)
    finally:
        # Nobody may free the probes' memory while one of them still works on it.
        over.set()
        barrier.abort()
        _wait(threads)
    if errors:
        raise errors[0]
    return found


def _wait(threads: Iterable[Worker]) -> None:
    """Wait for all; an interrupt is raised when all have ended."""
    interrupt: BaseException | None = None
    for thread in threads:
        while thread.working:
            try:
                thread.wait(1.0)
            except BaseException as error:  # noqa: BLE001  (raised below)
                interrupt = error
    if interrupt is not None:
        raise interrupt


def _repeat(step: Callable[[], int], seconds: float, over: threading.Event) -> Work:
    amount = 0
    now = began = time.perf_counter()
    while now < began + seconds and not over.is_set():
        amount += step()
        now = time.perf_counter()
    return Work(amount, now - began)


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of a profile.

    Parameters
    ----------
    alone
        By probe, a window each.
    pairs
        By (probe, other): what `probe` did while `other` ran beside it.
    stages, everything
        By probe: with all stages of the pipeline at once, and with disk and cores as well.
    """

    alone: Mapping[str, tuple[Work, ...]]
    pairs: Mapping[tuple[str, str], tuple[Work, ...]]
    stages: Mapping[str, tuple[Work, ...]]
    everything: Mapping[str, tuple[Work, ...]]

    def matrix(self) -> dict[str, dict[str, Sample]]:
        """Return what row's probe keeps of its own rate while column's runs, and with all."""
        found: dict[str, dict[str, Sample]] = {}
        for row, works in self.alone.items():
            own = Sample.of(work.rate for work in works).median
            if own == 0:
                continue
            cells = {
                column: _kept(self.pairs[row, column], own)
                for column in self.alone
                if (row, column) in self.pairs
            }
            if row in self.everything:
                cells["all"] = _kept(self.everything[row], own)
            found[row] = cells
        return found


def _kept(works: Iterable[Work], own: float) -> Sample:
    return Sample.of(work.rate / own for work in works)


class WindowPlan:
    """The windows in the order in which they are measured, interleaved and repeated.

    Parameters
    ----------
    seconds
        Of one window.
    rounds
        How often everything is measured.
    """

    def __init__(self, probes: Mapping[str, Probe], seconds: float, rounds: int) -> None:
        self._probes = dict(probes)
        self._seconds = seconds
        self._rounds = rounds
        self._found: dict[tuple[str, ...], dict[str, list[Work]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def __len__(self) -> int:
        return self._rounds * len(self._sets())

    def run(self) -> Iterator[str]:
        """Measure window by window; yields what is measured next."""
        for _ in range(self._rounds):
            for names in self._sets():
                yield " + ".join(names) if len(names) <= 2 else "all together"
                window = run_window([self._probes[name] for name in names], self._seconds)
                for name, work in window.items():
                    self._found[names][name].append(work)

    def result(self) -> Windows:
        """Return what was measured so far."""
        stages = self._stages()
        every = tuple(self._probes)
        return Windows(
            alone={n: tuple(self._found[n,][n]) for n in every if self._found[n,][n]},
            pairs={
                (name, other): tuple(self._found[pair][name])
                for pair in combinations(every, 2)
                for name, other in (pair, pair[::-1])
                if self._found[pair][name]
            },
            stages={n: tuple(self._found[stages][n]) for n in stages if self._found[stages][n]},
            everything={n: tuple(self._found[every][n]) for n in every if self._found[every][n]},
        )

    def _stages(self) -> tuple[str, ...]:
        return tuple(name for name in self._probes if name not in {"disk", "cores"})

    def _sets(self) -> list[tuple[str, ...]]:
        """Return alone, pairs, all stages, and all."""
        every = tuple(self._probes)
        sets: list[tuple[str, ...]] = [(name,) for name in every]
        return list(dict.fromkeys([*sets, *combinations(every, 2), self._stages(), every]))
