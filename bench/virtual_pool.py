"""Executor of the load-balancing pool in virtual time, for devices of given speeds.

The `Pool` and the measuring `SharedPool` are a real run's; the clock is a number. A device
draws its next piece while it works on the one before, as the pipelines do.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hdgemm.pipeline.dynamic_schedule import AHEAD
from hdgemm.pipeline.tiles import Rect
from hdgemm.run.balance import Pool, Wait
from hdgemm.run.shared_pool import SharedPool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.run.balance import PoolMember


@dataclass(frozen=True, slots=True)
class Speed:
    """Elements of C per second, as a function of time.

    Parameters
    ----------
    steps
        Rates, and the seconds for which each holds. The last one holds for ever, unless the steps
        repeat.
    repeats
        Start again with the first step after the last one.
    overhead
        Seconds that each piece takes in addition.
    """

    steps: tuple[tuple[float, float], ...]
    repeats: bool = False
    overhead: float = 0.0

    @classmethod
    def steady(cls, rate: float, overhead: float = 0.0) -> Speed:
        """Return a constant speed."""
        return cls(((rate, float("inf")),), overhead=overhead)

    def end(self, start: float, elements: float) -> float:
        """Return when a piece that begins at `start` is done."""
        now, left = 0.0, elements
        place = 0
        while True:
            rate, length = self.steps[place % len(self.steps)]
            last = not self.repeats and place >= len(self.steps) - 1
            until = float("inf") if last else now + length
            begin = max(now, start)
            if begin < until:
                done = begin + left / rate
                if done <= until:
                    return done
                left -= (until - begin) * rate
            now = until
            place += 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds until each device stored its last element, and the elements that it stored."""

    finished: Mapping[str, float]
    elements: Mapping[str, int]

    @property
    def seconds(self) -> float:
        """Seconds until C was complete."""
        return max(self.finished.values())

    @property
    def imbalance(self) -> float:
        """Time from the first device's end to the last one's, relative to the run."""
        return (self.seconds - min(self.finished.values())) / self.seconds


def run_pool(
    m: int, n: int, members: Mapping[str, PoolMember], speeds: Mapping[str, Speed]
) -> Outcome:
    """Compute an m×n C on devices that draw from one pool, in virtual seconds."""
    events = _Events(m, n, members, speeds)
    events.run()
    shared = events.shared
    finished = {name: shared.seconds(name)[1] for name in members}
    return Outcome(finished, {name: record.elements for name, record in shared.records.items()})


class _Events:
    """Discrete-event simulation: the ends of pieces, in order of time."""

    def __init__(
        self, m: int, n: int, members: Mapping[str, PoolMember], speeds: Mapping[str, Speed]
    ) -> None:
        self._now = 0.0
        self.shared = SharedPool(Pool(m, n, members), lambda: self._now)
        self._speeds = speeds
        self._queues: dict[str, list[Rect]] = {name: [] for name in members}
        self._began: dict[str, float] = {}
        self._ends: list[tuple[float, str]] = []

    def run(self) -> None:
        self._draw_all()
        while self._ends:
            self._now, name = heapq.heappop(self._ends)
            rect = self._queues[name].pop(0)
            self.shared.multiplied(name, rect.rows * rect.cols, self._now - self._began[name])
            self.shared.stored(name, rect)
            if self._queues[name]:
                self._begin(name)
            self._draw_all()

    def _draw_all(self) -> None:
        """Fill every device's queue; start over when a device has returned a bar."""
        waiting = list(self._queues)
        while waiting:
            name = waiting.pop(0)
            while len(self._queues[name]) < AHEAD:
                rect = self.shared.try_draw(name)
                if rect is Wait.GAVE_BACK:
                    waiting = list(self._queues)
                if not isinstance(rect, Rect):
                    break
                self._queues[name].append(rect)
                if len(self._queues[name]) == 1:
                    self._begin(name)

    def _begin(self, name: str) -> None:
        self._began[name] = self._now
        rect, speed = self._queues[name][0], self._speeds[name]
        end = speed.end(self._now + speed.overhead, rect.rows * rect.cols)
        heapq.heappush(self._ends, (end, name))
