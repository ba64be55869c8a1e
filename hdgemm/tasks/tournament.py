"""LU with tournament pivoting: CALU (Donfack et al., section II.B).

TSLU chooses the pivot rows of a panel by a binary tree of row blocks: each block proposes the rows
that partial pivoting would take from it, and of two proposals one more factorisation takes the
better rows. The chosen rows move to the top, and the panel is factored without further pivoting.
A panel is read once to choose its pivots, where partial pivoting reads it once for each column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.fortran import gemm, getrf, laswp, trsm
from hdgemm.pipeline.devices.interchanges import permutation_of, pivots_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Columns of a panel: growth is bounded by a power of them, so they are not many.
PANEL: Final = 64
#: Rows of a leaf of the tree.
LEAF: Final = 1024


class Proposal(NamedTuple):
    """The rows that a part of a panel proposes as pivots.

    `rows` are their numbers in the order in which they become pivots, `values` the rows themselves,
    not yet eliminated; `level` is the height of the part's tree.
    """

    level: int
    rows: NDArray[np.int64]
    values: NDArray[Any]


class Chosen(NamedTuple):
    """The numbers of a panel's pivot rows, in the order in which they become pivots.

    `factors` are their LU factors, U and L without its unit diagonal; `zero` is the 1-based index
    of the first pivot that is exactly zero, 0 without one.
    """

    rows: NDArray[np.int64]
    factors: NDArray[Any]
    zero: int

    @classmethod
    def of(cls, last: Proposal) -> Chosen:
        """Factor the rows that the whole panel proposes."""
        proposal, factors, zero = propose(0, last.rows, last.values)
        return cls(proposal.rows, factors, zero)


class Tournament:
    """Takes the row blocks of a panel one after another, and chooses its pivot rows.

    Memory for one proposal of each level of the tree is held: a panel may be taller than RAM.
    """

    def __init__(self) -> None:
        self._proposals: list[Proposal] = []

    def add(self, first: int, block: NDArray[Any]) -> None:
        """Take the rows from `first` on; the block is copied."""
        if not len(block):
            return
        rows = np.arange(first, first + len(block))
        self._proposals.append(propose(0, rows, block)[0])
        while len(self._proposals) > 1 and len({p.level for p in self._proposals[-2:]}) == 1:
            self._merge()

    def _merge(self) -> None:
        """Replace the last two proposals by the better rows of both."""
        below, above = self._proposals.pop(), self._proposals.pop()
        self._proposals.append(merge(above, below))

    def choose(self) -> Chosen:
        """Return the pivot rows of all blocks taken; at least one row was."""
        while len(self._proposals) > 1:
            self._merge()
        return Chosen.of(self._proposals.pop())


def merge(above: Proposal, below: Proposal) -> Proposal:
    """Return the better rows of two proposals."""
    rows = np.concatenate([above.rows, below.rows])
    values = np.concatenate([above.values, below.values])
    return propose(above.level + 1, rows, values)[0]


def propose(
    level: int, rows: NDArray[np.int64], values: NDArray[Any]
) -> tuple[Proposal, NDArray[Any], int]:
    """Return the rows that partial pivoting takes, their factors, and its first zero pivot."""
    factors = np.array(values, order="F")
    pivots, zero = getrf(factors)
    order = permutation_of(pivots, len(rows))[: len(pivots)]
    return Proposal(level, rows[order], values[order]), factors[: len(pivots)], zero


def factor_tournament(
    a: NDArray[Any], panel: int = PANEL, leaf: int = LEAF
) -> tuple[NDArray[np.int64], int]:
    """Overwrite a column-major A (m×n) by its LU factors with tournament pivoting.

    A panel has `panel` columns, a block at the leaves of the tree `leaf` rows. Return interchanges
    and the first pivot that is exactly zero, as `hdgemm.fortran.getrf` does.
    """
    count = min(a.shape)
    pivots, zero = np.empty(count, np.int64), 0
    for first in range(0, count, panel):
        last = min(first + panel, count)
        rest = a[first:]
        found = choose_pivots(rest[:, first:last], leaf)
        pivots[first:last] = pivots_of(found.rows) + first
        laswp(rest, pivots[first:last] - first)
        rest[: last - first, first:last] = found.factors
        divide(rest[last - first :, first:last], found.factors)
        trsm(rest[: last - first, first:last], rest[: last - first, last:], unit=True)
        gemm(
            -1.0,
            rest[last - first :, first:last],
            rest[: last - first, last:],
            rest[last - first :, last:],
        )
        zero = zero or (found.zero and found.zero + first)
    return pivots, zero


def choose_pivots(panel: NDArray[Any], leaf: int = LEAF) -> Chosen:
    """Return the pivot rows of a panel in memory."""
    tournament = Tournament()
    for first in range(0, len(panel), leaf):
        tournament.add(first, panel[first : first + leaf])
    return tournament.choose()


def divide(a: NDArray[Any], factors: NDArray[Any]) -> None:
    """Overwrite A by A·U^-1; a column below a pivot that is exactly zero becomes zero."""
    u = np.array(factors[:, : len(factors)], order="F")
    diagonal = np.abs(u.diagonal())
    if (diagonal < np.finfo(u.dtype).tiny).any():
        # BLAS multiplies by inverses, which overflow: columns are scaled by powers of two first.
        exponents = np.where(diagonal == 0, 0, -np.frexp(diagonal)[1])
        for x in (u, a):
            for column, exponent in enumerate(exponents.tolist()):
                part = x[:, column].view(x.real.dtype)
                part[...] = np.ldexp(part, exponent)
        np.fill_diagonal(u, np.where(diagonal == 0, np.inf, u.diagonal()))
    trsm(u, a, side="R", lower=False)
