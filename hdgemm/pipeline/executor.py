"""Executes a plan: one lane per stage, each in its own thread, until the end or the first error."""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from hdgemm.errors import CancelledRunError, InputError
from hdgemm.matrices.transfer import Transfer
from hdgemm.pipeline._stages import Bound, Stages
from hdgemm.pipeline.abft.device import DeviceCheckedStages
from hdgemm.pipeline.abft.host import HostCheckedStages
from hdgemm.pipeline.devices.protocol import DONE
from hdgemm.pipeline.dynamic_schedule import DynamicSchedule, FixedSchedule
from hdgemm.pipeline.slots import SlotMemory
from hdgemm.pipeline.sync import StageCounters
from hdgemm.pipeline.timeline import Event, EventBuffer
from hdgemm.pipeline.validate import validate
from hdgemm.threads import Worker, run_all

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from hdgemm.pipeline.abft import TileChecks
    from hdgemm.pipeline.devices.protocol import After, Completion, Device
    from hdgemm.pipeline.dynamic_schedule import Feed, OperationSource
    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.slot_cache import SlotCache
    from hdgemm.pipeline.slots import Operands
    from hdgemm.pipeline.timeline import Observer, Timeline

#: The most unfinished operations that a lane leaves enqueued on a device: one that is executed and
#: two that wait, so that the device does not wait for the host.
DEPTH: Final = 3
#: The same of a lane that copies on the host: while the threads of one copy end, others begin the
#: next one.
_HOST_DEPTH: Final = 1


class EventLog:
    """Events of a run, on one time axis: `start` is its zero on `time.perf_counter`."""

    def __init__(self, device: str, observer: Observer | None, start: float) -> None:
        self._device = device
        self._observer = observer
        self._events = EventBuffer()
        self._start = start

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
        self._events.append(event)
        if self._observer is not None:
            self._observer(event)

    def timeline(self) -> Timeline:
        """Return all events so far, and the seconds since the run began."""
        return self._events.timeline(time.perf_counter() - self._start)


class Lane:
    """Executes one stage's operations in order.

    `function` executes or enqueues one operation, after the given completions; `stop` ends all
    lanes because of an error.
    """

    def __init__(
        self,
        stage: Stage,
        source: OperationSource,
        function: Callable[[Op, After], Completion],
        progress: StageCounters,
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
        self._depth = _HOST_DEPTH if self._on_host else DEPTH
        self._end = 0.0

    def run(self) -> None:
        """Execute all operations; an error stops all lanes."""
        try:
            for op in self._source.ops(self.stage, self._finish):
                self._execute(op)
            while self._enqueued:
                self._finish()
        except BaseException as error:  # noqa: BLE001  (raised by the executor)
            self._stop(error)
            # Copies use the slots, which are freed when all lanes have ended.
            for _, completion, _ in self._enqueued:
                if isinstance(completion, Transfer):
                    with suppress(BaseException):
                        completion.wait()

    def _execute(self, op: Op) -> None:
        after = []
        for needed in self._progress.wait(op.needs):
            if self._on_host or isinstance(needed, Transfer):
                needed.wait()
            else:
                after.append(needed)
        if self._on_host:
            if self.stage == "store2":
                self._progress.confirm(op.step)
            self._progress.check()
        start = time.perf_counter()
        completion = self._function(op, after)
        if completion is DONE:
            while self._enqueued:  # operations of a lane end in their order
                self._finish()
            self._log.record(op, start, time.perf_counter())
            self._progress.issue(op, None)
            self._source.finished(op)
            return
        if isinstance(completion, Transfer) and self._enqueued:
            previous = self._enqueued[-1][1]
            completion.previous = previous if isinstance(previous, Transfer) else None
        self._progress.issue(op, completion)
        self._enqueued.append((op, completion, start))
        if len(self._enqueued) > self._depth:
            self._finish()

    def _finish(self) -> bool:
        """Wait for the oldest enqueued operation and record it; False if there is none."""
        if not self._enqueued:
            return False
        op, completion, start = self._enqueued.popleft()
        completion.wait()
        start, end = completion.interval() or (start, time.perf_counter())
        if self._on_host:  # two copies at once are shown one after the other
            start, self._end = max(start, self._end), end
        self._log.record(op, start, end)
        self._progress.retire(op)
        self._source.finished(op)
        return True


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

    The plan is validated and all its memory is allocated before the first operation. The timeline
    has one event per operation; in a long run, one for several (`EventBuffer`).

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
    progress = StageCounters()

    def stop(error: BaseException) -> None:
        progress.stop(error)
        source.stop()

    with ExitStack() as stack:
        memory = stack.enter_context(SlotMemory(plan, device, operands, cache))
        bound = Bound(plan, source.ledger, device, memory, operands)
        stages = stack.enter_context(_open_stages(bound, checks))
        log = EventLog(plan.device.name, observer, time.perf_counter() if start is None else start)
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


@contextmanager
def _open_stages(bound: Bound, checks: TileChecks | None) -> Iterator[Stages]:
    """Yield the stages of one run, with checksums where `checks` asks for them; the memory of the
    checks is freed at the end.

    Raises `InputError` where an operand lies on the device: the host cannot read it for the checks.
    """
    if checks is None:
        yield Stages(bound)
        return
    plan = bound.plan
    specs = {"A": plan.problem.a, "B": plan.problem.b, "C": plan.problem.c}
    there = [name for name, spec in specs.items() if spec.path == "resident"]
    if there and not plan.device.unified:
        raise InputError(
            f"verify='tiles' sums the matrices on the host, and {', '.join(there)} lies on "
            f"{plan.device.name}: bring it to the host, or check the product with verify=True"
        )
    kind = HostCheckedStages if plan.device.unified else DeviceCheckedStages
    with closing(kind(bound, checks)) as stages:
        yield stages
