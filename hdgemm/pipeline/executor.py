"""Runs a plan: one lane per stage, each in its own thread, until the end or the first error."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from hdgemm.errors import CancelledRunError
from hdgemm.pipeline.sync import Board
from hdgemm.pipeline.abft.stages import open_stages
from hdgemm.pipeline.dynamic_schedule import GrowingSchedule
from hdgemm.pipeline.lane import Clock, Lane
from hdgemm.pipeline.schedule import build_schedule
from hdgemm.pipeline.slots import SlotMemory
from hdgemm.pipeline.stages import Bound
from hdgemm.pipeline.validate import validate
from hdgemm.pipeline.worker import Worker, run_all

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from hdgemm.pipeline.abft import Tally
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.dynamic_schedule import Feed
    from hdgemm.pipeline.lane import Source
    from hdgemm.pipeline.ledger import Ledger
    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.slot_cache import SlotCache
    from hdgemm.pipeline.slots import Operands
    from hdgemm.pipeline.timeline import Observer, Timeline


def run_plan(
    plan: Plan,
    device: Device,
    operands: Operands,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    tally: Tally | None = None,
    cache: SlotCache | None = None,
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
    tally
        Check each C tile by its sums, and count here what was found; None checks nothing.
    cache
        Slots of earlier runs on the device; None allocates and frees all memory.

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
    source = _Fixed(plan)
    return _execute(
        plan, source, device, operands, (alpha, beta),
        observer=observer, cancel=cancel, tally=tally, cache=cache,
    )  # fmt: skip


def run_feed(
    plan: Plan,
    feed: Feed,
    device: Device,
    operands: Operands,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    start: float | None = None,
    tally: Tally | None = None,
    cache: SlotCache | None = None,
) -> Timeline:
    """Execute units as `feed` gives them, in the memory of `plan`; otherwise as `run_plan`.

    Parameters
    ----------
    plan
        What the slots, rings and paths are taken from; every batch must fit them.
    start
        Where the timeline's zero lies on `time.perf_counter`, for runs that share one; None: now.
    """
    source = GrowingSchedule(plan, feed)
    return _execute(
        plan, source, device, operands, (alpha, beta),
        observer=observer, cancel=cancel, start=start, tally=tally, cache=cache,
    )  # fmt: skip


class _Fixed:
    """A plan's own operations, all known beforehand."""

    def __init__(self, plan: Plan) -> None:
        self.ledger: Ledger = plan
        self._schedule = build_schedule(plan)
        self.stages: list[Stage] = [stage for stage, ops in self._schedule.items() if ops]

    def ops(self, stage: Stage, _idle: Callable[[], bool]) -> Iterable[Op]:
        return self._schedule[stage]

    def finished(self, _op: Op, /) -> None:
        return

    def stop(self) -> None:
        return


def _execute(
    plan: Plan,
    source: Source,
    device: Device,
    operands: Operands,
    factors: tuple[complex, complex],
    *,
    observer: Observer | None,
    cancel: threading.Event | None,
    tally: Tally | None,
    cache: SlotCache | None,
    start: float | None = None,
) -> Timeline:
    board = Board()
    with ExitStack() as stack:
        memory = stack.enter_context(SlotMemory(plan, device, operands, cache))
        bound = Bound(plan, source.ledger, device, memory, operands, *factors)
        stages = stack.enter_context(open_stages(bound, tally))
        clock = Clock(plan.device.name, observer, start)
        lanes = [
            Lane(stage, source, stages.function(stage), board, clock) for stage in source.stages
        ]
        try:
            _run(lanes, board, cancel)
        finally:
            source.stop()
        if board.error is not None:
            raise board.error
    return clock.timeline()


def _run(lanes: list[Lane], board: Board, cancel: threading.Event | None) -> None:
    if len(lanes) == 1 and cancel is None:  # nothing to overlap: a direct product needs no thread
        lanes[0].run()
        return
    stop = partial(_stop, lanes, board)

    def look() -> None:
        if cancel is not None and cancel.is_set():
            stop(_cancelled())

    workers = [Worker(lane.run, f"hdgemm-{lane.stage}") for lane in lanes]
    run_all(workers, look=look, interval=0.05 if cancel is not None else 1.0, stop=stop)


def _stop(lanes: list[Lane], board: Board, error: BaseException) -> None:
    board.stop(error)
    for lane in lanes:
        lane.source.stop()


def _cancelled() -> CancelledRunError:
    return CancelledRunError("the run was cancelled; C is not finished")
