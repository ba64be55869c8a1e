"""Figures of a paper beside the same figures in virtual time, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hdgemm.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    #: Figures of a paper: name → (label, value).
    Published = Mapping[str, tuple[str, float]]


class Speed(NamedTuple):
    """10⁹ flop/s of a run in virtual time, and of its machine without any data movement."""

    gflops: float
    peak: float


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure, and the same in virtual time."""

    figure: str
    paper: float
    simulated: float

    @property
    def off(self) -> float:
        """Relative difference of the simulated figure."""
        return self.simulated / self.paper - 1


def figures(published: Published, found: Mapping[str, float], prefix: str = "") -> list[Figure]:
    """Return each published figure with the simulated one of its name."""
    return [
        Figure(prefix + label, value, found[name]) for name, (label, value) in published.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Speeds of a paper's program in virtual time by group and configuration, and its figures."""

    paper: str
    rates_from: str
    speeds: Mapping[str, Mapping[str, Speed]]
    figures: Sequence[Figure]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; speeds are in GFLOP/s."""
        return {
            "paper": self.paper,
            "rates_from": self.rates_from,
            **{
                group: {name: speed.gflops for name, speed in speeds.items()}
                for group, speeds in self.speeds.items()
            },
            "figures": [{**asdict(row), "off": row.off} for row in self.figures],
        }

    def text(self) -> str:
        """Return tables of text."""
        return "\n".join([self.paper, f"Rates: {self.rates_from}", *self._lines()])

    def _lines(self) -> Iterator[str]:
        for group, speeds in self.speeds.items():
            rows = [
                (name, f"{speed.gflops:.4g}", f"{speed.gflops / speed.peak:.0%}")
                for name, speed in speeds.items()
            ]
            yield from ("", *Table((group, "GFLOP/s", "of the peak"), rows).lines())
        compared = [
            (row.figure, f"{row.paper:.4g}", f"{row.simulated:.4g}", f"{100 * row.off:+.1f} %")
            for row in self.figures
        ]
        yield from ("", *Table(("figure", "paper", "simulated", "off"), compared).lines())
