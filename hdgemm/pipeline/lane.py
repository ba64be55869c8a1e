"""A lane: the thread that executes one stage's operations in order."""

from __future__ import annotations

import time
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hdgemm.pipeline.devices.protocol import DONE
from hdgemm.pipeline.timeline import Event, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.pipeline.devices.protocol import After, Completion
    from hdgemm.pipeline.dynamic_schedule import OperationSource
    from hdgemm.pipeline.plan import Stage
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.sync import Progress
    from hdgemm.pipeline.timeline import Observer

#: The most unfinished operations that a lane leaves enqueued on a device: one that is executed and
#: two that wait, so that the device does not wait for the host.
DEPTH: Final = 3


class EventLog:
    """Events of a run, on one time axis that starts with the run.

    Parameters
    ----------
    start
        Zero of the time axis on `time.perf_counter`; None: now.
    """

    def __init__(self, device: str, observer: Observer | None, start: float | None = None) -> None:
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
        self._events.append(event)  # atomic: all lanes share the list
        if self._observer is not None:
            self._observer(event)

    def timeline(self) -> Timeline:
        """Return all events so far, and the seconds since the run began."""
        seconds = time.perf_counter() - self._start
        return Timeline(tuple(sorted(self._events, key=attrgetter("start"))), seconds)


class Lane:
    """Executes one stage.

    Parameters
    ----------
    function
        Executes or enqueues one operation, after the given completions.
    stop
        Ends all lanes because of an error.
    """

    def __init__(
        self,
        stage: Stage,
        source: OperationSource,
        function: Callable[[Op, After], Completion],
        progress: Progress,
        log: EventLog,
        stop: Callable[[BaseException], None],
    ) -> None:
        self.stage = stage
        self._source = source
        self._function = function
        self._progress = progress
        self._log = log
        self._stop = stop
        self._enqueued: deque[tuple[Op, Completion, float]] = deque()
        # The host reads and writes memory that the device uses: it waits for the device first.
        self._on_host = stage in ("load1", "store2")

    def run(self) -> None:
        """Execute all operations; an error stops all lanes."""
        try:
            for op in self._source.ops(self.stage, self._finish):
                self._execute(op)
            while self._finish():
                pass
        except BaseException as error:  # noqa: BLE001  (raised by the executor)
            self._stop(error)

    def _execute(self, op: Op) -> None:
        after = self._progress.wait(op.needs)
        if self._on_host:
            for completion in after:
                completion.wait()
            if self.stage == "store2":
                self._progress.confirm(op.step)
            self._progress.check()
        start = time.perf_counter()
        completion = self._function(op, after)
        if completion is DONE:
            self._log.record(op, start, time.perf_counter())
            self._progress.issue(op, None)
            self._source.finished(op)
            return
        self._progress.issue(op, completion)
        self._enqueued.append((op, completion, start))
        if len(self._enqueued) > DEPTH:
            self._finish()

    def _finish(self) -> bool:
        """Wait for the oldest enqueued operation and record it; False if there is none."""
        if not self._enqueued:
            return False
        op, completion, start = self._enqueued.popleft()
        completion.wait()
        start, end = completion.interval() or (start, time.perf_counter())
        self._log.record(op, start, end)
        self._progress.retire(op)
        self._source.finished(op)
        return True
