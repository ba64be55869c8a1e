"""What the sums of a correct tile may be off by, and which errors show for certain.

The signs x are independent of the data and of its rounding errors, so that by Hoeffding's
inequality a sum Σ ±z_j exceeds t·‖z‖₂ with a probability below 2·exp(-t²/2). t is chosen for
10⁻¹² over all sums and partial sums of a run, and never above the square root of their length,
which holds for certain. u is the unit roundoff; for complex dtypes it is taken three times.

For row i of a tile (columns are alike, with A and B, m and n changed about) let

    F_i = Σ_p |a_ip|·‖b_p‖₂    and    size_i = |alpha|·F_i + |beta|·‖c₀_i‖₂.

Rounding leaves a row of the product off by at most (k + steps + 3)·u·size_i in norm, so its
signed sum by t times that. Of the check's own sums, B·x is off by t·nb·u·‖b_p‖ (a partial sum
is a sum of signs too), A·(B·x) by (k + 2)·u·t·F_i more, and C·x and C₀·x by t·nb·u·size_i each:

    bound_i = t·u·(2·k + 3·nb + steps + 16)·size_i + underflow.

What is found: a tile with one wrong element, or with wrong elements in one row or one column
only, is found for certain if one of them is off by more than 2·bound of its row and column,
whichever is smaller where it is alone in both; of other patterns each row and each column
misses one with a probability of at most 1/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.plan import Problem

#: Probability that a correct run fails, at most.
FALSE_ALARM: Final = 1e-12
#: Sizes are rounded too: lower ones are taken down by this, bounds taken up.
_SLACK: Final = 1.01


class Precision(NamedTuple):
    """A dtype's unit roundoff (three times that for complex ones) and its range."""

    unit: float
    smallest: float
    most: float


@cache
def precision(dtype: str) -> Precision:
    """Return a dtype's figures."""
    info, kind = np.finfo(dtype), np.dtype(dtype).kind
    unit = float(info.eps) / 2 * (3 if kind == "c" else 1)
    return Precision(unit, float(info.smallest_normal), float(info.max))


@dataclass(frozen=True, slots=True)
class Rounding:
    """The dtype's and the product's part of the bounds; extents m, n, k are the product's.

    Parameters
    ----------
    alpha, beta
        Magnitudes of the factors; `beta` is zero where the tile does not start from C₀.
    dtype
        What the product is computed in.
    """

    extents: tuple[int, int, int]
    alpha: float
    beta: float
    dtype: Precision

    @classmethod
    def of(cls, problem: Problem, alpha: complex, beta: complex) -> Rounding:
        """Take what counts of a problem and its factors."""
        extents = (problem.m, problem.n, problem.k)
        return cls(extents, abs(alpha), abs(beta), precision(problem.dtype))

    def spread(self, length: int) -> float:
        """Return t for sums of `length` signs."""
        total = float(sum(self.extents))
        return min(math.sqrt(length), math.sqrt(2.0 * math.log(4.0 * total**2 / FALSE_ALARM)))

    def units(self, length: int, steps: int) -> tuple[float, float]:
        """Return what a bound is of its size, and what underflow adds."""
        terms = 2 * self.extents[2] + 3 * length + steps + 16
        unit = terms * self.dtype.unit
        unit = unit / (1.0 - unit) if unit < 1.0 else math.inf
        underflow = terms * length * self.dtype.smallest * max(1.0, self.alpha)
        return _SLACK * self.spread(length) * unit, underflow

    def bound(
        self, products: NDArray[np.float64], old: NDArray[np.float64], length: int, steps: int
    ) -> NDArray[np.float64]:
        """Return bound_i from F_i and ‖c₀_i‖; infinite where it can not be said."""
        unit, underflow = self.units(length, steps)
        size = self.alpha * products
        if self.beta:
            size = size + self.beta * old
        found: NDArray[np.float64] = unit * size + underflow
        found[np.isnan(found)] = np.inf
        return found

    def worst(
        self,
        off: NDArray[Any],
        sums: NDArray[Any],
        least: NDArray[np.float64],
        old: NDArray[np.float64] | None,
        length: int,
        steps: int,
    ) -> float:
        """Return the largest deviation in units of its bound, or more; NaN for what is not finite.

        Parameters
        ----------
        off
            The deviations.
        sums, least
            A·(B·x), which is at most t·F_i; another lower bound of F_i.
        """
        unit, underflow = self.units(length, steps)
        bound = np.abs(sums)
        bound *= 1.0 / self.spread(length)
        np.maximum(bound, least, out=bound)
        bound *= unit * self.alpha / _SLACK
        if old is not None:
            bound += unit * self.beta * old
        bound += underflow
        ratio: NDArray[np.float64] = np.abs(off)
        ratio /= bound
        return float(ratio.max())

    def may_overflow(
        self, products: NDArray[np.float64], old: NDArray[np.float64], length: int
    ) -> NDArray[np.bool_]:
        """Say which rows may leave the dtype's range in the product or in the sums of a check."""
        most = self.dtype.most / 8
        size = max(1.0, self.alpha) * products + max(1.0, self.beta) * old
        return ~(math.sqrt(length) * size <= most)
