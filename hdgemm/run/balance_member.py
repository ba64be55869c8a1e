"""A device that draws from the pool: its speed, its tiles in flight, the sizes of its tiles."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Rect

#: Timed tiles before a device may be found too slow: the first ones include page faults,
#: compilation and low clock rates.
TRIALS: Final = 3
#: A trial tile takes at most this part of the run at the expected speed.
_TRIAL_PART: Final = 0.01
#: Extents of the smallest tile of a timed device, as a fraction of its full tile: 1/8.
_LEAST: Final = 8
#: Weight of the earlier tiles at each new one (exponential average).
_FADING: Final = 0.5


@dataclass(frozen=True, slots=True)
class Member:
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
    its time for the tiles it has drawn and its next one, and that of the others for the rest of C.
    """

    rate: float
    seconds: float
    others_seconds: float


@dataclass
class State:
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
        return self.trials >= TRIALS

    @property
    def busy_elements(self) -> int:
        """Elements that it has drawn and not stored."""
        return sum(rect.area for rect in self.out)

    def trial_elements(self, seconds: float) -> float:
        """Return the most elements of a trial tile with `seconds` left; infinite once known."""
        return math.inf if self.known else _TRIAL_PART * seconds * self.rate


def rounded_up(value: float, quantum: int) -> int:
    """Return the next multiple of `quantum`; the largest integer for infinity."""
    return sys.maxsize if math.isinf(value) else math.ceil(value / quantum) * quantum
