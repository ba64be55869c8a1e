"""Shares of several devices in one run, as values of its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from hdgemm.tables import Table
from hdgemm.units import format_duration, format_speed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.pipeline.tiles import Rect


@dataclass(frozen=True, slots=True)
class Dropped:
    """Reason why a device got no more tiles in the middle of a run: at its last measured flop/s its
    next, smallest tile would have taken longer than the others needed for the rest of C.
    """

    flop_rate: float
    seconds: float
    others_seconds: float

    def __str__(self) -> str:
        return (
            f"dropped as too slow: its next piece takes {format_duration(self.seconds)} at"
            f" {format_speed(self.flop_rate / 1e9)}, the others need"
            f" {format_duration(self.others_seconds)} for all that is left"
        )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Reason why a device took no part: the whole set had fewer flop/s than the
    `best` device alone.
    """

    together: float
    best: str
    best_rate: float

    def __str__(self) -> str:
        return (
            f"left out: all devices together reached {format_speed(self.together / 1e9)},"
            f" {self.best} alone {format_speed(self.best_rate / 1e9)}"
        )


@dataclass(frozen=True, slots=True)
class Share:
    """One device's share of a run.

    Parameters
    ----------
    planned, used
        Its part of C: in proportion to its expected speed, and as computed.
    elements
        Elements of C that it stored.
    flop_rate
        Flop/s from its first tile to its last.
    kernel_rate
        Flop/s of mult1 alone.
    began, finished
        Seconds from the start of the run to its first draw and to its last store.
    tiles
        The tiles of C that it computed.
    failed
        Whether it failed during the run.
    alone
        Flop/s alone in earlier runs of this shape; None where none was measured.
    dropped
        Reason why it got no more tiles long before the end; None where it did.
    """

    planned: float
    used: float
    elements: int
    flop_rate: float
    kernel_rate: float
    began: float
    finished: float
    tiles: tuple[Rect, ...]
    failed: bool = False
    alone: float | None = None
    dropped: Dropped | None = None

    @property
    def of_alone(self) -> float | None:
        """Its speed in this run divided by its speed alone (HDGEMM, Figure 11)."""
        return self.flop_rate / self.alone if self.alone and self.elements else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "planned": self.planned,
            "used": self.used,
            "gflops": self.flop_rate / 1e9,
            "kernel_gflops": self.kernel_rate / 1e9,
            "alone_gflops": None if self.alone is None else self.alone / 1e9,
            "began": self.began,
            "finished": self.finished,
            "failed": self.failed,
            "dropped": None if self.dropped is None else asdict(self.dropped),
            "tiles": [list(tile) for tile in self.tiles],
        }


@dataclass(frozen=True, slots=True)
class SplitReport:
    """Shares of several devices in a product; `str` summarises them.

    Parameters
    ----------
    shares
        By device.
    imbalance
        From the first device's end to the last one's, as a part of the run (HDGEMM, Figure 12);
        devices that failed or were dropped are not counted.
    efficiency
        The run's flop/s as a part of the sum of the kernels' rates (HDGEMM, Figure 8).
    left_out
        Devices that took no part, with the reason.
    """

    shares: Mapping[str, Share]
    imbalance: float
    efficiency: float
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)

    @classmethod
    def of(cls, shares: Mapping[str, Share], flops: int, seconds: float) -> SplitReport:
        """Return the report of shares that computed so many flop in so many seconds together."""
        ends = [s.finished for s in shares.values() if s.elements and not (s.failed or s.dropped)]
        kernels = sum(share.kernel_rate for share in shares.values())
        return cls(
            shares,
            imbalance=(max(ends) - min(ends)) / seconds if ends and seconds > 0 else 0.0,
            efficiency=flops / seconds / kernels if kernels > 0 and seconds > 0 else 0.0,
        )

    @property
    def tiles(self) -> dict[str, tuple[Rect, ...]]:
        """Tiles of C that each device computed."""
        return {name: share.tiles for name, share in self.shares.items()}

    def table(self) -> Table:
        """Return shares, speeds and the end of each device."""
        heads = ("device", "planned", "used", "tiles", "speed", "of alone", "kernel", "done at")
        rows = [
            (
                name,
                f"{100 * share.planned:.1f} %",
                f"{100 * share.used:.1f} %",
                f"{len(share.tiles)}",
                format_speed(share.flop_rate / 1e9),
                "–" if share.of_alone is None else f"{100 * share.of_alone:.0f} %",
                format_speed(share.kernel_rate / 1e9),
                format_duration(share.finished),
            )
            for name, share in self.shares.items()
        ]
        return Table(heads, rows)

    def notes(self) -> list[str]:
        """Return the balance, and a sentence for each device that stopped early or was left out."""
        balance = (
            f"imbalance at the end: {100 * self.imbalance:.1f} % of the run;"
            f" {100 * self.efficiency:.1f} % of the kernels' rates together"
        )
        notes = [f"{name} failed during the run" for name, s in self.shares.items() if s.failed]
        notes += [f"{name} was {s.dropped}" for name, s in self.shares.items() if s.dropped]
        return [balance, *notes, *(f"{name} was {why}" for name, why in self.left_out.items())]

    def __str__(self) -> str:
        return "\n".join([*self.table().lines(), *self.notes()])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "imbalance": self.imbalance,
            "efficiency": self.efficiency,
            "shares": {name: share.to_dict() for name, share in self.shares.items()},
            "left_out": {name: asdict(why) for name, why in self.left_out.items()},
        }
