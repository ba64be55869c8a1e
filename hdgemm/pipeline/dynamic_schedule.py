"""A schedule that grows while it runs: units are drawn one by one from whoever has work.

Several devices that share a product, or a run that must react to what it measures, cannot know
their units beforehand. The lanes are the same; only where their operations come from differs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from hdgemm.pipeline.ledger import GrowingLedger
from hdgemm.pipeline.schedule import ScheduleBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hdgemm.pipeline.plan import Load, Plan, Stage, Step, WorkUnit
    from hdgemm.pipeline.schedule import Op

#: Units that are drawn before they multiply: the one at work, and one whose tiles are loaded.
AHEAD: Final = 2


class Batch(NamedTuple):
    """One more work unit, with its steps and the loads that they are first to read.

    Numbers continue those of the batches before.
    """

    unit: WorkUnit
    steps: tuple[Step, ...]
    loads: tuple[Load, ...]


class Feed(Protocol):
    """Where a growing run gets its units from; called by one thread at a time."""

    def draw(self) -> Batch | None:
        """Return the next unit, None when there will be no more; may block until there is one."""

    def stop(self) -> None:
        """Make a blocked `draw` return None: the run has ended."""


class GrowingSchedule:
    """Operations that appear as units are drawn; implements `executor.Source`.

    Parameters
    ----------
    plan
        Slots, rings and paths; its own loads, units and steps play no part.
    feed
        Gives the units.
    """

    def __init__(self, plan: Plan, feed: Feed) -> None:
        self.ledger = GrowingLedger()
        self._builder = ScheduleBuilder(plan, self.ledger)
        self._feed = feed
        self._changed = threading.Condition()
        self._multiplied = 0
        self._drawing = False
        self._closed = False

    @property
    def stages(self) -> list[Stage]:
        """All five; a stage that gets nothing to do ends with the others."""
        return list(self._builder.schedule)

    def ops(self, stage: Stage, idle: Callable[[], bool]) -> Iterator[Op]:
        """Yield a stage's operations in order, drawing units when they run out."""
        number = 0
        while (op := self._op(stage, number, idle)) is not None:
            yield op
            number += 1

    def _op(self, stage: Stage, number: int, idle: Callable[[], bool]) -> Op | None:
        ops = self._builder.schedule[stage]
        while True:
            # Nobody sees a unit multiplied but this lane: it must not sleep over what it knows.
            # A draw may block until all is stored, so that only a lane with nothing enqueued draws.
            while number >= len(ops) and idle():
                pass
            with self._changed:
                while number >= len(ops) and not self._closed and not self._may_draw():
                    self._changed.wait()
                if number < len(ops):
                    return ops[number]
                if self._closed:
                    return None
                self._drawing = True
            self._draw()

    def _may_draw(self) -> bool:
        return not self._drawing and len(self.ledger.units) - self._multiplied < AHEAD

    def _draw(self) -> None:
        batch = None
        try:
            batch = self._feed.draw()
        finally:
            with self._changed:
                self._drawing = False
                if batch is None:
                    self._closed = True
                else:
                    self._append(batch)
                self._changed.notify_all()

    def _append(self, batch: Batch) -> None:
        self.ledger.loads += batch.loads
        self.ledger.steps += batch.steps
        self.ledger.units.append(batch.unit)
        self._builder.append(batch.unit)

    def finished(self, op: Op, /) -> None:
        """Note what is done, so that the next unit may be drawn."""
        if op.stage == "mult1" and op.step == self.ledger.units[op.unit].last:
            with self._changed:
                self._multiplied += 1
                self._changed.notify_all()

    def stop(self) -> None:
        """End all lanes: nothing more is drawn."""
        self._feed.stop()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
