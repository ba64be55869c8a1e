"""How several devices shared a product: values of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.pipeline.plan import Rect


@dataclass(frozen=True, slots=True)
class Share:
    """One device's part in a run.

    Parameters
    ----------
    planned, used
        Its part of C: as its expected speed would have it, and as it came out.
    cells
        Cells of C that it stored.
    flop_rate
        Flop/s from its first tile to its last.
    kernel_rate
        Flop/s while its mult1 worked.
    began, finished
        Seconds since the run began: when it drew its first tile and stored its last.
    tiles
        The tiles of C that it computed.
    failed
        It was left out in the middle.
    """

    planned: float
    used: float
    cells: int
    flop_rate: float
    kernel_rate: float
    began: float
    finished: float
    tiles: tuple[Rect, ...]
    failed: bool = False


@dataclass(frozen=True, slots=True)
class SplitReport:
    """How several devices shared a product.

    Parameters
    ----------
    shares
        By device.
    imbalance
        From the first device's end to the last one's, as a part of the run (HDGEMM, Figure 12).
    efficiency
        The run's flop/s as a part of the sum of the kernels' rates (HDGEMM, Figure 8).
    """

    shares: Mapping[str, Share]
    imbalance: float
    efficiency: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "imbalance": self.imbalance,
            "efficiency": self.efficiency,
            "shares": {
                name: {
                    "planned": share.planned,
                    "used": share.used,
                    "gflops": share.flop_rate / 1e9,
                    "kernel_gflops": share.kernel_rate / 1e9,
                    "began": share.began,
                    "finished": share.finished,
                    "failed": share.failed,
                    "tiles": [list(tile) for tile in share.tiles],
                }
                for name, share in self.shares.items()
            },
        }
