"""Load balance of several devices: a pool of C from which each device draws tiles.

Accelerators take bars from the top of C and the CPU from the bottom (HDGEMM, section 4.3.3), so
that each device reuses the A of its own bar. A device that finds no bar left steals the far end of
the bar with the latest expected end. Tiles shrink towards the end of the run, so that all devices
finish together. Pure state: no clock, no thread, no device.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

from hdgemm.pipeline.tiles import Rect
from hdgemm.run.regions import remainder, split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: A tile takes at most this part of the time that is left, so that the wait for the last tile is
#: short.
_PART: Final = 0.25
#: A tile is at most this part of a device's share of C: a device that becomes ten times slower
#: with two tiles drawn then ends before the others, while half of the run is left.
_MOST: Final = 1 / 32
#: Timed tiles before a device may be found too slow: the first ones include page faults,
#: compilation and low clock rates.
_TRIALS: Final = 3
#: A trial tile takes at most this part of the run at the expected speed.
_TRIAL_PART: Final = 0.01
#: Extents of the smallest tile of a timed device, as a fraction of its full tile: 1/8.
_LEAST: Final = 8
#: Weight of the earlier tiles at each new one (exponential average).
_FADING: Final = 0.5


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A device that draws: its largest tile in rows and columns, of multiples of its granularity.

    `rate` is its expected speed in elements of C per second; unless it was `measured`, the first
    tiles are small trials. `side` is the end of C from which it takes bars.
    """

    tile: tuple[int, int]
    rate: float
    measured: bool = False
    side: Literal["top", "bottom"] = "top"
    granularity: tuple[int, int] = (1, 1)

    def least(self, elements: float = math.inf) -> tuple[int, int]:
        """Return rows and columns of the smallest tile, of `elements` at most.

        A tile smaller than the device's granularity would take as long.
        """
        rows, cols = (
            max(quantum, full // _LEAST)
            for full, quantum in zip(self.tile, self.granularity, strict=True)
        )
        shrink = min(1.0, math.sqrt(elements / (rows * cols)))
        return (
            max(self.granularity[0], int(rows * shrink)),
            max(self.granularity[1], int(cols * shrink)),
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a device was found too slow for another tile: its speed in elements per second,
    its time for the tiles it has drawn and its next one, and the others' time for the rest of C.
    """

    rate: float
    seconds: float
    others_seconds: float


@dataclass
class _State:
    """State of a member: its speed, from the weighted sums of the elements and seconds of `trials`
    timed tiles; the columns of its bar that are not drawn; regions of its `own` in a fixed split;
    rectangles that it has drawn and not stored (`out`).
    """

    rate: float
    elements: float = 0.0
    seconds: float = 0.0
    trials: int = 0
    bar: Rect | None = None
    forward: bool = False
    failed: bool = False
    refusal: Refusal | None = None
    own: list[Rect] = field(default_factory=list)
    out: list[Rect] = field(default_factory=list)

    def timed(self, elements: float, seconds: float) -> None:
        """Update the speed from one tile.

        Elements and seconds are averaged rather than rates: a small tile, dominated by overhead,
        weighs little, and a slow tile weighs much. During the trials the fastest tile counts, since
        disturbances only make a tile slower.
        """
        if not self.known:
            better = not self.trials or elements / seconds > self.rate
            if better:
                self.elements, self.seconds = elements, seconds
        else:
            before = self.elements or elements, self.seconds or elements / self.rate
            self.elements = elements + _FADING * before[0]
            self.seconds = seconds + _FADING * before[1]
        self.trials += 1
        self.rate = self.elements / self.seconds

    @property
    def known(self) -> bool:
        """Whether enough tiles were timed to judge its speed."""
        return self.trials >= _TRIALS

    @property
    def busy_elements(self) -> int:
        """Elements that it has drawn and not stored."""
        return sum(rect.area for rect in self.out)

    def trial_elements(self, seconds: float) -> float:
        """Return the most elements of a trial tile with `seconds` left; infinite once known."""
        return math.inf if self.known else _TRIAL_PART * seconds * self.rate


class Wait(Enum):
    """Reasons why a device gets no tile."""

    #: Every element is drawn, but a device may fail and return its tiles.
    FOR_OTHERS = 1
    #: Every element of C is stored.
    NOTHING_LEFT = 2
    #: The device is too slow and has returned the rest of its bar to the pool.
    GAVE_BACK = 3


class Pool:
    """The part of an m×n C that is not stored yet, with the tiles that each device has drawn.

    `members` are the devices in the order in which they are shown. `regions` are the parts of C,
    together all, of each device where the split is fixed: the same regions give the same tiles each
    time; only tiles of a failed device go to others. `done` are disjoint rectangles of C that are
    stored already.
    """

    def __init__(
        self,
        m: int,
        n: int,
        members: Mapping[str, PoolMember],
        regions: Mapping[str, Rect] | None = None,
        done: Sequence[Rect] = (),
    ) -> None:
        self.members = dict(members)
        self._states = {
            name: _State(member.rate, trials=_TRIALS if member.measured else 0)
            for name, member in members.items()
        }
        self.extents = m, n
        self._elements = m * n - sum(rect.area for rect in done)
        self._balances = regions is None
        self._free = remainder(Rect(0, 0, m, n), done) if regions is None else []
        for name, rect in (regions or {}).items():
            self._states[name].own = remainder(rect, done)

    def resize(self, name: str, tile: tuple[int, int]) -> None:
        """Set the largest tile of a device that has not drawn yet."""
        self.members[name] = replace(self.members[name], tile=tile)

    def timed(self, name: str, elements: float, seconds: float) -> None:
        """Record the seconds that a device took for its last tile."""
        self._states[name].timed(elements, seconds)

    def refusal(self, name: str) -> Refusal | None:
        """Return why a device draws no more tiles; None where it does."""
        return self._states[name].refusal

    @property
    def undrawn(self) -> int:
        """Elements that are not drawn."""
        left = list(self._free)
        for state in self._states.values():
            left += [*state.own, *filter(None, [state.bar])]
        return sum(rect.area for rect in left)

    def draw(self, name: str) -> Rect | Wait:
        """Return the next C tile for a device, or why there is none."""
        state, member = self._states[name], self.members[name]
        if state.failed:
            return Wait.NOTHING_LEFT
        if self._balances and not state.trials and state.out:
            return Wait.FOR_OTHERS  # its first tile measures its speed
        if self._balances and self._too_slow(state, member):
            if state.bar is not None:
                self._free.append(state.bar)
                state.bar = None
                return Wait.GAVE_BACK
            return self._nothing()
        while state.bar is None:
            if state.own:
                self._take_bar(state, member, state.own)
            elif self._free:
                self._take_bar(state, member, self._free)
            elif not (self._balances and self._steal(name)):
                return self._nothing()
        state.refusal = None
        return self._cut_tile(state, member)

    def _too_slow(self, state: _State, member: PoolMember) -> bool:
        """Say whether the others would finish C before this device finishes its next tile.

        The fastest device is never too slow, so that one device always draws. The first reason is
        kept until the device draws again.
        """
        others = [s for s in self._states.values() if s is not state and not s.failed]
        if state.rate >= max((other.rate for other in others), default=0.0):
            return False
        together = sum(other.rate for other in others)
        left = (self.undrawn + sum(other.busy_elements for other in others)) / together
        rows, cols = member.least(state.trial_elements(self._seconds_left()))
        seconds = (state.busy_elements + min(rows * cols, self.undrawn)) / state.rate
        if seconds <= left:
            return False
        if state.refusal is None:
            state.refusal = Refusal(state.rate, seconds, left)
        return True

    def _seconds_left(self) -> float:
        """Seconds that all devices together need for the elements that are not drawn."""
        return self.undrawn / sum(s.rate for s in self._states.values() if not s.failed)

    def _nothing(self) -> Wait:
        out = any(state.out for state in self._states.values()) or self.undrawn
        return Wait.FOR_OTHERS if out else Wait.NOTHING_LEFT

    def _take_bar(self, state: _State, member: PoolMember, source: list[Rect]) -> None:
        place = 0 if member.side == "top" else -1
        rect = source[place]
        rows = self._rows(state, member, rect)
        bar, rest = split(rect, "row", rows, first=member.side == "top")
        if rest.rows:
            source[place] = rest
        else:
            source.pop(place)
        state.bar, state.forward = bar, not state.forward

    def _rows(self, state: _State, member: PoolMember, rect: Rect) -> int:
        """Return a bar's height: a full tile's, or less near the end of the run."""
        full, quantum = member.tile[0], member.granularity[0]
        least, _ = member.least(state.trial_elements(self._seconds_left()))
        wanted = max(least, 2 * self._most_elements(state) / rect.cols)
        rows = min(full, _rounded_up(wanted, quantum), rect.rows)
        return rect.rows if rect.rows - rows < quantum and rect.rows <= full else rows

    def _own_elements(self, state: _State, elements: int) -> float:
        """Return a device's part of a number of elements, in proportion to its speed."""
        return elements * state.rate / sum(s.rate for s in self._states.values() if not s.failed)

    def _most_elements(self, state: _State) -> float:
        """Elements of a device's largest tile, from the time that the rest of C takes."""
        if not self._balances or self._alone(state):
            return math.inf
        return _PART * self._own_elements(state, self.undrawn) if state.known else 0.0

    def _cap(self, state: _State) -> float:
        """Elements of a device's largest tile at any time; infinite for a device alone."""
        alone = not self._balances or self._alone(state)
        return math.inf if alone else _MOST * self._own_elements(state, self._elements)

    def _alone(self, state: _State) -> bool:
        """Say whether no other device draws tiles."""
        others = (other for other in self._states.values() if other is not state)
        return all(other.failed or (other.refusal and not other.out) for other in others)

    def _cut_tile(self, state: _State, member: PoolMember) -> Rect:
        bar = state.bar
        assert bar is not None  # noqa: S101  (draw has just found or taken one)
        full, quantum = member.tile[1], member.granularity[1]
        least = math.prod(member.least(state.trial_elements(self._seconds_left())))
        most = self._most_elements(state)
        if math.isfinite(most):
            most = min(2 * most - state.busy_elements, most, self._cap(state))
        wanted = max(least, most) / bar.rows
        cols = min(full, _rounded_up(wanted, quantum), bar.cols)
        tile, rest = split(bar, "col", cols, first=state.forward)
        state.bar = rest if rest.cols else None
        state.out.append(tile)
        return tile

    def _steal(self, name: str) -> bool:
        """Return the far end of the bar with the latest expected end to the pool.

        The two devices would then finish their parts of the bar together.
        """
        thief = self._states[name]
        victims = [
            (state, state.bar)
            for other, state in self._states.items()
            if other != name and state.bar is not None and not state.failed
        ]
        if not victims:
            return False
        victim, bar = max(victims, key=lambda found: found[1].area / found[0].rate)
        cols = int(bar.cols * thief.rate / (thief.rate + victim.rate))
        cols -= cols % self.members[name].granularity[1]
        if cols == 0:
            return False
        stolen, victim.bar = split(bar, "col", cols, first=not victim.forward)
        self._free.append(stolen)
        return True

    def stored(self, name: str, rect: Rect) -> None:
        """Record that a device has stored a rectangle of a tile that it drew.

        It may lie in several of the parts that earlier rectangles left of the tile.
        """
        state = self._states[name]
        state.out = [part for left in state.out for part in remainder(left, [rect])]

    def fail(self, name: str) -> None:
        """Return a failed device's tiles that are not stored to the pool."""
        state = self._states[name]
        state.failed = True
        self._free += state.out + state.own
        state.out, state.own = [], []
        if state.bar is not None:
            self._free.append(state.bar)
            state.bar = None

    @property
    def alive(self) -> list[str]:
        """Names of the devices that have not failed."""
        return [name for name, state in self._states.items() if not state.failed]


def _rounded_up(value: float, quantum: int) -> int:
    """Return the next multiple of `quantum`; the largest integer for infinity."""
    return sys.maxsize if math.isinf(value) else math.ceil(value / quantum) * quantum
