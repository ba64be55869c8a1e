"""One device that draws from the pool: what it is, what it is at, and how large its pieces are."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from hdgemm.run.regions import area

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Rect

#: Tiles that a device is timed on before it may be found too slow. The first ones also pay for
#: page faults, compilers and clocks that are still low.
TRIALS: Final = 3
#: A piece to find out with takes at most this part of the run, if the device is as fast as thought.
_TRIAL_PART: Final = 0.01
#: The smallest piece of a known device, as a part of its tile in each direction.
_LEAST: Final = 8
#: Weight of all tiles before, at each new one.
_FADING: Final = 0.5


@dataclass(frozen=True, slots=True)
class Member:
    """One device that draws.

    Parameters
    ----------
    tile
        The largest C tile it can take, rows and columns.
    rate
        Elements of C that it computes in a second, as far as is known.
    measured
        Whether the rate was measured; otherwise the first pieces are small, to find out.
    side
        Whether it takes bars from the top of C or from the bottom.
    granularity
        Rows and columns in multiples of which its pieces are cut.
    """

    tile: tuple[int, int]
    rate: float
    measured: bool = False
    side: Literal["top", "bottom"] = "top"
    granularity: tuple[int, int] = (1, 1)

    def least(self, elements: float = math.inf) -> tuple[int, int]:
        """Return rows and columns of the smallest piece worth drawing, of `elements` at most.

        The device's granularity is the limit: a piece of less costs no less.
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
    """Why a device was found too slow to take another piece.

    Parameters
    ----------
    rate
        Elements in a second that it computes.
    seconds
        What its next piece would take, with what it is at.
    others_seconds
        What the others need for all that is left.
    """

    rate: float
    seconds: float
    others_seconds: float


@dataclass
class State:
    """A member's present.

    `bar` holds the columns of its bar that it has not drawn, `out` what it has drawn and not
    stored, `own` what is reserved for it; `trials` counts the tiles it was timed on, `elements` and
    `seconds` sum them up with less and less weight.
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
        """Learn from a tile.

        Sums, not rates, are averaged: a sliver, in which the overheads of any tile show, weighs
        little, and a tile that took long weighs much, so that a device that slows down is seen at
        once. While a device is on trial the best tile counts: what disturbs a first one only ever
        makes it slower.
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
        """Whether it was timed often enough to be judged."""
        return self.trials >= TRIALS

    @property
    def busy_elements(self) -> int:
        """Elements that it has drawn and not stored."""
        return sum(map(area, self.out))

    def trial_elements(self, seconds: float) -> float:
        """Elements of its smallest piece while `seconds` are left of the run; inf once known."""
        return math.inf if self.known else _TRIAL_PART * seconds * self.rate


def rounded_up(value: float, quantum: int) -> int:
    """Return the next multiple of `quantum`; very many for infinity."""
    return sys.maxsize if math.isinf(value) else math.ceil(value / quantum) * quantum
