"""Freivalds' method: C·x against A·(B·x), for vectors x of random signs.

``d = C·x - alpha·op(A)·(op(B)·x) - beta·C₀·x`` costs one pass over each matrix instead of a
product. In exact arithmetic d is 0 for a correct product, and a wrong row is missed with
probability at most 1/2 (Freivalds 1977): of the two signs of its wrong element, at most one cancels
the rest. r vectors miss it with probability 2^-r.

**Rounding of a correct product.** Componentwise and for any order of summation, C is off by E with
``|E| ≤ (k+3)·u·(|alpha|·|A|·|B| + |beta|·|C₀|)``. u is the unit roundoff, multiplied by 3 for
complex dtypes; a C that is stored with fewer digits adds one u of its own. ``|E·x|`` of a row is
bounded by t times the Euclidean norm of that row (`hdgemm.pipeline.abft.bounds.hoeffding`). The
norm of row i of |A|·|B| is at most ``Σ_p |a_ip|·‖b_p‖``, which the same pass computes. The rounding
of the check's own sums, in double precision, is added.

**Errors that are found.** A row fails when |d| exceeds this bound, *b*. An element that is off by
more than 2·b of its row is seen by each vector with probability at least 1/2, whatever the rest of
the row holds, and missed by r vectors with probability at most 2^-r. Smaller errors may pass.

**NaN and Inf.** Where a row of op(A) or a column of op(B) holds one, that row or column of C must
hold no finite element, and all other elements must be finite. This is checked for each element,
except in rows whose bound exceeds the range of C's dtype, which may overflow. NaN and Inf are not
distinguished. Rows that start from a NaN or Inf in C₀, and rows that may overflow, are not compared
in numbers: `Check.unchecked` marks them, and the rows of op(A) with NaN or Inf. No row is compared
in numbers where C₀ was overwritten and op(B) holds NaN or Inf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.matrices.conversion import computed_in
from hdgemm.options import whole_number
from hdgemm.pipeline.abft.bounds import hoeffding
from hdgemm.product.arguments import check_shape
from hdgemm.units import format_size, round_up
from hdgemm.verify import MEMORY, ROUNDS
from hdgemm.verify._projection import Placement, Projection, project

if TYPE_CHECKING:
    import threading

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Operand
    from hdgemm.product.product import Product

#: More random vectors tell nothing: doubles hold no smaller probability.
_MOST_ROUNDS: Final = 1000


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Number of vectors, their seed (None draws new ones), bytes that the check may take, and the
    event that stops it with `CancelledRunError`.
    """

    rounds: int = ROUNDS
    seed: int | None = None
    memory: int = MEMORY
    cancel: threading.Event | None = None


def number_of_rounds(rounds: int) -> int:
    """Return a number of random vectors; `InputError` for none, or more than anything needs."""
    found = whole_number(rounds, "rounds")
    if found > _MOST_ROUNDS:
        raise InputError(
            f"rounds must be at most {_MOST_ROUNDS}, got {found}: with {ROUNDS}, an error is "
            f"missed with probability {2.0**-ROUNDS:.0e}"
        )
    return found


class Check:
    """One check of C (m×n), which need not exist yet; the vectors are tried in groups that fit the
    memory.

    `failed` and `unchecked` are the rows of C that failed, and that could not be compared in
    numbers; `worst` is the largest deviation divided by its row's bound, and `bound` the largest
    bound. Nothing is read before `conclude`; where C will overwrite C₀, call `remember_old` first.
    """

    def __init__(self, product: Product, c: Operand, settings: CheckSettings) -> None:
        self._product = product
        self._c = c
        check_shape(c.shape, product.shape, "c")
        self._old = product.old if product.reads_c else None
        self.rounds = number_of_rounds(settings.rounds)
        self._complex = "c" in (product.dtype.kind, c.matrix.dtype.kind)
        # Half for vectors, a quarter for two reading buffers, a quarter for temporaries.
        self._project = partial(project, memory=settings.memory // 4, cancel=settings.cancel)
        at_once = min(self.rounds, self._vectors_in(settings.memory))
        counts = [min(at_once, self.rounds - done) for done in range(0, self.rounds, at_once)]
        seeds = np.random.SeedSequence(settings.seed).spawn(len(counts))
        self._groups = list(zip(seeds, counts, strict=True))
        self._remembered: list[Projection] = []
        self.failed = np.zeros(product.m, np.bool_)
        self.unchecked = np.zeros(product.m, np.bool_)
        self.worst = 0.0
        self.bound = 0.0

    def _vectors_in(self, memory: int) -> int:
        """Return how many vectors half of the memory holds."""
        p = self._product
        # x, B·x, A·B·x, C·x, C₀·x and the temporaries of their comparison.
        each = (16 if self._complex else 8) * (p.n + p.k + 5 * p.m)
        if 2 * each > memory:
            raise DoesNotFitError(
                f"the check needs {format_size(round_up(2 * each))} for vectors of m = {p.m}, "
                f"n = {p.n}, k = {p.k}; memory (--host-memory) is {format_size(memory)}: give more",
                requested=2 * each,
                available=memory,
                missing=2 * each - memory,
            )
        return max(1, memory // 2 // max(1, each))

    def remember_old(self) -> None:
        """Compute C₀·x before C overwrites C₀; it takes m numbers for each vector."""
        if self._old is not None:
            for seed, count in self._groups:
                x = self._signs(seed, count)
                self._remembered.append(self._project(self._old, x))

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
            old = self._project(self._old, x)
        if old is not None:
            free |= old.bad_rows
        with np.errstate(all="ignore"):
            free |= ~(self._magnitude(ab, old) <= self._stored.max / 4)
            placement = Placement(must_rows, must_cols, free)
            c = self._project(self._c, x, placement=placement)
            # The remembered C₀·x belongs to the signs before some of them became 0.
            stale = bool(self._remembered) and bool(must_cols.any())
            self._judge(c, ab, old, must_rows | free | stale)

    def _product_with(self, x: NDArray[Any]) -> tuple[Projection, NDArray[np.bool_]]:
        """Return op(A)·(op(B)·x), and op(B)'s columns with NaN or Inf, whose signs become 0."""
        bx = self._project(self._product.b, x)
        bad_cols = bx.bad_cols
        if bad_cols.any():
            x[bad_cols] = 0.0
            bx = self._project(self._product.b, x)
        ab = self._project(self._product.a, bx.product, weights=bx.sizes)
        return replace(ab, additions=ab.additions + bx.additions), bad_cols

    def _magnitude(
        self, ab: Projection | None, old: Projection | None, least_alpha: float = 1.0
    ) -> NDArray[np.float64]:
        """Bound the norm of each row of |alpha|·|A|·|B| + |beta|·|C₀|.

        With `least_alpha` 1 this also bounds the sums before they are multiplied by alpha.
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
        """Return the bound of a correct C·x, exceeded with probability `FALSE_ALARM` at most."""
        p = self._product
        computed, stored = np.finfo(p.dtype), self._stored
        terms = self._growth * (p.k + 3)
        unit = terms * float(computed.eps) / 2
        if stored.eps > computed.eps:
            unit += float(stored.eps) / 2
        lost = float(max(computed.smallest_subnormal, stored.smallest_subnormal))
        underflow = terms * lost * max(1.0, abs(p.alpha)) * math.sqrt(p.n)
        spread = hoeffding(p.n, p.m * self.rounds)
        # 0.1 % covers the rounding of the norms.
        return 1.001 * spread * (unit * magnitude + underflow)

    def _own_rounding(
        self, c: Projection, ab: Projection | None, old: Projection | None
    ) -> NDArray[np.float64]:
        """Return the bound of the check's own rounding: ‖x‖₂ = √n, and γ ≤ additions·u."""
        p = self._product
        size = c.additions * c.sizes
        if ab is not None:
            size += (ab.additions + 4) * abs(p.alpha) * ab.sizes
        if old is not None:
            size += (old.additions + 2) * abs(p.beta) * old.sizes
        unit = self._growth * float(np.finfo(np.float64).eps) / 2
        return 1.001 * unit * math.sqrt(p.n) * size

    @property
    def _stored(self) -> np.finfo[Any]:
        """Limits of C's elements; integers of an exact product are exact in float64."""
        return np.finfo(computed_in(self._c.matrix.dtype))

    @property
    def _growth(self) -> float:
        return 3.0 if self._complex else 1.0
