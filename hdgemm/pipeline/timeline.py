"""The timeline of a run: its events, a bounded number of them, and sums by stage."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from hdgemm.pipeline.plan import STAGES, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Events that a run keeps at most, 300 bytes each.
MOST_EVENTS: Final = 16384


class Event(NamedTuple):
    """One operation of one stage, or in a long run several `operations` one after the other.

    Parameters
    ----------
    device
        The name of the device, such as ``"host"``.
    stage
        ``"load1"``, ``"load2"``, ``"mult1"``, ``"store1"`` or ``"store2"``.
    number
        The number of the operation in its stage.
    unit, step
        The numbers of the tile of C, or of the slab of a factorisation, and of the step of its sum.
    start, end
        Seconds since the run began.
    nbytes, flops
        Bytes that were moved, floating-point operations that were done.
    phase
        The phase of a factorisation or a solve, such as ``"panel"``; empty in products.
    operations
        How many they are; `number`, `unit` and `step` belong to the first one.
    idle
        Seconds between `start` and `end` in which none of them ran.

    See Also
    --------
    multiply : Its `observer` is called with each event.
    Report : Its `timeline` has the events of a run.

    Examples
    --------
    >>> seen = []
    >>> report = hdgemm.multiply("A.npy", "B.npy", out="C.npy", observer=seen.append)
    >>> {event.stage for event in seen} == set(report.stages)
    True
    """

    device: str
    stage: Stage
    number: int
    unit: int
    step: int
    start: float
    end: float
    nbytes: int
    flops: int
    phase: str = ""
    operations: int = 1
    idle: float = 0.0

    def shifted(self, seconds: float) -> Event:
        """Return this event some seconds later."""
        return self._replace(start=self.start + seconds, end=self.end + seconds)

    def joined(self, later: Event) -> Event:
        """Return this event and a later one of the same stage as one."""
        pause = max(0.0, later.start - self.end)
        return self._replace(
            start=min(self.start, later.start),
            end=max(self.end, later.end),
            nbytes=self.nbytes + later.nbytes,
            flops=self.flops + later.flops,
            operations=self.operations + later.operations,
            idle=self.idle + pause + later.idle,
        )


_OPERATIONS: Final = attrgetter("operations")
_NBYTES: Final = attrgetter("nbytes")
_FLOPS: Final = attrgetter("flops")
_START: Final = attrgetter("start")
_INTERVAL: Final = attrgetter("start", "end", "idle")


class Observer(Protocol):
    """Called with each event when it is known, from a lane's thread; it must not block."""

    def __call__(self, event: Event, /) -> None:
        """Take note of one event."""


def both(first: Observer | None, second: Observer | None) -> Observer | None:
    """Return an observer that calls both, where neither is None."""
    if first is None or second is None:
        return first or second

    def observe(event: Event) -> None:
        first(event)
        second(event)

    return observe


@dataclass(frozen=True, slots=True)
class StageStats:
    """One stage of a run; `seconds` is the time during which at least one operation ran."""

    stage: Stage
    operations: int
    nbytes: int
    flops: int
    seconds: float


class EventBuffer:
    """The events of a run as they come, from several threads.

    A row holds the events of one phase of one stage of one device. Where there would be more than
    `most` events, neighbours in each row are joined, so that an event has up to twice as many
    operations. The sums of a row stay what they were: operations, bytes, flops, busy seconds.
    """

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._most = most
        self._rows: dict[tuple[str, Stage, str], list[Event]] = {}
        self._kept = 0
        self._group = 1  # operations of an event
        self._lock = threading.Lock()

    def append(self, event: Event) -> None:
        """Add the next event of its row."""
        with self._lock:
            row = self._rows.setdefault((event.device, event.stage, event.phase), [])
            before = len(row)
            _append(row, event, self._group)
            self._kept += len(row) - before
            if self._kept > self._most:
                self._join()

    def _join(self) -> None:
        while self._kept > max(self._most * 3 // 4, len(self._rows)):
            self._group *= 2
            for row in self._rows.values():
                events, row[:] = tuple(row), ()
                for event in events:
                    _append(row, event, self._group)
            self._kept = sum(map(len, self._rows.values()))

    def __iter__(self) -> Iterator[Event]:
        """Yield the events, ordered by their start."""
        with self._lock:
            events = [event for row in self._rows.values() for event in row]
        return iter(sorted(events, key=_START))

    def timeline(self, seconds: float) -> Timeline:
        """Return the events so far as the timeline of a run of so many seconds."""
        return Timeline(tuple(self), seconds)


def _append(row: list[Event], event: Event, most: int) -> None:
    """Add an event to a row, joined with its last event where both together have `most` operations
    or fewer.
    """
    if row and row[-1].operations + event.operations <= most:
        row[-1] = row[-1].joined(event)
    else:
        row.append(event)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The events of a run, ordered by their start, and the run's duration in seconds."""

    events: tuple[Event, ...]
    seconds: float

    def stages(self) -> dict[Stage, StageStats]:
        """Sum the events of each stage; stages without events are left out."""
        by_stage: dict[Stage, list[Event]] = {}
        for event in self.events:
            by_stage.setdefault(event.stage, []).append(event)
        return {
            stage: StageStats(
                stage,
                sum(map(_OPERATIONS, events)),
                sum(map(_NBYTES, events)),
                sum(map(_FLOPS, events)),
                busy_seconds(events),
            )
            for stage in STAGES
            if (events := by_stage.get(stage))
        }


class Interval(Protocol):
    """What lasts from one moment to another, less the time in which nothing ran; in seconds."""

    @property
    def start(self) -> float:
        """The first moment."""

    @property
    def end(self) -> float:
        """The last moment."""

    @property
    def idle(self) -> float:
        """The time between them in which nothing ran."""


def busy_seconds(events: Iterable[Interval]) -> float:
    """Return the length of the union of the events' intervals, less their idle time.

    Idle time is taken to be spread evenly over an event.
    """
    total, until = 0.0, float("-inf")
    for start, end, idle in sorted(map(_INTERVAL, events)):
        if end > until:
            new = end - max(start, until)
            total += new - idle * new / (end - start) if idle else new
            until = end
    return total
