"""How far a run has come: frozen snapshots, made from the run's own events."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from hdgemm.errors import InputError
from hdgemm.matrices.generated import calling_function

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.timeline import Event, Observer
    from hdgemm.report import Report

_Callback = TypeVar("_Callback")


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment.

    Parameters
    ----------
    percent
        0 to 100 of the work: steps multiplied and units stored.
    gflops
        10⁹ floating-point operations a second, since the run began.
    elapsed, eta
        Seconds since the run began, and seconds still to go at the pace so far; None before the
        first step is done.
    limit
        The stage that was busy longest so far: the bottleneck. None before the first event.
    steps, total_steps
        Steps multiplied, and steps in all.
    phase
        ``"calibrating"``: rates of this machine are measured, on first use; ``"multiplying"``, or
        ``"computing"`` of other routines; ``"verifying"``: the finished product is checked.
    busy
        Seconds in which each stage of each device was busy so far, by ``"DEVICE STAGE"``.
    tiles
        Parts of C that each of several devices has stored so far; None for one device.

    See Also
    --------
    Report : A run that has ended.
    multiply : Calls `progress` with one, as most functions do.

    Examples
    --------
    >>> seen = []
    >>> s = hdgemm.linalg.svdvals(np.ones((4, 3)), progress=seen.append)
    >>> seen[-1].percent
    100.0
    """

    percent: float
    gflops: float
    elapsed: float
    eta: float | None
    limit: Stage | None
    steps: int
    total_steps: int
    phase: str = "multiplying"
    busy: Mapping[str, float] = field(default_factory=dict)
    tiles: TileGrid | None = None


@dataclass(frozen=True, slots=True)
class TileGrid:
    """C as a grid of equal cells, each with the device that has stored its centre.

    Parameters
    ----------
    devices
        Names of the devices.
    rows
        The cells of each row of the grid: the device's place in `devices` as a letter from ``"a"``
        on, or ``"."`` where nothing is stored.
    """

    devices: tuple[str, ...]
    rows: tuple[str, ...]


class ProgressCallback(Protocol):
    """Called with each snapshot, one call at a time, from whichever thread finished something.

    What it raises stops the run and reaches the caller.
    """

    def __call__(self, progress: Progress, /) -> None:
        """Show it, store it, or raise to stop the run."""


class ReportCallback(Protocol):
    """Called with the report of a computation that succeeded."""

    def __call__(self, report: Report, /) -> object:
        """Show it or store it."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What a caller sees and stops of a run.

    Parameters
    ----------
    progress
        Called with snapshots of the run.
    observer
        Called with each event.
    cancel
        Set it to stop the run after at most one operation per stage.
    report
        Called with the report of a factorisation that succeeded; products return theirs.

    Raises
    ------
    InputError
        For an argument that cannot be called, or a cancel that cannot be set.
    """

    progress: ProgressCallback | None = None
    observer: Observer | None = None
    cancel: threading.Event | None = None
    report: ReportCallback | None = None

    def __post_init__(self) -> None:
        for name in ("progress", "observer", "report"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise InputError(f"{name} must be a function, got {value!r}")
        if self.cancel is not None and not hasattr(self.cancel, "is_set"):
            raise InputError(f"cancel must be a threading.Event, got {self.cancel!r}")

    @classmethod
    def of(
        cls,
        progress: ProgressCallback | bool | None,
        observer: Observer | None,
        cancel: threading.Event | None,
        report: ReportCallback | None = None,
    ) -> Callbacks:
        """Take a call's arguments, ``progress=False`` for None.

        ``progress=True`` has been replaced by a view (`hdgemm.progress_view.shows_progress`).
        """
        shown = None if isinstance(progress, bool) else _noted(progress)
        return cls(shown, _noted(observer), cancel, report)

    @property
    def cancelled(self) -> bool:
        """Whether the caller has asked to stop."""
        return self.cancel is not None and self.cancel.is_set()


@dataclass(frozen=True, slots=True)
class Work:
    """All that a run has to do: what its events are counted against.

    `store_bytes` are the bytes that store2 is to move.
    """

    flops: int
    steps: int
    units: int
    store_bytes: int

    @classmethod
    def of(cls, plan: Plan, planned_bytes: Mapping[Stage, int]) -> Work:
        """Take the totals from a plan and the bytes that each stage is to move."""
        counts = plan.counts
        return cls(plan.flops, counts.steps, counts.units, planned_bytes.get("store2", 0))


def _noted(callback: _Callback) -> _Callback:
    """Return a callback whose threads are known to call it: a session that they are to wait for
    refuses them, see `Session`.
    """
    if not callable(callback):  # None, and what `Callbacks` refuses
        return callback

    @wraps(callback)
    def call(*args: Any) -> Any:
        with calling_function():
            return callback(*args)

    return cast("_Callback", call)


class CalibrationMeter:
    """Turns the steps of a calibration into snapshots, and times it."""

    def __init__(self, callbacks: Callbacks) -> None:
        self.cancel = callbacks.cancel
        self._callback = callbacks.progress
        self._began: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the first step; 0 where nothing had to be measured."""
        return 0.0 if self._began is None else time.perf_counter() - self._began

    def __call__(self, part: float, _what: str, /) -> None:
        """Note that `part` of the calibration is done."""
        if self._began is None:
            self._began = time.perf_counter()
        if self._callback is not None:
            self._callback(
                Progress(100.0 * part, 0.0, self.seconds, None, None, 0, 0, phase="calibrating")
            )


class ProgressMeter:
    """An observer that turns events into snapshots, at most one every `interval` seconds of
    `clock`.

    `tiles` returns the parts of C that are stored, where several devices compute it.
    """

    def __init__(
        self,
        work: Work,
        callback: ProgressCallback,
        *,
        interval: float = 0.1,
        clock: Callable[[], float] = time.perf_counter,
        tiles: Callable[[], TileGrid] | None = None,
    ) -> None:
        self._work = work
        self._callback = callback
        self._interval = interval
        self._clock = clock
        self._tiles = tiles
        self._began = clock()
        self._next = self._began + interval
        self._flops = 0
        self._stored = 0
        self._steps = 0
        self._busy: dict[tuple[str, Stage], tuple[float, float]] = {}
        self._counting = threading.Lock()
        self._calling = threading.Lock()

    def __call__(self, event: Event, /) -> None:
        """Count one event; call back when the interval has passed."""
        with self._counting:
            self._count(event)
            now = self._clock()
            if now < self._next:
                return
            self._next = now + self._interval
            snapshot = self._snapshot(now)
        # The callback may be slow: outside the counters' lock, and never two at a time. A lane
        # that finds another one in it goes on; the next event will tell more anyway.
        if self._calling.acquire(blocking=False):
            try:
                self._callback(snapshot)
            finally:
                self._calling.release()

    def finish(self) -> None:
        """Call back once more, after the last event of a run that succeeded."""
        with self._counting:
            snapshot = self._snapshot(self._clock())
        with self._calling:
            self._callback(snapshot)

    def _count(self, event: Event) -> None:
        if event.stage == "mult1":
            self._flops += event.flops
            self._steps += 1
        elif event.stage == "store2":
            self._stored += event.nbytes
        lane = (event.device, event.stage)
        busy, until = self._busy.get(lane, (0.0, 0.0))
        busy += max(0.0, event.end - max(event.start, until))
        self._busy[lane] = busy, max(until, event.end)

    def _snapshot(self, now: float) -> Progress:
        done = self._fraction()
        elapsed = now - self._began
        return Progress(
            percent=100.0 * done,
            gflops=self._flops / elapsed / 1e9 if elapsed > 0 else 0.0,
            elapsed=elapsed,
            eta=elapsed * (1.0 - done) / done if done > 0 else None,
            limit=self._limit(),
            steps=self._steps,
            total_steps=self._work.steps,
            busy={f"{device} {stage}": busy for (device, stage), (busy, _) in self._busy.items()},
            tiles=None if self._tiles is None else self._tiles(),
        )

    def _fraction(self) -> float:
        """Weigh multiplying by its steps and storing by its units: every one is an operation."""
        work = self._work
        parts = []
        if work.flops:
            parts.append((max(1, work.steps), self._flops / work.flops))
        if work.store_bytes:
            parts.append((max(1, work.units), self._stored / work.store_bytes))
        if not parts:
            return 1.0
        return min(
            1.0, sum(weight * part for weight, part in parts) / sum(weight for weight, _ in parts)
        )

    def _limit(self) -> Stage | None:
        if not self._busy:
            return None
        return max(self._busy.items(), key=lambda item: item[1][0])[0][1]
