"""Runs a plan: one lane per stage, each in its own thread, until the end or the first error."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from hdgemm.pipeline.board import Board, Stopped
from hdgemm.pipeline.devices.protocol import DONE
from hdgemm.pipeline.schedule import build_schedule
from hdgemm.pipeline.slots import SlotMemory
from hdgemm.pipeline.stages import Stages
from hdgemm.pipeline.timeline import Event, Timeline
from hdgemm.pipeline.validate import validate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hdgemm.pipeline.devices.protocol import Completion, Device
    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.slots import Operands
    from hdgemm.pipeline.timeline import Observer

#: Operations that one lane may have enqueued on a device and not yet seen finished: enough that
#: the device never waits for the host, few enough that cancelling is quick.
DEPTH = 3


def run_plan(
    plan: Plan,
    device: Device,
    operands: Operands,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
) -> Timeline:
    """Execute a plan: C := alpha·op(A)·op(B) + beta·C.

    The plan is validated and all its memory taken before the first operation.

    Parameters
    ----------
    operands
        The stored matrices, in the plan's orientation.
    observer
        Called with each event from the lanes' threads. An exception it raises stops the run.
    cancel
        Set it from anywhere to stop after at most one operation per lane.

    Returns
    -------
    Timeline
        Every operation, with its bytes as the stages counted them.

    Raises
    ------
    HdgemmError
        The first error of any lane, once; everything is freed, and C is not finished.
    CancelledRunError
        When `cancel` was set.
    """
    validate(plan)
    schedule = build_schedule(plan)
    board = Board()
    with SlotMemory(plan, device, operands) as memory:
        stages = Stages(plan, device, memory, operands, alpha, beta)
        clock = _Clock(plan.device.name, observer)
        lanes = [
            _Lane(ops, stages.function(stage), board, clock)
            for stage, ops in schedule.items()
            if ops
        ]
        _run(lanes, board, cancel)
        if board.error is not None:
            raise board.error
    return clock.timeline()


def _run(lanes: list[_Lane], board: Board, cancel: threading.Event | None) -> None:
    if len(lanes) == 1 and cancel is None:  # nothing to overlap: a direct product needs no thread
        lanes[0].run()
        return
    threads = [
        threading.Thread(target=lane.run, name=f"hdgemm-{lane.stage}", daemon=True)
        for lane in lanes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join(timeout=0.05 if cancel is not None else 1.0)
                if cancel is not None and cancel.is_set():
                    board.cancel()
            except BaseException as error:  # noqa: BLE001  (Ctrl-C: stop the lanes, then raise it)
                board.stop(error)


class _Clock:
    """Collects events on one time axis that starts with the run."""

    def __init__(self, device: str, observer: Observer | None) -> None:
        self._device = device
        self._observer = observer
        self._events: list[Event] = []
        self._start = time.perf_counter()

    def record(self, op: Op, start: float, end: float) -> None:
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
        seconds = time.perf_counter() - self._start
        return Timeline(tuple(sorted(self._events, key=lambda event: event.start)), seconds)


class _Lane:
    """One stage's operations, in order."""

    def __init__(
        self,
        ops: list[Op],
        function: Callable[[Op, Sequence[Completion]], Completion],
        board: Board,
        clock: _Clock,
    ) -> None:
        self.stage: Stage = ops[0].stage
        self._ops = ops
        self._function = function
        self._board = board
        self._clock = clock
        self._enqueued: deque[tuple[Op, Completion, float]] = deque()
        # Host stages touch memory that the device reads or writes, so they must see it finished.
        self._on_host = self.stage in ("load1", "store2")

    def run(self) -> None:
        try:
            for op in self._ops:
                self._do(op)
            while self._enqueued:
                self._finish()
        except BaseException as error:  # noqa: BLE001  (a lane may not die silently)
            self._board.stop(error)

    def _do(self, op: Op) -> None:
        after = self._board.wait(op.needs)
        if self._on_host:
            for completion in after:
                completion.wait()
            self._board.wait(())
            after = []
        start = time.perf_counter()
        completion = self._function(op, after)
        if completion is DONE:
            self._clock.record(op, start, time.perf_counter())
            self._board.issue(op.stage, op.number, None)
            return
        self._board.issue(op.stage, op.number, completion)
        self._enqueued.append((op, completion, start))
        if len(self._enqueued) > DEPTH:
            self._finish()

    def _finish(self) -> None:
        op, completion, start = self._enqueued.popleft()
        completion.wait()
        interval = completion.interval() or (start, time.perf_counter())
        self._clock.record(op, *interval)
        self._board.retire(op.stage, op.number)


__all__ = ["DEPTH", "Stopped", "run_plan"]
