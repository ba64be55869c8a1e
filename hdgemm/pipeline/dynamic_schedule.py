"""Where lanes take operations from: the steps of a plan, or units drawn during the run.

Several devices that share a product, and runs that react to measurements, draw their work units
one by one. Operations are scheduled when a lane needs them and forgotten when they are done, so
that a run of any length takes little memory.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from hdgemm.pipeline.plan import STAGES
from hdgemm.pipeline.schedule import ScheduleBuilder, stages_of
from hdgemm.threads import notify_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.slot_reuse import Batch, PlannedStep

#: Units drawn and not yet multiplied: one that multiplies, and one whose tiles are loaded.
AHEAD: Final = 2
#: Steps scheduled and not yet multiplied at most, unless the multiplying lane needs more.
_MOST_AHEAD: Final = 1024
#: Steps that are scheduled at once.
_TOGETHER: Final = 16


class Feed(Protocol):
    """Gives work units to a dynamic schedule; called by one thread at a time."""

    def draw(self) -> Batch | None:
        """Return the next unit, None after the last; can block until there is one."""

    def stop(self) -> None:
        """Make a blocked `draw` return None: the run has ended."""


class OperationSource(ABC):
    """The operations of all stages, for the lanes; scheduled during the run."""

    #: Stages that can have operations.
    stages: Sequence[Stage]

    def __init__(self, plan: Plan) -> None:
        self._builder = ScheduleBuilder(plan)
        self.ledger = self._builder.ledger
        self._changed = threading.Condition()
        self._closed = False
        self.stages = stages_of(plan)
        self._memory = _Forgotten(self._builder, self.stages[-1])

    def ops(self, stage: Stage, finish: Callable[[], bool]) -> Iterator[Op]:
        """Yield one stage's operations, in order.

        `finish` makes the lane wait for its oldest enqueued operation; False if there is none.
        """
        ops = self._builder.waiting[stage]
        while True:
            while ops:  # only this lane takes from its deque, whose changes are atomic: no lock
                yield ops.popleft()
            if not self._extend(stage, ops, finish):
                return

    @abstractmethod
    def _extend(self, stage: Stage, ops: deque[Op], finish: Callable[[], bool]) -> bool:
        """Schedule more when a lane has no operation left; False at the end."""

    def finished(self, op: Op) -> None:
        """Forget what no operation refers to any more; called by the lanes."""
        self._memory.finished(op)

    def stop(self) -> None:
        """End all iterations: the run has failed, was cancelled or is done."""
        self._closed = True
        notify_all(self._changed)


class _Forgotten:
    """Removes units, steps and loads from a ledger behind the last operation that refers to them.

    Operations of a stage end in their order, and the last stage ends a unit: when a unit is
    finished, so are all before it. A step's loads may be overwritten once it is multiplied.
    """

    def __init__(self, builder: ScheduleBuilder, last: Stage) -> None:
        self._ledger = builder.ledger
        self._last = last
        #: Loads that are overwritten, each with the step behind its last reader.
        self._gone: deque[tuple[int, int]] = deque()
        self._units = self._steps = 0

    def overwritten(self, planned: PlannedStep) -> None:
        """Take note of the loads whose slots a step takes."""
        for load in planned.gone:
            self._gone.append((load, planned.step.number))

    def finished(self, op: Op) -> None:
        """Remove what precedes a finished operation."""
        ledger = self._ledger
        if op.stage == "mult1":
            for number in range(self._steps, op.step):
                del ledger.steps[number]
            self._steps = op.step
            while self._gone and self._gone[0][1] <= op.step:
                del ledger.loads[self._gone.popleft()[0]]
        if op.stage == self._last:
            for number in range(self._units, op.unit):
                del ledger.units[number]
            self._units = op.unit


class FixedSchedule(OperationSource):
    """The operations of a plan.

    They are scheduled when a lane needs them, so that a run starts without delay. A lane that has
    nothing to do waits where many steps are scheduled already.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._planned = plan.course.planned()
        self._multiplied = self._waiting = 0

    def _extend(self, stage: Stage, ops: deque[Op], finish: Callable[[], bool]) -> bool:
        if stage != "mult1" and self._ahead() >= _MOST_AHEAD and finish():
            return True  # a lane reports its operations itself: it does not block with any enqueued
        with self._changed:
            while stage != "mult1" and self._ahead() >= _MOST_AHEAD:
                if ops or self._closed:
                    return not self._closed
                self._waiting += 1
                self._changed.wait()
                self._waiting -= 1
            return bool(ops) or self._schedule()

    def _ahead(self) -> int:
        return self._builder.counts["mult1"] - self._multiplied

    def _schedule(self) -> bool:
        found = False
        for planned in islice(self._planned, _TOGETHER):
            self._builder.append(planned)
            self._memory.overwritten(planned)
            found = True
        return found

    def finished(self, op: Op) -> None:
        """Forget what is done; wake lanes that wait for steps to be multiplied."""
        self._memory.finished(op)
        if op.stage == "mult1":
            self._multiplied = op.number + 1
            if self._waiting:
                with self._changed:
                    self._changed.notify_all()


class DynamicSchedule(OperationSource):
    """Operations of the work units that a feed gives during the run, in the memory of a plan."""

    def __init__(self, plan: Plan, feed: Feed) -> None:
        super().__init__(plan)
        self.stages = STAGES  # lanes of stages without operations end with the others
        self._feed = feed
        #: The last step of each unit that is drawn and not yet multiplied.
        self._lasts: deque[int] = deque()
        self._drawing = False

    def _extend(self, stage: Stage, ops: deque[Op], finish: Callable[[], bool]) -> bool:  # noqa: ARG002
        # A lane reports its operations itself, and `draw` can block until all is stored: no lane
        # blocks here with enqueued operations.
        if finish():
            return True
        with self._changed:
            while not ops and not self._closed and not self._may_draw():
                self._changed.wait()
            if ops or self._closed:
                return bool(ops)
            self._drawing = True
        self._draw()
        return True

    def _may_draw(self) -> bool:
        return not self._drawing and len(self._lasts) < AHEAD

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
        self._lasts.append(batch.unit.last)
        for planned in batch.planned:
            self._builder.append(planned)
            self._memory.overwritten(planned)

    def finished(self, op: Op) -> None:
        """Count multiplied units, so that the next can be drawn."""
        super().finished(op)
        if op.stage == "mult1" and op.step == self._lasts[0]:
            with self._changed:
                self._lasts.popleft()
                self._changed.notify_all()

    def stop(self) -> None:
        """End all lanes; draw no more."""
        self._feed.stop()
        super().stop()
