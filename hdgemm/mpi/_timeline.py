"""Timeline of a run of LINPACK: which thread was in which phase when, and what was hidden."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from hdgemm.pipeline.timeline import busy_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: What a process spends its time on.
PHASES: Final = ("panel", "broadcast", "swap", "update", "solve")
#: The same of a matrix that is read and stored.
STORED_PHASES: Final = ("read", *PHASES, "write")
#: The phases that can run beneath updates.
HIDEABLE: Final = ("panel", "broadcast", "swap")


class Event(NamedTuple):
    """One piece of one phase of the panel at column `step`; times of `time.perf_counter`."""

    thread: str
    phase: str
    step: int
    start: float
    end: float

    @property
    def idle(self) -> float:
        """No time: it is one piece."""
        return 0.0


class PhaseRecorder:
    """Collects events from all threads of a process."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @contextmanager
    def record(self, phase: str, step: int) -> Iterator[None]:
        """Record what runs in this context, in the thread that runs it."""
        start = time.perf_counter()
        try:
            yield
        finally:
            name = threading.current_thread().name
            self.events.append(Event(name, phase, step, start, time.perf_counter()))


def seconds_by_phase(events: Sequence[Event], phases: Sequence[str] = PHASES) -> dict[str, float]:
    """Return for each phase the seconds in which at least one thread was in it."""
    return {phase: busy_seconds(e for e in events if e.phase == phase) for phase in phases}


def seconds_by_thread(events: Sequence[Event]) -> dict[str, float]:
    """Return for each thread that updates the seconds of its updates."""
    updates = [event for event in events if event.phase == "update"]
    threads = dict.fromkeys(event.thread for event in updates)
    return {name: busy_seconds(e for e in updates if e.thread == name) for name in threads}


def hidden_seconds(events: Sequence[Event]) -> dict[str, float]:
    """Return for each phase of `HIDEABLE` the seconds during which another thread updated."""
    found = dict.fromkeys(HIDEABLE, 0.0)
    for thread in {event.thread for event in events if event.phase in HIDEABLE}:
        own = [event for event in events if event.thread == thread]
        others = [e for e in events if e.thread != thread and e.phase == "update"]
        for phase in HIDEABLE:
            hideable = [event for event in own if event.phase == phase]
            either = busy_seconds([*hideable, *others])
            found[phase] += max(0.0, busy_seconds(hideable) + busy_seconds(others) - either)
    return found


def picture(events: Sequence[Event], width: int = 64) -> Iterator[str]:
    """Yield a line for each thread: at each moment the letter of the phase that took most of it.

    p panel, b broadcast, s swap, U update, x solve, . nothing.
    """
    if not events:
        return
    begin, end = min(e.start for e in events), max(e.end for e in events)
    cell = max(end - begin, 1e-9) / width
    letters = dict(zip(PHASES, "pbsUx", strict=True))
    threads = list(dict.fromkeys(event.thread for event in events))
    for number, thread in enumerate(threads):
        shares: list[dict[str, float]] = [{} for _ in range(width)]
        for event in events:
            if event.thread == thread:
                _spread(shares, event, begin, cell)
        row = "".join(_letter(share, cell, letters) for share in shares)
        yield f"thread {number}  {row}"


def _spread(shares: Sequence[dict[str, float]], event: Event, begin: float, cell: float) -> None:
    """Add an event to the cells of the picture that it touches."""
    last = len(shares) - 1
    first = min(last, int((event.start - begin) / cell))
    for place in range(first, min(last, int((event.end - begin) / cell)) + 1):
        left, right = begin + place * cell, begin + (place + 1) * cell
        common = min(event.end, right) - max(event.start, left)
        shares[place][event.phase] = shares[place].get(event.phase, 0.0) + common


def _letter(share: dict[str, float], cell: float, letters: dict[str, str]) -> str:
    idle = cell - sum(share.values())
    phase = max(share, key=lambda name: share[name], default="")
    return letters[phase] if phase and share[phase] >= idle else "."
