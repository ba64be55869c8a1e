"""Counters of the tiles that a run has checked."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckedTiles:
    """Result of checking each C tile; a run that ends has no wrong tile left.

    Parameters
    ----------
    tiles
        Tiles that were checked; a tile that was computed again counts once.
    looked_closer
        Tiles whose inputs were read again for their exact bound: NaN, Inf or small checksums.
    recomputed
        Tiles that failed, were computed again, and passed.
    unchecked_rows, unchecked_cols
        Rows and columns of tiles that could not be compared in numbers: NaN, Inf, overflow.
    worst
        The largest deviation that passed, divided by its bound.
    seconds
        Time that the checks took in the lanes that run them.
    """

    tiles: int = 0
    looked_closer: int = 0
    recomputed: int = 0
    unchecked_rows: int = 0
    unchecked_cols: int = 0
    worst: float = 0.0
    seconds: float = 0.0


class TileChecks:
    """Settings and counters of the checks of one run, shared by its lanes and devices.

    `seed` draws the signs; a tile's inputs are read again in `scratch_bytes` of host memory,
    and of a device's.
    """

    def __init__(self, seed: int = 0, scratch_bytes: int = 16 << 20) -> None:
        self.seed = seed
        self.scratch_bytes = scratch_bytes
        self._lock = threading.Lock()
        self._result = CheckedTiles()

    def count(self, *, worst: float = 0.0, **found: float) -> None:
        """Add to counters, by the names of `CheckedTiles`; keep the largest `worst`."""
        with self._lock:
            was = self._result
            counts: dict[str, Any] = {name: getattr(was, name) + x for name, x in found.items()}
            self._result = replace(was, worst=max(was.worst, worst), **counts)

    def result(self) -> CheckedTiles:
        """Return all counters."""
        return self._result
