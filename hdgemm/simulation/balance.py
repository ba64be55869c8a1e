"""The pool in virtual time: how a split comes out for devices whose speeds are given.

The same `Pool` and the same measuring as in a run, with a clock that is a number; a device takes
its next piece while it still works on the one before, as the pipelines do.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hdgemm.pipeline.dynamic_schedule import AHEAD
from hdgemm.pipeline.plan import Rect
from hdgemm.run.balance import Pool, Wait
from hdgemm.run.shared_pool import SharedPool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.run.balance import Member


@dataclass(frozen=True, slots=True)
class Speed:
    """Cells per second over time.

    Parameters
    ----------
    steps
        Rates, and the seconds that each lasts; the last one goes on for ever, or they repeat.
    repeats
        Whether the steps begin again.
    overhead
        Seconds that each piece takes besides.
    """

    steps: tuple[tuple[float, float], ...]
    repeats: bool = False
    overhead: float = 0.0

    @classmethod
    def steady(cls, rate: float, overhead: float = 0.0) -> Speed:
        """Return a speed that stays."""
        return cls(((rate, float("inf")),), overhead=overhead)

    def end(self, start: float, cells: float) -> float:
        """Return when `cells` that are begun at `start` are done."""
        now, left = 0.0, cells
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


@dataclass
class Outcome:
    """Seconds until C was whole, and when each device stored its last cell."""

    seconds: float = 0.0
    finished: dict[str, float] = field(default_factory=dict)
    cells: dict[str, int] = field(default_factory=dict)

    @property
    def imbalance(self) -> float:
        """From the first device's end to the last one's, as a part of the run."""
        return (max(self.finished.values()) - min(self.finished.values())) / self.seconds


class _Race:
    """Devices that draw, work and store, one event after the other."""

    def __init__(
        self, m: int, n: int, members: Mapping[str, Member], speeds: Mapping[str, Speed]
    ) -> None:
        self.now = 0.0
        self.pool = Pool(m, n, members)
        self.shared = SharedPool(self.pool, lambda: self.now)
        self.speeds = speeds
        self._queues: dict[str, list[Rect]] = {name: [] for name in members}
        self._began: dict[str, float] = {}
        self._events: list[tuple[float, str]] = []

    def run(self) -> None:
        self._draw_all()
        while self._events:
            self.now, name = heapq.heappop(self._events)
            rect = self._queues[name].pop(0)
            self.shared.multiplied(name, rect.rows * rect.cols, self.now - self._began[name])
            self.shared.stored(name, rect)
            if self._queues[name]:
                self._begin(name)
            self._draw_all()

    def _draw_all(self) -> None:
        """Let everyone draw who may, again after somebody gave a bar back."""
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
        self._began[name] = self.now
        rect, speed = self._queues[name][0], self.speeds[name]
        end = speed.end(self.now + speed.overhead, rect.rows * rect.cols)
        heapq.heappush(self._events, (end, name))


def race(m: int, n: int, members: Mapping[str, Member], speeds: Mapping[str, Speed]) -> Outcome:
    """Compute an m×n C on devices that draw from one pool, in virtual seconds."""
    one = _Race(m, n, members, speeds)
    one.run()
    finished = {name: one.shared.seconds(name)[1] for name in members}
    cells = {name: record.cells for name, record in one.shared.records.items()}
    return Outcome(max(finished.values()), finished, cells)


def best_static(cells: int, speeds: Mapping[str, Speed]) -> float:
    """Return the seconds of the best fixed split, found by search; pieces cost nothing extra.

    All devices then end at the same moment (HDGEMM, section 4.3.2): the search is for that moment.
    """
    low, high = 0.0, min(speed.end(0.0, cells) for speed in speeds.values())
    for _ in range(60):
        middle = 0.5 * (low + high)
        done = sum(_cells_until(speed, middle, cells) for speed in speeds.values())
        low, high = (low, middle) if done >= cells else (middle, high)
    return high


def _cells_until(speed: Speed, seconds: float, most: int) -> float:
    """Return how many cells of at most `most` are done after so many seconds."""
    low, high = 0.0, float(most)
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if speed.end(0.0, middle) <= seconds else (low, middle)
    return low
