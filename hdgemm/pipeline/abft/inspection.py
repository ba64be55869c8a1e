"""A finished tile judged by its sums; computed once more where they are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hdgemm.errors import WrongTileError
from hdgemm.pipeline.abft.reread import Reread, reread
from hdgemm.pipeline.abft.sums import UnitSums, sum_both

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from hdgemm.pipeline.abft.bounds import Rounding
    from hdgemm.pipeline.abft.reread import Source
    from hdgemm.pipeline.abft.sums import Signs
    from hdgemm.pipeline.abft.tally import Tally
    from hdgemm.pipeline.plan import WorkUnit


class Access(Protocol):
    """How a device's tiles are reached for a closer look, and to compute one again."""

    def panels(self, unit: WorkUnit) -> Iterable[tuple[int, NDArray[Any]]]:
        """Give a C tile by panels of whole rows; each is valid until the next."""

    def multiply(self, unit: WorkUnit, a: NDArray[Any], b: NDArray[Any], *, first: bool) -> None:
        """C tile := alpha·A·B, or += where this is not the first; `a`, `b` in op-space."""


@dataclass(frozen=True, slots=True)
class Deviations:
    """Rows or columns of one tile: what they are off by, and what they may be."""

    off: NDArray[np.float64]
    bound: NDArray[np.float64]
    unchecked: NDArray[np.bool_]

    @property
    def suspect(self) -> NDArray[np.bool_]:
        """Those that are off by more; NaN and Inf are more than any bound."""
        return ~((self.off <= self.bound) & np.isfinite(self.off)) & ~self.unchecked

    @property
    def worst(self) -> float:
        """The largest deviation in units of its bound."""
        held = self.off[~self.unchecked & (self.off > 0)]
        with np.errstate(all="ignore"):
            return float((held / self.bound[~self.unchecked & (self.off > 0)]).max(initial=0.0))


class Inspector:
    """Judges units of one run.

    Parameters
    ----------
    rounding, signs
        What the sums were made with.
    source
        Where tiles' inputs are read again.
    access
        The device's tiles.
    factors
        alpha, and the beta that the tile itself starts with.
    device
        Its name, for the error.
    """

    def __init__(
        self,
        rounding: Rounding,
        signs: Signs,
        source: Source,
        access: Access,
        factors: tuple[complex, complex],
        tally: Tally,
        device: str,
    ) -> None:
        self._rounding = rounding
        self._signs = signs
        self._source = source
        self._access = access
        self._alpha, self._beta = factors
        self._tally = tally
        self._device = device

    def inspect(self, unit: WorkUnit, sums: UnitSums) -> None:
        """Return when the tile is right, as it is or computed again.

        Raises
        ------
        WrongTileError
            When it is wrong, and again when it was computed again.
        """
        x, y = self._signs.of(unit.rect)
        with np.errstate(all="ignore"):
            found = sum_both(self._access.panels(unit), x, y)
            worst = self._quick(unit, sums, found)
            if worst <= 1.0:
                self._tally.passed(worst)
            else:
                self._look_closer(unit, sums, found)

    def _quick(
        self, unit: WorkUnit, sums: UnitSums, found: tuple[NDArray[Any], NDArray[Any]]
    ) -> float:
        """Hold the sums against lower bounds of their bounds, which cost next to nothing."""
        rect, steps, old = unit.rect, unit.last - unit.first + 1, sums.old
        worst = [
            self._rounding.worst(
                self._off(found[0], sums.rows, None if old is None else old.rows), sums.rows,
                sums.row_least, None if old is None else old.row_sizes, rect.cols, steps,
            ),
            self._rounding.worst(
                self._off(found[1], sums.cols, None if old is None else old.cols), sums.cols,
                sums.col_least, None if old is None else old.col_sizes, rect.rows, steps,
            ),
        ]  # fmt: skip
        return float(np.max(worst))  # NaN if either is

    def _off(
        self, found: NDArray[Any], expected: NDArray[Any], old: NDArray[Any] | None
    ) -> NDArray[Any]:
        off: NDArray[Any] = found - self._alpha * expected
        return off if old is None else off - self._beta * old

    def _look_closer(
        self, unit: WorkUnit, sums: UnitSums, found: tuple[NDArray[Any], NDArray[Any]]
    ) -> None:
        self._tally.count(looked_closer=1)
        x, y = self._signs.of(unit.rect)
        seen = reread(self._source, unit, x, y)
        judged = self._judge(unit, sums, seen, None if seen.holds_bad else found)
        if any(side.suspect.any() for side in judged):
            if sums.old is not None:
                raise self._error(unit, judged, "its old values are gone, so it stays wrong")
            steps = reread(self._source, unit, x, y, multiply=self._multiply_again(unit)).steps
            again = UnitSums(seen.rows, seen.cols, sums.row_least, sums.col_least)
            judged = self._judge(unit, again, seen, None, steps)
            if any(side.suspect.any() for side in judged):
                raise self._error(unit, judged, "and again after it was computed again")
            self._tally.count(recomputed=1)
        rows, cols = judged
        self._tally.count(
            unchecked_rows=int(rows.unchecked.sum()), unchecked_cols=int(cols.unchecked.sum())
        )
        self._tally.passed(max(rows.worst, cols.worst))

    def _multiply_again(self, unit: WorkUnit) -> Any:
        def multiply(a: NDArray[Any], b: NDArray[Any], first: bool) -> None:
            self._access.multiply(unit, a, b, first=first)

        return multiply

    def _judge(
        self,
        unit: WorkUnit,
        sums: UnitSums,
        seen: Reread,
        found: tuple[NDArray[Any], NDArray[Any]] | None,
        steps: int = 0,
    ) -> tuple[Deviations, Deviations]:
        """Hold the sums against their exact bounds; NaN and Inf must be where they belong."""
        x, y = self._signs.of(unit.rect)
        expected = (seen.rows, seen.cols) if seen.holds_bad else (sums.rows, sums.cols)
        wrong = (np.zeros(y.size, np.bool_), np.zeros(x.size, np.bool_))
        if found is None:
            masked = (np.where(seen.bad_cols, 0, x), np.where(seen.bad_rows, 0, y))
            parts = seen.masked(self._access.panels(unit), wrong)
            found = sum_both(parts, *masked)
        steps = max(steps, unit.last - unit.first + 1)
        old = sums.old
        sizes = (seen.row_sizes, seen.col_sizes)
        olds = (None, None) if old is None else (old.rows, old.cols)
        zero = np.zeros(1)
        old_sizes = (zero, zero) if old is None else (old.row_sizes, old.col_sizes)
        sides = []
        for i, (length, bad, peak) in enumerate(
            [
                (unit.rect.cols, seen.bad_rows, seen.largest_b),
                (unit.rect.rows, seen.bad_cols, seen.largest_a),
            ]
        ):
            bound = self._rounding.bound(sizes[i], old_sizes[i], length, steps)
            size = np.abs(self._off(found[i], expected[i], olds[i]))
            legitimate = self._rounding.may_overflow(sizes[i], old_sizes[i], length)
            legitimate |= self._rounding.may_overflow(np.full(1, peak), zero, length)
            legitimate |= not np.isfinite(self._alpha) or not np.isfinite(self._beta)
            unchecked = bad | (legitimate & ~np.isfinite(size))
            unchecked |= seen.holds_bad and old is not None
            off = np.where(wrong[i], np.inf, size)
            sides.append(Deviations(off, bound, unchecked & ~wrong[i]))
        return sides[0], sides[1]

    def _error(
        self, unit: WorkUnit, judged: tuple[Deviations, Deviations], then: str
    ) -> WrongTileError:
        rows, cols = judged
        along, side = ("row", rows) if rows.suspect.any() else ("column", cols)
        place = int(np.argmax(np.where(side.suspect, np.nan_to_num(side.off, nan=np.inf), -1.0)))
        rect = unit.rect
        row = rect.row + place if along == "row" else None
        col = rect.col + place if along == "column" else None
        off, bound = float(side.off[place]), float(side.bound[place])
        numbers = {"tile": tuple(rect), "row": row, "col": col, "deviation": off, "bound": bound}
        return WrongTileError(
            f"{self._device} computed a wrong C tile: rows {rect.row} to {rect.row + rect.rows - 1}"
            f", columns {rect.col} to {rect.col + rect.cols - 1}; the sum of {along} "
            f"{row if col is None else col} is off by {off:.3g}, rounding explains {bound:.3g}; "
            f"{then}. Look at that device's memory before it computes more",
            **numbers, device=self._device,
        )  # fmt: skip
