"""The timeline of a run: one event per stage operation, and sums by stage."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from hdgemm.pipeline.plan import STAGES, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable


class Event(NamedTuple):
    """One operation of one stage: `start` and `end` in seconds since the run began.

    `phase` is the phase of a factorisation or a solve that it belongs to, such as ``"panel"``;
    empty in products.
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


_NBYTES: Final = attrgetter("nbytes")
_FLOPS: Final = attrgetter("flops")
_INTERVAL: Final = attrgetter("start", "end")


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


@dataclass(frozen=True, slots=True)
class Timeline:
    """All events of a run, ordered by their start, and the run's duration in seconds."""

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
                len(events),
                sum(map(_NBYTES, events)),
                sum(map(_FLOPS, events)),
                busy_seconds(events),
            )
            for stage in STAGES
            if (events := by_stage.get(stage))
        }


class Interval(Protocol):
    """What lasts from one moment to another, in seconds."""

    @property
    def start(self) -> float:
        """The first moment."""

    @property
    def end(self) -> float:
        """The last moment."""


def busy_seconds(events: Iterable[Interval]) -> float:
    """Return the length of the union of the events' intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(map(_INTERVAL, events)):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
