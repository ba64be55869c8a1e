"""Samples: repeated measurements of one quantity, and the difference between two of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A prediction is marked when its relative error exceeds this.
FAR_OFF: Final = 0.10


def percent(part: float) -> str:
    """Write a relative change with its sign: ``+16 %``."""
    return f"{100 * part:+.0f} %"


@dataclass(frozen=True, slots=True)
class Sample:
    """Repeated measurements of one quantity."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Sample:
        """Collect values."""
        return cls(tuple(values))

    @property
    def median(self) -> float:
        """The median; 0 without values."""
        return statistics.median(self.values) if self.values else 0.0

    @property
    def spread(self) -> float:
        """Interquartile range relative to the median; the whole range of two or three values."""
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
    """Difference between two medians; `noise` is the larger spread of the two."""

    old: float
    new: float
    noise: float

    @classmethod
    def between(cls, old: Sample, new: Sample) -> Change:
        """Compare two samples."""
        return cls(old.median, new.median, max(old.spread, new.spread))

    @property
    def effect(self) -> float:
        """Relative change, 0.16 for 16 % more; 0 without an old value."""
        return self.new / self.old - 1 if self.old else 0.0

    @property
    def clear(self) -> bool:
        """Whether the change exceeds the noise."""
        return abs(self.effect) > self.noise

    def words(self) -> str:
        """Return ``+16 %``, or that the change is within the noise."""
        if self.clear or abs(self.effect) < 0.005:
            return percent(self.effect)
        return f"{percent(self.effect)}, too noisy to tell (spread {self.noise:.0%})"
