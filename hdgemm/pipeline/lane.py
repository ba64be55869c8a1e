"""A lane: one stage's operations in order, each when its needs are met."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from hdgemm.pipeline.devices.protocol import DONE
from hdgemm.pipeline.timeline import Event, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hdgemm.pipeline.sync import Board
    from hdgemm.pipeline.devices.protocol import Completion
    from hdgemm.pipeline.ledger import Ledger
    from hdgemm.pipeline.plan import Stage
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.timeline import Observer

#: Operations that one lane may have enqueued on a device and not yet seen finished: enough that
#: the device never waits for the host, few enough that cancelling is quick.
DEPTH = 3


class Source(Protocol):
    """Where the lanes get their operations from."""

    @property
    def ledger(self) -> Ledger:
        """Loads, units and steps that operations refer to by number."""

    @property
    def stages(self) -> list[Stage]:
        """Stages that may have something to do."""

    def ops(self, stage: Stage, idle: Callable[[], bool]) -> Iterable[Op]:
        """Return one stage's operations, in order.

        Before it waits for more to become known, a source calls `idle` until that is False: what
        the lane has enqueued and not seen finished may be what everybody waits for.
        """

    def finished(self, op: Op, /) -> None:
        """Take note of a finished operation; called from the lanes."""

    def stop(self) -> None:
        """End all iterations: the run has failed or was cancelled."""


class Clock:
    """Collects events on one time axis that starts with the run."""

    def __init__(
        self, device: str, observer: Observer | None, start: float | None = None
    ) -> None:
        self._device = device
        self._observer = observer
        self._events: list[Event] = []
        self._start = time.perf_counter() if start is None else start

    def record(self, op: Op, start: float, end: float) -> None:
        """Add an operation that ran from `start` to `end`, and tell the observer."""
        event = Event(
            self._device,
            op.stage,
            op.number,
            op.unit,
            op.step,
            start - self._start,
            end - self._start,
            op.nbytes,
            op.flops,
        )
        self._events.append(event)  # appending to a list is atomic
        if self._observer is not None:
            self._observer(event)

    def timeline(self) -> Timeline:
        """Return all events so far, and the time since the run began."""
        seconds = time.perf_counter() - self._start
        return Timeline(tuple(sorted(self._events, key=lambda event: event.start)), seconds)


class Lane:
    """One stage's operations, in order."""

    def __init__(
        self,
        stage: Stage,
        source: Source,
        function: Callable[[Op, Sequence[Completion]], Completion],
        board: Board,
        clock: Clock,
    ) -> None:
        self.stage = stage
        self.source = source
        self._function = function
        self._board = board
        self._clock = clock
        self._enqueued: deque[tuple[Op, Completion, float]] = deque()
        # Host stages touch memory that the device reads or writes, so they must see it finished.
        self._on_host = self.stage in ("load1", "store2")

    def run(self) -> None:
        """Work through the stage; an error stops the board and the source."""
        try:
            for op in self.source.ops(self.stage, self._settle):
                self._do(op)
            while self._settle():
                pass
        except BaseException as error:  # noqa: BLE001  (a lane may not die silently)
            self._board.stop(error)
            self.source.stop()

    def _do(self, op: Op) -> None:
        after = self._board.wait(op.needs)
        if self._on_host:
            for completion in after:
                completion.wait()
            if self.stage == "store2":
                self._board.confirm(op.step)
            self._board.wait(())
            after = []
        start = time.perf_counter()
        completion = self._function(op, after)
        if completion is DONE:
            self._clock.record(op, start, time.perf_counter())
            self._board.issue(op, None)
            self.source.finished(op)
            return
        self._board.issue(op, completion)
        self._enqueued.append((op, completion, start))
        if len(self._enqueued) > DEPTH:
            self._finish()

    def _settle(self) -> bool:
        """See one enqueued operation finished; say whether there was one."""
        if not self._enqueued:
            return False
        self._finish()
        return True

    def _finish(self) -> None:
        op, completion, start = self._enqueued.popleft()
        completion.wait()
        interval = completion.interval() or (start, time.perf_counter())
        self._clock.record(op, *interval)
        self._board.retire(op.stage, op.number)
        self.source.finished(op)
