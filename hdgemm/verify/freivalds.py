"""Freivalds' method: C·x against A·(B·x), for random x.

For a vector x of random signs, ``d = C·x - alpha·op(A)·(op(B)·x) - beta·C₀·x`` costs one pass over
each matrix instead of a multiplication. Were the arithmetic exact, d would be zero for a true
product, and a wrong row would go unnoticed with a probability of at most 1/2 (Freivalds 1977): of
the two signs of its wrong element, at most one can cancel the rest. r vectors at once leave 2^-r.

**What a correct product may deviate.** Rounding leaves C off by E with, componentwise and in any
order of summation, ``|E| ≤ (k+3)·u·(|alpha|·|A|·|B| + |beta|·|C₀|)`` (u: unit roundoff; three times
that for complex dtypes; one u more for a C that is stored with fewer digits). The signs of x do
not know E, so that by Hoeffding's inequality ``|E·x|`` of a row exceeds t times the row's Euclidean
norm with a probability below 2·exp(-t²/2). t is chosen for 10⁻¹² in all, and never above √n, which
holds for certain. The norm of row i of |A|·|B| is at most ``Σ_p |a_ip|·‖b_p‖``, found in the same
pass. What the check itself rounds, in double precision and in short sums, is added for certain.

**What is found.** A row is reported when |d| exceeds this bound, *b*. So an element that is off by
more than 2·b of its row leaves each vector a chance of at least 1/2 to show it, whatever the rest
of the row holds, and goes unnoticed with a probability of at most 2^-r. Smaller errors may pass.

**NaN and Inf.** Where a row of op(A) or a column of op(B) holds one, that row or column of C must
hold no finite element, and all other elements must be finite: this is checked for each element,
except in rows whose bound exceeds what C's dtype can hold, where overflow is legitimate. NaN is
not told from Inf. Rows that start from a NaN or Inf in C₀, and rows that may overflow, are not
compared in numbers; `Check.unchecked` counts them, and those of op(A). Nor is any row, where C₀
was overwritten and op(B) holds one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import DoesNotFitError
from hdgemm.verify.projection import Placement, Projection, project

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.base import Operand
    from hdgemm.product.product import Product

#: Probability that a correct product fails, at most.
FALSE_ALARM: Final = 1e-12


class Check:
    """One check of C (m×n); the vectors are tried in groups that fit the memory.

    Parameters
    ----------
    product
        What C should be.
    a, b, c
        op(A), op(B) and C.
    old
        C₀, None where beta is zero.
    rounds
        How many vectors are tried, in all.
    memory
        Bytes that the check may take.
    seed
        Of the vectors; None takes new ones.

    Attributes
    ----------
    failed, unchecked
        Rows of C that failed, and that could not be compared in numbers.
    worst, bound
        The largest deviation in units of its row's bound, and the largest bound.
    """

    def __init__(
        self,
        product: Product,
        a: Operand,
        b: Operand,
        c: Operand,
        old: Operand | None,
        rounds: int,
        memory: int,
        seed: int | None = None,
    ) -> None:
        self._product = product
        self._a, self._b, self._c, self._old = a, b, c, old
        self.rounds = rounds
        self._complex = "c" in (product.dtype.kind, c.matrix.dtype.kind)
        # Half for vectors, a quarter for two reading buffers, a quarter for temporaries.
        self._reading = memory // 4
        at_once = min(rounds, self._vectors_in(memory // 2))
        counts = [min(at_once, rounds - done) for done in range(0, rounds, at_once)]
        seeds = np.random.SeedSequence(seed).spawn(len(counts))
        self._groups = list(zip(seeds, counts, strict=True))
        self._remembered: list[Projection] = []
        self.failed = np.zeros(product.m, np.bool_)
        self.unchecked = np.zeros(product.m, np.bool_)
        self.worst = 0.0
        self.bound = 0.0

    def _vectors_in(self, nbytes: int) -> int:
        p = self._product
        # x, B·x, A·B·x, C·x, C₀·x and what their comparison takes.
        each = (16 if self._complex else 8) * (p.n + p.k + 5 * p.m)
        if each > nbytes:
            raise DoesNotFitError(
                f"the check needs {2 * each} bytes for vectors of m = {p.m}, n = {p.n}, k = {p.k}; "
                f"memory is {2 * nbytes}",
                requested=2 * each, available=2 * nbytes, missing=2 * (each - nbytes),
            )  # fmt: skip
        return max(1, nbytes // max(1, each))

    def remember_old(self) -> None:
        """Take from C₀ what the check needs, before C overwrites it; m numbers a vector."""
        if self._old is not None:
            for seed, count in self._groups:
                x = self._signs(seed, count)
                self._remembered.append(project(self._old, x, memory=self._reading))

    def run(self) -> None:
        """Try all vectors."""
        if min(self._product.m, self._product.n) > 0:
            for number in range(len(self._groups)):
                self._try(number)

    def _signs(self, seed: np.random.SeedSequence, count: int) -> NDArray[np.float64]:
        return np.random.default_rng(seed).choice((-1.0, 1.0), size=(self._product.n, count))

    def _try(self, number: int) -> None:
        p = self._product
        x = self._signs(*self._groups[number])
        factors = (p.alpha if p.reads_product else 0.0, p.beta)
        must_rows = np.full(p.m, not np.isfinite(factors).all())
        must_cols = np.zeros(p.n, np.bool_)
        ab = old = None
        if p.reads_product:
            ab, must_cols = self._product_with(x)
            must_rows |= ab.bad_rows
        free = np.zeros(p.m, np.bool_)
        if self._remembered:
            old = self._remembered[number]
        elif self._old is not None:
            old = project(self._old, x, memory=self._reading)
        if old is not None:
            free |= old.bad_rows
        with np.errstate(all="ignore"):
            free |= ~(self._magnitude(ab, old) <= np.finfo(self._c.matrix.dtype).max / 4)
            placement = Placement(must_rows, must_cols, free)
            c = project(self._c, x, placement=placement, memory=self._reading)
            # What was remembered of C₀ belongs to the signs before some of them became 0.
            stale = bool(self._remembered) and bool(must_cols.any())
            self._judge(c, ab, old, must_rows | free | stale)

    def _product_with(self, x: NDArray[Any]) -> tuple[Projection, NDArray[np.bool_]]:
        """Return op(A)·(op(B)·x), and op(B)'s columns with NaN or Inf, whose signs become 0."""
        bx = project(self._b, x, memory=self._reading)
        bad_cols = bx.bad_cols
        if bad_cols.any():
            x[bad_cols] = 0.0
            bx = project(self._b, x, memory=self._reading)
        ab = project(self._a, bx.product, weights=bx.sizes, memory=self._reading)
        return replace(ab, additions=ab.additions + bx.additions), bad_cols

    def _magnitude(
        self, ab: Projection | None, old: Projection | None, least_alpha: float = 1.0
    ) -> NDArray[np.float64]:
        """Bound the norm of each row of |alpha|·|A|·|B| + |beta|·|C₀|.

        `least_alpha` 1 bounds the sums behind it too, before they are multiplied by alpha.
        """
        p = self._product
        size = np.zeros(p.m)
        if ab is not None:
            size += max(least_alpha, abs(p.alpha)) * ab.sizes
        if old is not None:
            size += abs(p.beta) * old.sizes
        return size

    def _judge(
        self,
        c: Projection,
        ab: Projection | None,
        old: Projection | None,
        unchecked: NDArray[np.bool_],
    ) -> None:
        p = self._product
        deviation = c.product
        if ab is not None:
            deviation = deviation - p.alpha * ab.product
        if old is not None:
            deviation = deviation - p.beta * old.product
        size = np.abs(deviation).max(axis=1)
        bound = self._rounding(self._magnitude(ab, old, 0.0)) + self._own_rounding(c, ab, old)
        unchecked |= ~(np.isfinite(size) & np.isfinite(bound))
        size[unchecked] = bound[unchecked] = 0.0
        ratio = np.divide(size, bound, out=np.where(size > 0, np.inf, 0.0), where=bound > 0)
        ratio[c.misplaced_rows] = np.inf
        self.failed |= ratio > 1
        self.unchecked |= unchecked
        self.worst = max(self.worst, float(ratio.max()))
        self.bound = max(self.bound, float(bound.max()))

    def _rounding(self, magnitude: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what a correct C·x may be off by, but for `FALSE_ALARM`."""
        p = self._product
        computed, stored = np.finfo(p.dtype), np.finfo(self._c.matrix.dtype)
        terms = self._growth * (p.k + 3)
        unit = terms * float(computed.eps) / 2
        if stored.eps > computed.eps:
            unit += float(stored.eps) / 2
        lost = float(max(computed.smallest_subnormal, stored.smallest_subnormal))
        underflow = terms * lost * max(1.0, abs(p.alpha)) * math.sqrt(p.n)
        chance = 4.0 * p.m * self.rounds / FALSE_ALARM
        spread = min(math.sqrt(p.n), math.sqrt(2.0 * math.log(chance)))
        # The norms were rounded too: a thousandth covers that.
        return 1.001 * spread * (unit * magnitude + underflow)

    def _own_rounding(
        self, c: Projection, ab: Projection | None, old: Projection | None
    ) -> NDArray[np.float64]:
        """Return what the check's own sums may be off by: |x|'s norm is √n, and γ ≤ additions·u."""
        p = self._product
        size = c.additions * c.sizes
        if ab is not None:
            size += (ab.additions + 4) * abs(p.alpha) * ab.sizes
        if old is not None:
            size += (old.additions + 2) * abs(p.beta) * old.sizes
        unit = self._growth * float(np.finfo(np.float64).eps) / 2
        return 1.001 * unit * math.sqrt(p.n) * size

    @property
    def _growth(self) -> float:
        return 3.0 if self._complex else 1.0
