"""Where lanes take operations from: the units of a plan, or units drawn during the run.

Several devices that share a product, and runs that react to measurements, draw their work units
one by one.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from hdgemm.pipeline.plan import STAGES
from hdgemm.pipeline.schedule import Ledger, ScheduleBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hdgemm.pipeline.plan import Load, Plan, Stage, Step, WorkUnit
    from hdgemm.pipeline.schedule import Op

#: Units drawn and not yet multiplied: one that multiplies, and one whose tiles are loaded.
AHEAD: Final = 2


class Batch(NamedTuple):
    """The next work unit, its steps, and the loads whose first readers these steps are.

    Numbers continue from the batches before.
    """

    unit: WorkUnit
    steps: tuple[Step, ...]
    loads: tuple[Load, ...]


class Feed(Protocol):
    """Gives work units to a dynamic schedule; called by one thread at a time."""

    def draw(self) -> Batch | None:
        """Return the next unit, None after the last; can block until there is one."""

    def stop(self) -> None:
        """Make a blocked `draw` return None: the run has ended."""


class OperationSource(ABC):
    """The operations of all stages, for the lanes; scheduled unit by unit during the run."""

    #: Stages that can have operations.
    stages: Sequence[Stage]

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self.ledger = ledger
        self._builder = ScheduleBuilder(plan, ledger)

    def ops(self, stage: Stage, finish: Callable[[], bool]) -> Iterator[Op]:
        """Yield one stage's operations, in order.

        `finish` makes the lane wait for its oldest enqueued operation; False if there is none.
        """
        ops, number = self._builder.schedule[stage], 0
        while True:
            while number < len(ops):  # appending to a list is atomic: no lock
                yield ops[number]
                number += 1
            if not self._extend(ops, number, finish):
                return

    @abstractmethod
    def _extend(self, ops: list[Op], number: int, finish: Callable[[], bool]) -> bool:
        """Schedule more when a lane has executed `number` operations; False at the end."""

    def finished(self, op: Op) -> None:  # noqa: B027  (a fixed schedule needs none)
        """Take note of a finished operation; called by the lanes."""

    def stop(self) -> None:  # noqa: B027
        """End all iterations: the run has failed, was cancelled or is done."""


class FixedSchedule(OperationSource):
    """The operations of a plan.

    They are scheduled when a lane needs them, so that a run starts without delay.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, Ledger.of(plan))
        self._units = iter(plan.units)
        self._lock = threading.Lock()
        self._schedule_unit()
        # The first unit loads both operands and stores: it has operations of every stage.
        self.stages = [stage for stage, ops in self._builder.schedule.items() if ops]

    def _extend(self, ops: list[Op], number: int, finish: Callable[[], bool]) -> bool:  # noqa: ARG002
        with self._lock:
            return number < len(ops) or self._schedule_unit()

    def _schedule_unit(self) -> bool:
        unit = next(self._units, None)
        if unit is not None:
            self._builder.append(unit)
        return unit is not None


class DynamicSchedule(OperationSource):
    """Operations of the work units that a feed gives during the run, in the memory of a plan."""

    def __init__(self, plan: Plan, feed: Feed) -> None:
        # Extended under the lock, read by number without it.
        self._loads: list[Load] = []
        self._units: list[WorkUnit] = []
        self._steps: list[Step] = []
        super().__init__(plan, Ledger(self._loads, self._units, self._steps))
        self.stages = STAGES  # lanes of stages without operations end with the others
        self._feed = feed
        self._changed = threading.Condition()
        self._multiplied = 0
        self._drawing = False
        self._closed = False

    def _extend(self, ops: list[Op], number: int, finish: Callable[[], bool]) -> bool:
        # A lane reports its operations itself, and `draw` can block until all is stored: no lane
        # blocks here with enqueued operations.
        if finish():
            return True
        with self._changed:
            while number >= len(ops) and not self._closed and not self._may_draw():
                self._changed.wait()
            if number < len(ops) or self._closed:
                return number < len(ops)
            self._drawing = True
        self._draw()
        return True

    def _may_draw(self) -> bool:
        return not self._drawing and len(self._units) - self._multiplied < AHEAD

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
        self._loads += batch.loads
        self._steps += batch.steps
        self._units.append(batch.unit)
        self._builder.append(batch.unit)

    def finished(self, op: Op) -> None:
        """Count multiplied units, so that the next can be drawn."""
        if op.stage == "mult1" and op.step == self._units[op.unit].last:
            with self._changed:
                self._multiplied += 1
                self._changed.notify_all()

    def stop(self) -> None:
        """End all lanes; draw no more."""
        self._feed.stop()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
