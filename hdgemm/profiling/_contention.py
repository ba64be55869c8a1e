"""Contention between stages: rates of probes alone, in pairs, and all together."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

from hdgemm.profiling._samples import Sample
from hdgemm.threads import Worker, run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hdgemm.profiling._probes import Probe


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Rate of one stage alone and with all stages running, in 10⁹ bytes/s (mult1: flop/s)."""

    stage: str
    alone: Sample
    contended: Sample

    @property
    def kept(self) -> float:
        """Contended rate relative to the rate alone (HDGEMM, Figures 9 and 10)."""
        return self.contended.median / self.alone.median if self.alone.median else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "alone": self.alone.median,
            "contended": self.contended.median,
            "kept": self.kept,
            "unit": "GFLOP/s" if self.stage == "mult1" else "GB/s",
            "spread": max(self.alone.spread, self.contended.spread),
        }


def measure_rates(probes: Sequence[Probe], seconds: float) -> dict[str, float]:
    """Repeat the probes side by side, one thread each; return the rate of each.

    Raise the first error of a probe.
    """
    barrier, over = threading.Barrier(len(probes)), threading.Event()
    rates: dict[str, float] = {}
    errors: list[BaseException] = []

    def repeat(probe: Probe) -> None:
        try:
            barrier.wait()
            rates[probe.name] = _repeat(probe.step, seconds, over)
        except BaseException as error:  # noqa: BLE001  (raised again below)
            stop(error)

    def stop(error: BaseException) -> None:
        errors.append(error)
        over.set()
        barrier.abort()

    # Returns when every thread has ended: the caller may then free the memory of the probes.
    run_all(
        [Worker(partial(repeat, probe), f"probe-{probe.name}") for probe in probes],
        look=lambda: None,
        interval=1.0,
        stop=stop,
    )
    if errors:
        raise errors[0]
    return rates


def _repeat(step: Callable[[], int], seconds: float, over: threading.Event) -> float:
    amount = 0
    now = began = time.perf_counter()
    while now < began + seconds and not over.is_set():
        amount += step()
        now = time.perf_counter()
    return amount / (now - began) if now > began else 0.0


class Contention:
    """Rates of all probes alone, of every pair, of all stages together, and of everything.

    Each of so many rounds measures every combination once, by turns, for so many seconds.
    """

    def __init__(self, probes: Mapping[str, Probe], seconds: float, rounds: int) -> None:
        self._probes = dict(probes)
        self._seconds = seconds
        self._rounds = rounds
        self._every = tuple(probes)
        self._stages = tuple(name for name in probes if name not in {"disk", "cores"})
        self._rates: dict[tuple[tuple[str, ...], str], list[float]] = defaultdict(list)

    def __len__(self) -> int:
        return self._rounds * len(self._combinations())

    def run(self) -> Iterator[str]:
        """Measure one combination after the other; yield the name of the next one."""
        for _ in range(self._rounds):
            for names in self._combinations():
                yield " + ".join(names) if len(names) <= 2 else "all together"
                rates = measure_rates([self._probes[name] for name in names], self._seconds)
                for name, rate in rates.items():
                    self._rates[names, name].append(rate)

    def _combinations(self) -> list[tuple[str, ...]]:
        alone: list[tuple[str, ...]] = [(name,) for name in self._every]
        pairs = combinations(self._every, 2)
        return list(dict.fromkeys([*alone, *pairs, self._stages, self._every]))

    def alone(self, name: str) -> Sample:
        """Rates of one probe alone, in bytes/s or flop/s; empty where nothing was measured."""
        return self._sample((name,), name)

    def beside(self, name: str, other: str) -> Sample:
        """Rates of one probe while another one runs."""
        pair = (name, other) if (name, other) in combinations(self._every, 2) else (other, name)
        return self._sample(pair, name)

    def _sample(self, names: tuple[str, ...], name: str) -> Sample:
        return Sample.of(self._rates.get((names, name), ()))

    def matrix(self) -> dict[str, dict[str, Sample]]:
        """Return the rate of the row's probe beside the column's, relative to its rate alone."""
        found: dict[str, dict[str, Sample]] = {}
        for row in self._every:
            alone = self.alone(row).median
            if alone == 0:
                continue
            cells = {other: self.beside(row, other) for other in self._every if other != row}
            cells["all"] = self._sample(self._every, row)
            found[row] = {
                column: Sample.of(rate / alone for rate in cell.values)
                for column, cell in cells.items()
                if cell.values
            }
        return found

    def bandwidths(self) -> dict[str, Bandwidth]:
        """Return the rates of each stage alone and with all stages running."""
        found = {}
        for name in self._stages:
            alone, contended = (
                Sample.of(rate / 1e9 for rate in sample.values)
                for sample in (self.alone(name), self._sample(self._stages, name))
            )
            if contended.values:
                found[name] = Bandwidth(name, alone, contended)
        return found
