"""The pool of a run behind one lock, and each device's connection to it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hdgemm.matrices.base import Wrapper
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.pipeline.slot_reuse import DrawnUnits
from hdgemm.pipeline.tiles import Rect, WorkUnit
from hdgemm.run.balance import Wait
from hdgemm.run.regions import Cells
from hdgemm.threads import notify_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix
    from hdgemm.pipeline.plan import Operand, Plan
    from hdgemm.pipeline.slot_reuse import Batch
    from hdgemm.pipeline.timeline import Event
    from hdgemm.progress import TileGrid
    from hdgemm.run.balance import Pool, Refusal


@dataclass
class _Drawn:
    """A tile in flight: the time of its draw, and its number of elements that are not stored."""

    at: float
    left: int


@dataclass
class _Record:
    """Tiles that one device has stored, with the time of its first draw and last store.

    `multiplied` are elements and seconds of mult1 before its first tile is stored.
    """

    began: float | None = None
    last: float | None = None
    multiplied: tuple[float, float] = (0.0, 0.0)
    elements: int = 0
    tiles: list[Rect] = field(default_factory=list)


class SharedPool:
    """A `Pool` for several pipelines at once; it measures the speed of each device in seconds of
    `clock`.
    """

    def __init__(self, pool: Pool, clock: Callable[[], float] = time.perf_counter) -> None:
        self._pool = pool
        self._clock = clock
        self._changed = threading.Condition()
        self.start = clock()
        self._drawn: dict[str, dict[Rect, _Drawn]] = {name: {} for name in pool.members}
        self.records = {name: _Record() for name in pool.members}
        self._cells = Cells(*pool.extents)

    def draw(self, name: str, stopped: Callable[[], bool]) -> Rect | None:
        """Return the next tile; block while other devices may return tiles to the pool."""
        with self._changed:
            while not stopped():
                rect = self.try_draw(name)
                if isinstance(rect, Rect):
                    return rect
                if rect is Wait.NOTHING_LEFT:
                    return None
                if rect is Wait.FOR_OTHERS:
                    self._changed.wait()
        return None

    def try_draw(self, name: str) -> Rect | Wait:
        """Return the next tile, or the reason why there is none, without blocking."""
        with self._changed:
            rect = self._pool.draw(name)
            if isinstance(rect, Rect):
                now, record = self._clock(), self.records[name]
                self._drawn[name][rect] = _Drawn(now, rect.area)
                if record.began is None:
                    record.began = now
            elif rect is Wait.GAVE_BACK:
                self._changed.notify_all()
            return rect

    def stored(self, name: str, part: Rect) -> None:
        """Record that rows of a drawn tile are in C; a complete tile updates the speed."""
        with self._changed:
            self._pool.stored(name, part)
            self._cells.mark(list(self.records).index(name), part)
            on_the_way = self._drawn[name]
            tile = next(tile for tile in on_the_way if tile.covers(part))
            on_the_way[tile].left -= part.area
            if on_the_way[tile].left == 0:
                self._measure(name, tile, on_the_way.pop(tile).at)
            self._changed.notify_all()

    def tiles(self) -> TileGrid:
        """Return the parts of C that each device has stored so far."""
        with self._changed:
            return self._cells.grid(self.records)

    def _measure(self, name: str, tile: Rect, drawn: float) -> None:
        record, now = self.records[name], self._clock()
        elements = tile.area
        multiplied, multiplying = record.multiplied
        if record.last is None and multiplied and multiplying > 0:
            # The first tile waits for its loads, which later tiles overlap: only its time in mult1
            # predicts the speed of the next tiles.
            self._pool.timed(name, multiplied, multiplying)
        else:
            # Time between the last store and this draw is waiting, not work.
            since = drawn if record.last is None else max(record.last, drawn)
            if now > since:
                self._pool.timed(name, elements, now - since)
        record.last = now
        record.elements += elements
        record.tiles.append(tile)

    def multiplied(self, name: str, elements: float, seconds: float) -> None:
        """Record the elements and seconds of a device's mult1."""
        with self._changed:
            record = self.records[name]
            if record.last is None:
                before = record.multiplied
                record.multiplied = (before[0] + elements, before[1] + seconds)

    def fail(self, name: str) -> list[str]:
        """Return a failed device's tiles to the pool, and the names of the devices left."""
        with self._changed:
            self._pool.fail(name)
            self._drawn[name] = {}
            self._changed.notify_all()
            return self._pool.alive

    def wake(self) -> None:
        """Wake all blocked draws, so that they check whether they were stopped."""
        notify_all(self._changed)

    def seconds(self, name: str) -> tuple[float, float]:
        """Return the times of a device's first draw and last store since the start of the run."""
        record = self.records[name]
        began = self.start if record.began is None else record.began
        return began - self.start, (record.last or began) - self.start

    def first_rate(self, name: str) -> float:
        """Return the speed that a device was expected to have, in elements per second."""
        return self._pool.members[name].rate

    def refusal(self, name: str) -> Refusal | None:
        """Return why a device stopped early as too slow; None where it did not."""
        return self._pool.refusal(name)


class PoolFeed:
    """One device's end of the pool; implements `dynamic_schedule.Feed`.

    Its units have the tile, the slots and the paths of the device's plan.
    """

    def __init__(self, shared: SharedPool, name: str, plan: Plan) -> None:
        self._shared = shared
        self._name = name
        self._increment = DrawnUnits(plan.course)
        self._in_place = plan.problem.c.path == "resident"
        self._stopped = False
        self._per_element = plan.problem.k * flops_per_multiply_add(plan.problem.dtype)
        self.units: list[WorkUnit] = []
        #: Elements of A, B and C that the drawn units load and compute.
        self.elements: dict[Operand, int] = {"A": 0, "B": 0, "C": 0}

    def draw(self) -> Batch | None:
        """Draw a tile and return the unit that computes it."""
        rect = self._shared.draw(self._name, lambda: self._stopped)
        if rect is None:
            return None
        batch = self._increment.append(rect)
        self.units.append(batch.unit)
        self.elements["C"] += rect.area
        for load in batch.loads:
            self.elements[load.operand] += load.rect.area
        return batch

    def stop(self) -> None:
        """Make a blocked `draw` return."""
        self._stopped = True
        self._shared.wake()

    def observe(self, event: Event) -> None:
        """Measure mult1; where C is used in place, a multiplied tile is a stored tile."""
        if event.stage != "mult1":
            return
        unit, elements = self.units[event.unit], event.flops / self._per_element
        self._shared.multiplied(self._name, elements, event.end - event.start)
        if self._in_place and event.step == unit.last:
            self._shared.stored(self._name, unit.rect)


class StoringMatrix(Wrapper):
    """C as one device writes it: every written rectangle is reported to the pool."""

    def __init__(self, matrix: Matrix, stored: Callable[[Rect], None]) -> None:
        super().__init__(matrix)
        self._stored = stored

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Write a rectangle, then report it."""
        self.stored.write(row, col, tile)
        self._stored(Rect(row, col, *tile.shape))
