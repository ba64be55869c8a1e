"""How long a profile may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a profile may take; all times in seconds.

    Parameters
    ----------
    idle
        Of each look at what others do, this process doing nothing.
    bus, bus_rounds
        Of one stretch of reading memory in a look, and how many; each is followed by one of twice
        the length beside a copy.
    window, rounds
        Of one window of probes, and how often all are measured.
    run
        Of one multiplication, as far as memory allows.
    ladder, repeats
        Of the ladder's and the scaling's runs together, and the most and fewest repeats of each.
    sweep
        Of the sweep over sizes.
    """

    idle: float
    bus: float
    bus_rounds: int
    window: float
    rounds: int
    run: float
    ladder: float
    repeats: tuple[int, int]
    sweep: float


#: Within a minute on two cores.
QUICK: Final = Effort(
    idle=0.7,
    bus=0.03,
    bus_rounds=5,
    window=0.12,
    rounds=2,
    run=0.25,
    ladder=14.0,
    repeats=(2, 5),
    sweep=5.0,
)
#: Within ten minutes.
FULL: Final = Effort(
    idle=2.0,
    bus=0.05,
    bus_rounds=10,
    window=0.6,
    rounds=5,
    run=1.5,
    ladder=180.0,
    repeats=(3, 9),
    sweep=90.0,
)
