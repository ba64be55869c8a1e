"""Comparison of a finished tile with its checksums; a wrong tile is computed once more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import WrongTileError
from hdgemm.pipeline._stages import Stages
from hdgemm.pipeline.abft._checksums import draw_signs, sum_both
from hdgemm.pipeline.abft._recompute import InputReader, InputSums
from hdgemm.pipeline.abft.bounds import Rounding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from hdgemm.pipeline._stages import Bound
    from hdgemm.pipeline.abft._checksums import UnitSums
    from hdgemm.pipeline.abft._counters import TileChecks
    from hdgemm.pipeline.devices.protocol import After, Completion
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.tiles import WorkUnit


@dataclass(frozen=True, slots=True)
class Deviations:
    """Deviations of the rows (or columns) of one tile, their bounds, and those not compared."""

    off: NDArray[np.float64]
    bound: NDArray[np.float64]
    unchecked: NDArray[np.bool_]

    @property
    def suspect(self) -> NDArray[np.bool_]:
        """Rows that are off by more than their bound; NaN and Inf exceed any bound."""
        return ~((self.off <= self.bound) & np.isfinite(self.off)) & ~self.unchecked

    @property
    def worst(self) -> float:
        """The largest deviation divided by its bound."""
        compared = ~self.unchecked & (self.off > 0)
        with np.errstate(all="ignore"):
            return float((self.off[compared] / self.bound[compared]).max(initial=0.0))


class CheckedStages(Stages, ABC):
    """Stages that inspect each finished tile of C; subclasses read the tiles of their device."""

    def __init__(self, bound: Bound, checks: TileChecks) -> None:
        super().__init__(bound)
        problem, dtype = self._plan.problem, np.dtype(self._plan.problem.dtype)
        # For staged C, store2 applies beta.
        starts_with = self._beta if problem.c.path == "resident" else 0.0
        with np.errstate(all="ignore"):
            alpha, beta = (dtype.type(factor).item() for factor in (self._alpha, starts_with))
        #: alpha, and the beta that a tile itself starts with.
        self._scales: tuple[complex, complex] = alpha, beta
        self._rounding = Rounding.of(problem, alpha, beta)
        self._reader = InputReader(self._plan, self._operands, checks.scratch_bytes)
        self._signs = draw_signs(problem.m, problem.n, dtype, checks.seed)
        self._checks = checks

    def close(self) -> None:
        """Free the memory of the checks: none on the host."""

    def load1(self, op: Op, after: After) -> Completion:
        """Read, unless inputs of a tile are being read again."""
        with self._reader.reading:
            return super().load1(op, after)

    @abstractmethod
    def panels(self, unit: WorkUnit) -> Iterable[tuple[int, NDArray[Any]]]:
        """Yield a C tile by panels of whole rows; each is valid until the next."""

    @abstractmethod
    def multiply(self, unit: WorkUnit, a: NDArray[Any], b: NDArray[Any], *, first: bool) -> None:
        """C tile := alpha·A·B, plus itself unless `first`; `a`, `b` in op-space."""

    def inspect(self, unit: WorkUnit, sums: UnitSums) -> None:
        """Return when the tile is right, as it is or after it was computed again.

        Raises `WrongTileError` when it is wrong after that, too.
        """
        x, y = self._signs.of(unit.rect)
        with np.errstate(all="ignore"):
            found = sum_both(self.panels(unit), x, y)
            worst = self._worst(unit, sums, found)
            if worst <= 1.0:
                self._checks.count(tiles=1, worst=worst)
            else:
                self._look_closer(unit, sums, found)

    def _worst(
        self, unit: WorkUnit, sums: UnitSums, found: tuple[NDArray[Any], NDArray[Any]]
    ) -> float:
        """Compare with lower bounds of the bounds, which cost little; NaN if one side is NaN."""
        sides = zip((sums.rows, sums.cols), found, self._lengths(unit), strict=True)
        return float(
            np.max(
                [
                    self._rounding.worst(
                        self._off(values, side.sums, side.old),
                        side.sums,
                        side.least,
                        side.old_sizes,
                        length,
                        _steps(unit),
                    )
                    for side, values, length in sides
                ]
            )
        )

    def _lengths(self, unit: WorkUnit) -> tuple[int, int]:
        """Return how many elements the checksum of a row, and of a column, adds up."""
        return unit.rect.cols, unit.rect.rows

    def _off(
        self, found: NDArray[Any], expected: NDArray[Any], old: NDArray[Any] | None
    ) -> NDArray[Any]:
        alpha, beta = self._scales
        off: NDArray[Any] = found - alpha * expected
        return off if old is None else off - beta * old

    def _look_closer(
        self, unit: WorkUnit, sums: UnitSums, found: tuple[NDArray[Any], NDArray[Any]]
    ) -> None:
        """Compare with the exact bounds; compute a wrong tile again from its inputs."""
        self._checks.count(looked_closer=1)
        inputs = InputSums.of(self._reader, unit.rect, *self._signs.of(unit.rect))
        judged = self._judge(unit, sums, inputs, None if inputs.holds_bad else found, 0)
        if any(side.suspect.any() for side in judged):
            if sums.rows.old is not None:
                raise self._error(unit, judged, "its old values are gone, so it stays wrong")
            chunks = 0
            for a, b in self._reader.chunks(unit.rect):
                self.multiply(unit, a, b, first=chunks == 0)
                chunks += 1
            judged = self._judge(unit, sums.replaced(*inputs.sums), inputs, None, chunks)
            if any(side.suspect.any() for side in judged):
                raise self._error(unit, judged, "and again after it was computed again")
            self._checks.count(recomputed=1)
        rows, cols = judged
        self._checks.count(
            tiles=1,
            worst=max(rows.worst, cols.worst),
            unchecked_rows=int(rows.unchecked.sum()),
            unchecked_cols=int(cols.unchecked.sum()),
        )

    def _judge(
        self,
        unit: WorkUnit,
        sums: UnitSums,
        inputs: InputSums,
        found: tuple[NDArray[Any], NDArray[Any]] | None,
        chunks: int,
    ) -> tuple[Deviations, Deviations]:
        """Compare with the exact bounds, and NaN and Inf with the places where they must be.

        `found` are checksums of the tile; None sums it again, without NaN and Inf of the inputs.
        It was computed again in so many `chunks` of k.
        """
        x, y = self._signs.of(unit.rect)
        wrong = (np.zeros(y.size, np.bool_), np.zeros(x.size, np.bool_))
        if found is None:
            bad_rows, bad_cols = inputs.bad
            parts = inputs.masked(self.panels(unit), wrong)
            found = sum_both(parts, np.where(bad_cols, 0, x), np.where(bad_rows, 0, y))
        steps, zero = max(chunks, _steps(unit)), np.zeros(1)
        sides = []
        for i, (side, length) in enumerate(
            zip((sums.rows, sums.cols), self._lengths(unit), strict=True)
        ):
            expected = inputs.sums[i] if inputs.holds_bad else side.sums
            old = zero if side.old_sizes is None else side.old_sizes
            bound = self._rounding.bound(inputs.sizes[i], old, length, steps)
            off = np.abs(self._off(found[i], expected, side.old))
            overflow = self._rounding.may_overflow(inputs.sizes[i], old, length)
            overflow |= self._rounding.may_overflow(np.full(1, inputs.largest[i]), zero, length)
            overflow |= not np.isfinite(self._scales).all()
            unchecked = inputs.bad[i] | (overflow & ~np.isfinite(off))
            unchecked |= inputs.holds_bad and side.old is not None
            off = np.where(wrong[i], np.inf, off)
            sides.append(Deviations(off, bound, unchecked & ~wrong[i]))
        return sides[0], sides[1]

    def _error(
        self, unit: WorkUnit, judged: tuple[Deviations, Deviations], then: str
    ) -> WrongTileError:
        device, (rows, cols) = self._plan.device.name, judged
        along, side = ("row", rows) if rows.suspect.any() else ("column", cols)
        place = int(np.argmax(np.where(side.suspect, np.nan_to_num(side.off, nan=np.inf), -1.0)))
        rect = unit.rect
        row = rect.row + place if along == "row" else None
        col = rect.col + place if along == "column" else None
        off, bound = float(side.off[place]), float(side.bound[place])
        numbers = {"tile": tuple(rect), "row": row, "col": col, "deviation": off, "bound": bound}
        return WrongTileError(
            f"{device} computed a wrong C tile: rows {rect.row} to {rect.row + rect.rows - 1}"
            f", columns {rect.col} to {rect.col + rect.cols - 1}; the sum of {along} "
            f"{row if col is None else col} is off by {off:.3g}, rounding explains {bound:.3g}; "
            f"{then}. Test that device's memory before it computes more",
            **numbers,
            device=device,
        )


def _steps(unit: WorkUnit) -> int:
    return unit.last - unit.first + 1
