"""Rounding bounds of checksums: the deviation of a correct product, and the errors that are found.

Checksums are sums with random signs. The signs do not depend on the data or its rounding errors,
so by Hoeffding's inequality a sum Σ ±z_j exceeds t·‖z‖₂ with probability below 2·exp(-t²/2). t is
chosen for `FALSE_ALARM` over all sums of a run, and is at most the square root of their length,
which holds with certainty. u is the unit roundoff, multiplied by 3 for complex dtypes.

For row i of a tile (columns: the same with A and B, m and n exchanged) let

    F_i = Σ_p |a_ip|·‖b_p‖₂    and    size_i = |alpha|·F_i + |beta|·‖c₀_i‖₂.

A row of the product is off by at most (k + steps + 3)·u·size_i in norm, so its signed sum by t
times that. The check's own sums add t·nb·u·‖b_p‖ for B·x (a partial sum is a sum of signs too),
(k + 2)·u·t·F_i for A·(B·x), and t·nb·u·size_i each for C·x and C₀·x:

    bound_i = t·u·(2·k + 3·nb + steps + 16)·size_i + underflow.

A tile with one wrong element, or with wrong elements in one row or one column only, is found with
certainty if one of them is off by more than 2·bound of its row and column (the smaller of the two
where it is the only one in both). Of other patterns, each row and each column misses one with
probability at most 1/2.
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

#: Largest probability that a correct run fails its checks.
FALSE_ALARM: Final = 1e-12
#: Factor between lower and upper bounds that covers the rounding of the bounds themselves.
_SLACK: Final = 1.01
#: Norms in this range lost nothing to underflow or overflow as sums of squares.
_SAFE_NORMS: Final = (1e-140, 1e150)


def hoeffding(length: int, sums: float) -> float:
    """Return t for `sums` sums of `length` random signs each, and for their partial sums."""
    return min(math.sqrt(length), math.sqrt(2.0 * math.log(4.0 * sums / FALSE_ALARM)))


def row_norms(part: NDArray[Any]) -> NDArray[np.float64]:
    """Return the Euclidean norm of each row without overflow or underflow; NaN and Inf remain."""
    wide = part.astype(np.result_type(part.dtype, np.float64), copy=False)
    norms: NDArray[np.float64] = np.sqrt(_square_sums(wide))
    least, most = _SAFE_NORMS
    if bool(np.all((norms > least) & (norms < most))):
        return norms
    magnitude = np.abs(wide)
    largest = magnitude.max(axis=1, initial=0.0)
    scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    rescaled: NDArray[np.float64] = scale * np.sqrt(_square_sums(magnitude / scale[:, np.newaxis]))
    return rescaled


def _square_sums(part: NDArray[Any]) -> NDArray[np.float64]:
    if part.dtype.kind == "c":
        return _square_sums(part.real) + _square_sums(part.imag)
    sums: NDArray[np.float64] = np.einsum("ij,ij->i", part, part)
    return sums


class Precision(NamedTuple):
    """Unit roundoff of a dtype (3 times its parts' if complex), and its range."""

    unit: float
    smallest: float
    largest: float


@cache
def precision(dtype: np.dtype[Any]) -> Precision:
    """Return the figures of a dtype."""
    info = np.finfo(dtype)
    unit = float(info.eps) / 2 * (3 if dtype.kind == "c" else 1)
    return Precision(unit, float(info.smallest_normal), float(info.max))


@dataclass(frozen=True, slots=True)
class Rounding:
    """The part of the bounds that all tiles of a product share.

    `extents` are m, n and k; `alpha` and `beta` magnitudes, beta 0 where tiles do not start from
    C₀.
    """

    extents: tuple[int, int, int]
    alpha: float
    beta: float
    dtype: Precision

    @classmethod
    def of(cls, problem: Problem, alpha: complex, beta: complex) -> Rounding:
        """Return the bounds of a problem with these factors."""
        extents = (problem.m, problem.n, problem.k)
        return cls(extents, abs(alpha), abs(beta), precision(np.dtype(problem.dtype)))

    def _spread(self, length: int) -> float:
        return hoeffding(length, float(sum(self.extents)) ** 2)

    def _units(self, length: int, steps: int) -> tuple[float, float]:
        """Return the relative part of a bound, and the absolute part for underflow."""
        terms = 2 * self.extents[2] + 3 * length + steps + 16
        unit = terms * self.dtype.unit
        unit = unit / (1.0 - unit) if unit < 1.0 else math.inf
        underflow = terms * length * self.dtype.smallest * max(1.0, self.alpha)
        return _SLACK * self._spread(length) * unit, underflow

    def bound(
        self, products: NDArray[np.float64], old: NDArray[np.float64], length: int, steps: int
    ) -> NDArray[np.float64]:
        """Return bound_i from F_i and ‖c₀_i‖; infinite where it is not a number."""
        unit, underflow = self._units(length, steps)
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
        """Return an upper bound of the largest deviation divided by its bound; NaN stays NaN.

        `off` are the deviations. `sums`, which are A·(B·x) and at most t·F_i, and `least` give
        lower bounds of F_i. `old` are ‖c₀_i‖, where tiles start from C₀.
        """
        unit, underflow = self._units(length, steps)
        bound = np.abs(sums)
        bound *= 1.0 / self._spread(length)
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
        """Say which rows may overflow in the product or in the sums of a check."""
        size = max(1.0, self.alpha) * products + max(1.0, self.beta) * old
        return ~(math.sqrt(length) * size <= self.dtype.largest / 8)
