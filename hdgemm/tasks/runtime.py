"""Runtime: executes inserted tasks on the host and on devices, one thread for each lane."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from hdgemm.errors import CancelledRunError, DeviceError
from hdgemm.pipeline.devices.host_blas import blas_threads
from hdgemm.pipeline.sync import Stopped
from hdgemm.pipeline.timeline import Event, EventBuffer
from hdgemm.tasks._dispatcher import Dispatcher
from hdgemm.tasks._transfers import Transfers
from hdgemm.tasks.capability import HOST
from hdgemm.tasks.tiles import TileWorkspace
from hdgemm.threads import RUNNING, Worker, finish, wait_for_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from hdgemm.pipeline.devices.protocol import Completion, FactorDevice
    from hdgemm.pipeline.plan import Stage
    from hdgemm.pipeline.timeline import Observer, Timeline
    from hdgemm.tasks._dispatcher import Issued
    from hdgemm.tasks._transfers import Transfer
    from hdgemm.tasks.capability import Capability
    from hdgemm.tasks.task import Access, Kernel

#: Seconds between two looks for a cancelled run.
_LOOK: Final = 0.05
#: Tasks that a device has enqueued beside the one that it runs.
AHEAD: Final = 1


class LaneTask(NamedTuple):
    """A task to run, the moves that its lane must enqueue, and those that bring its tiles."""

    issued: Issued
    planned: list[Transfer]
    arriving: list[Transfer]


class Runtime:
    """Runs inserted tasks; a context whose threads end with it.

    The caller's thread inserts, and waits while `window` tasks are unfinished. Each lane of the
    host runs one task at a time. Each device has a thread that enqueues its tasks, and one that
    copies tiles to the host as soon as tasks there wait for them. The first error of any lane stops
    all of them, and is raised by `insert` or `finish`. After `cancel` was set, each lane ends at
    most one more task.

    The lanes call `observer` with each event. Each BLAS call on the host has `blas_threads`.
    `priorities` go to `Dispatcher`.
    """

    def __init__(
        self,
        capabilities: Sequence[Capability],
        devices: Mapping[str, FactorDevice] | None = None,
        *,
        window: int = 1024,
        priorities: bool = True,
        blas_threads: int = 1,
        observer: Observer | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        self._devices = dict(devices or {})
        self._dispatcher = Dispatcher(capabilities, priorities=priorities)
        self._window, self._blas_threads = window, blas_threads
        self._observer, self._cancel = observer, cancel
        lock = threading.Lock()
        self._lock = lock
        self._room = threading.Condition(lock)
        self._work = {each.name: threading.Condition(lock) for each in capabilities}
        self._error: BaseException | None = None
        self._ended = False
        self._events = EventBuffer()
        self._copies = itertools.count()
        # Amount (flops, or bytes of kernels without flops) and seconds by device and kind.
        self._totals: dict[tuple[str, str], tuple[float, float]] = {}
        self._start = time.perf_counter()
        self._transfers = Transfers(
            self._devices, lambda: self._error is not None, self._record_copy
        )
        self._lanes = [
            _DeviceLane(name, device, self, self._transfers)
            for name, device in self._devices.items()
        ]
        self._fetches: dict[str, deque[Transfer]] = {name: deque() for name in self._devices}
        self._fetching = {name: threading.Condition(lock) for name in self._devices}
        hosts = [each.lanes for each in capabilities if each.name == HOST]
        targets: list[Callable[[], None]] = [lane.run for lane in self._lanes]
        targets += [lambda: _run_on_host(self, self._transfers)] * sum(hosts)
        targets += [partial(self._fetch, name) for name in self._devices if hosts]
        self._workers = [
            Worker(lambda run=target: self._run(run), f"hdgemm-task-{number}")  # type: ignore[misc]
            for number, target in enumerate(targets)
        ]

    def __enter__(self) -> Self:
        self._limits = blas_threads(self._blas_threads)
        self._start = time.perf_counter()
        RUNNING.add(self._stop)
        try:
            for worker in self._workers:
                worker.start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if not self._ended:
            self._stop(error or CancelledRunError("the run was left before it was finished"))
        with ExitStack() as stack:
            stack.callback(self._limits.restore_original_limits)
            stack.callback(RUNNING.discard, self._stop)
            stack.callback(self._free)
            finish(partial(wait_for_workers, self._workers))

    def _free(self) -> None:
        for device in self._devices.values():
            with suppress(DeviceError):  # the first error is raised already
                device.synchronize()
        self._transfers.free()
        for lane in self._lanes:
            lane.close()

    def insert(self, kernel: Kernel, **access: Unpack[Access]) -> None:
        """Insert one task; wait while the window is full."""
        with self._lock:
            self._wait_below(self._window)
            device = self._dispatcher.insert(kernel, **access)
            self._start_fetches()
            if device is not None:
                self._work[device].notify()

    def finish(self) -> Timeline:
        """Wait for all tasks, bring all tiles to the host, and return the timeline."""
        with self._lock:
            self._wait_below(1)
            moves = self._transfers.plan(self._dispatcher.residency.write_back())
        for transfer in moves:
            self._transfers.enqueue(transfer)
        with self._lock:
            self._ended = True
            for condition in (*self._work.values(), *self._fetching.values()):
                condition.notify_all()
        return self._events.timeline(time.perf_counter() - self._start)

    def next(
        self, device: str, finished: Issued | None, *, issued: bool = False
    ) -> LaneTask | None:
        """Note a finished task; return the next task of a lane, or None at the end.

        With tasks `issued` that are not finished, it returns None instead of waiting.
        """
        with self._lock:
            if finished is not None:
                names = self._dispatcher.finish(finished)
                self._start_fetches()
                for name in names:
                    self._work[name].notify()
                self._room.notify()
            while True:
                if self._error is not None:
                    raise Stopped
                taken = self._dispatcher.take(device, issued=issued)
                if taken is not None:
                    planned = self._transfers.plan(taken.moves)
                    return LaneTask(taken, planned, self._transfers.arriving(taken.task, device))
                if issued or self._ended:
                    return None
                self._work[device].wait()

    def _start_fetches(self) -> None:
        """Give the copies to the host that waiting tasks need to the threads of their devices."""
        moves = self._dispatcher.fetches
        for move, transfer in zip(moves, self._transfers.plan(moves), strict=True):
            assert move.source is not None  # noqa: S101  (copies to the host come from a device)
            self._fetches[move.source].append(transfer)
            self._fetching[move.source].notify()
        moves.clear()

    def _fetch(self, device: str) -> None:
        """Copy tiles from a device to the host, beside the tasks of both, until the end."""
        fetches = self._fetches[device]
        while True:
            with self._lock:
                while not fetches and self._error is None and not self._ended:
                    self._fetching[device].wait()
                if self._error is not None or not fetches:
                    return
                transfer = fetches.popleft()
            self._transfers.enqueue(transfer)

    def record(self, issued: Issued, start: float, end: float) -> None:
        """Note when a task ran, and tell the observer."""
        task, device, _ = issued
        kernel = task.kernel
        with self._lock:
            amount, seconds = self._totals.get((device, kernel.kind), (0.0, 0.0))
            amount, seconds = amount + (kernel.flops or kernel.nbytes), seconds + end - start
            self._totals[device, kernel.kind] = amount, seconds
        self._note(
            Event(
                device,
                "mult1",
                task.number,
                kernel.unit,
                kernel.step,
                start - self._start,
                end - self._start,
                kernel.nbytes,
                kernel.flops,
            )
        )

    def rates(self) -> dict[str, dict[str, float]]:
        """Return flop/s (bytes/s of kernels without flops) by device and kind of task."""
        found: dict[str, dict[str, float]] = {}
        for (device, kind), (amount, seconds) in self._totals.items():
            if amount and seconds > 0:
                found.setdefault(device, {})[kind] = amount / seconds
        return found

    def copy_rates(self) -> dict[tuple[str, str], float]:
        """Return bytes/s by device and stage, load2 or store1."""
        found: dict[tuple[str, str], list[Event]] = {}
        for event in self._events:
            if event.stage != "mult1" and event.end > event.start:
                found.setdefault((event.device, event.stage), []).append(event)
        return {
            key: sum(event.nbytes for event in events)
            / sum(event.end - event.start - event.idle for event in events)
            for key, events in found.items()
        }

    def _record_copy(
        self, device: str, stage: Stage, nbytes: int, start: float, end: float
    ) -> None:
        number, start, end = next(self._copies), start - self._start, end - self._start
        self._note(Event(device, stage, number, 0, 0, start, end, nbytes, 0))

    def _note(self, event: Event) -> None:
        self._events.append(event)
        if self._observer is not None:
            self._observer(event)

    def _wait_below(self, count: int) -> None:
        """Wait until fewer tasks than that are unfinished; raise the first error."""
        while True:
            if self._error is not None:
                raise self._error
            if self._cancel is not None and self._cancel.is_set():
                raise CancelledRunError("the run was cancelled; the matrix is factored in part")
            if self._dispatcher.graph.unfinished < count:
                return
            self._room.wait(None if self._cancel is None else _LOOK)

    def _stop(self, error: BaseException) -> None:
        """Stop all lanes; keep the first error."""
        with self._lock:
            if self._error is None:
                self._error = error
            for condition in (*self._work.values(), *self._fetching.values(), self._room):
                condition.notify_all()

    def _run(self, target: Callable[[], Any]) -> None:
        try:
            target()
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001  (raised by the caller's thread)
            self._stop(error)


def _run_on_host(source: Runtime, transfers: Transfers) -> None:
    """Run tasks on the host, one at a time, until there are no more."""
    current = source.next(HOST, None)
    while current is not None:
        for transfer in current.planned:
            transfers.enqueue(transfer)
        for transfer in current.arriving:
            transfers.wait(transfer).wait()
        kernel = current.issued.task.kernel
        start = time.perf_counter()
        assert kernel.host is not None, kernel.kind  # noqa: S101  (only virtual time has none)
        kernel.host()
        source.record(current.issued, start, time.perf_counter())
        current = source.next(HOST, current.issued)


class _DeviceLane:
    """Enqueues the tasks of one device; `AHEAD` of them wait on the device for the running one."""

    def __init__(
        self, name: str, device: FactorDevice, source: Runtime, transfers: Transfers
    ) -> None:
        self._name, self._source, self._transfers = name, source, transfers
        self._tiles = TileWorkspace(device, partial(transfers.block, device=name))
        self._enqueued: deque[tuple[LaneTask, list[Completion], float]] = deque()

    def run(self) -> None:
        """Run tasks until there are no more."""
        finished: Issued | None = None
        while True:
            current = self._source.next(self._name, finished, issued=bool(self._enqueued))
            finished = None
            if current is not None:
                self._enqueue(current)
            elif not self._enqueued:
                return
            if current is None or len(self._enqueued) > AHEAD:
                finished = self._retire()

    def close(self) -> None:
        """Free the lane's own device memory; nothing enqueued uses it any more."""
        self._tiles.free()

    def _enqueue(self, current: LaneTask) -> None:
        for transfer in current.planned:
            self._transfers.enqueue(transfer)
        after = [self._transfers.wait(transfer) for transfer in current.arriving]
        kernel = current.issued.task.kernel
        start = time.perf_counter()
        assert kernel.device is not None, kernel.kind  # noqa: S101  (it has no weight here)
        kernel.device(self._tiles, after)
        self._enqueued.append((current, self._tiles.take(), start))

    def _retire(self) -> Issued:
        """Wait for all operations of the oldest enqueued task, of which each can fail."""
        current, completions, start = self._enqueued.popleft()
        for transfer in current.arriving:
            self._transfers.retire(transfer)
        for completion in completions:
            completion.wait()
        intervals = [found for each in completions if (found := each.interval()) is not None]
        start = intervals[0][0] if intervals else start
        end = intervals[-1][1] if intervals else time.perf_counter()
        self._source.record(current.issued, start, end)
        return current.issued
