"""Executes a plan: one lane per stage, each in its own thread, until the end or the first error."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from hdgemm.errors import CancelledRunError
from hdgemm.pipeline.abft.stages import open_stages
from hdgemm.pipeline.dynamic_schedule import DynamicSchedule, FixedSchedule
from hdgemm.pipeline.lane import EventLog, Lane
from hdgemm.pipeline.slots import SlotMemory
from hdgemm.pipeline.stages import Bound
from hdgemm.pipeline.sync import Progress, Worker, run_all
from hdgemm.pipeline.validate import validate

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from hdgemm.pipeline.abft import TileChecks
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.dynamic_schedule import Feed, OperationSource
    from hdgemm.pipeline.plan import Plan
    from hdgemm.pipeline.slot_cache import SlotCache
    from hdgemm.pipeline.slots import Operands
    from hdgemm.pipeline.timeline import Observer, Timeline


def run_plan(
    plan: Plan,
    device: Device,
    operands: Operands,
    *,
    feed: Feed | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    start: float | None = None,
    checks: TileChecks | None = None,
    cache: SlotCache | None = None,
) -> Timeline:
    """Execute a plan: C := alpha·op(A)·op(B) + beta·C.

    The plan is validated and all its memory is allocated before the first operation.

    Parameters
    ----------
    operands
        The stored matrices, in the plan's orientation.
    feed
        Gives the units to execute in the memory of `plan`, which every batch must fit; None: the
        plan's own units.
    observer
        Called with each event, from the lanes' threads. An exception that it raises stops the run.
    cancel
        An event that any thread can set: each lane stops after at most one operation.
    start
        Zero of the timeline on `time.perf_counter`, for runs that share one; None: now.
    checks
        Counts the results of the ABFT check of each C tile; None: no checks.
    cache
        Slots of earlier runs on the device; None: all memory is allocated and freed.

    Returns
    -------
    Timeline
        One event per operation.

    Raises
    ------
    HdgemmError
        The first error of any lane, once. All memory is freed, and C is not complete.
    CancelledRunError
        When `cancel` was set.
    """
    source: OperationSource
    if feed is None:
        validate(plan)
        source = FixedSchedule(plan)
    else:
        source = DynamicSchedule(plan, feed)
    progress = Progress()

    def stop(error: BaseException) -> None:
        progress.stop(error)
        source.stop()

    with ExitStack() as stack:
        memory = stack.enter_context(SlotMemory(plan, device, operands, cache))
        bound = Bound(plan, source.ledger, device, memory, operands)
        stages = stack.enter_context(open_stages(bound, checks))
        log = EventLog(plan.device.name, observer, start)
        lanes = [
            Lane(stage, source, getattr(stages, stage), progress, log, stop)
            for stage in source.stages
        ]
        try:
            _run(lanes, cancel, stop)
        finally:
            source.stop()
        progress.raise_error()
    return log.timeline()


def _run(
    lanes: list[Lane], cancel: threading.Event | None, stop: Callable[[BaseException], None]
) -> None:
    if len(lanes) == 1 and cancel is None:  # nothing overlaps: no thread is needed
        lanes[0].run()
        return

    def look() -> None:
        if cancel is not None and cancel.is_set():
            stop(CancelledRunError("the run was cancelled; C is not finished"))

    workers = [Worker(lane.run, f"hdgemm-{lane.stage}") for lane in lanes]
    run_all(workers, look=look, interval=0.05 if cancel is not None else 1.0, stop=stop)
