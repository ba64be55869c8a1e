"""Repeated measurements: the median, the spread, and whether a difference can be told."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of one quantity, measured several times."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Sample:
        """Collect values."""
        return cls(tuple(values))

    @property
    def median(self) -> float:
        """The middle value; 0 where there is none."""
        return statistics.median(self.values) if self.values else 0.0

    @property
    def spread(self) -> float:
        """Width of the middle half, as a part of the median; of two or three values, of all."""
        if len(self.values) < 2 or self.median == 0:
            return 0.0
        if len(self.values) < 4:
            return (max(self.values) - min(self.values)) / abs(self.median)
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return (high - low) / abs(self.median)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "median": self.median,
            "min": min(self.values, default=0.0),
            "max": max(self.values, default=0.0),
            "count": len(self.values),
            "spread": self.spread,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """From one sample to another.

    Parameters
    ----------
    effect
        The relative change of the median: 0.16 for 16 % more.
    noise
        The larger spread of the two.
    """

    effect: float
    noise: float

    @classmethod
    def between(cls, old: Sample, new: Sample) -> Change:
        """Compare two samples; an old one without value gives no effect."""
        effect = new.median / old.median - 1 if old.median else 0.0
        return cls(effect, max(old.spread, new.spread))

    @property
    def clear(self) -> bool:
        """Whether the effect is larger than the noise."""
        return abs(self.effect) > self.noise

    def words(self) -> str:
        """Say it: ``+16 %``, or that the machine is too noisy to tell."""
        if self.clear or abs(self.effect) < 0.005:
            return f"{self.effect:+.0%}".replace("%", " %")
        return f"{self.effect:+.0%}, too noisy to tell (spread {self.noise:.0%})".replace("%", " %")
