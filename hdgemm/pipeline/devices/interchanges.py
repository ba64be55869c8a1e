"""Row interchanges as one permutation (XIPIV of Abdelfattah et al., section 6.6).

LAPACK's pivots are interchanges to be applied one after another, by which a row may move several
times. As a permutation, each row that changes is moved once, and all rows at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Moves(NamedTuple):
    """Row ``places[i]`` becomes what row ``sources[i]`` was; both hold the same rows."""

    places: NDArray[np.int64]
    sources: NDArray[np.int64]


def moves_of(pivots: NDArray[np.int64], first: int = 0) -> Moves:
    """Compose interchanges of row ``first + i`` with row ``pivots[i]``, for i = 0, 1, ...

    Rows that end where they began are left out; places ascend.
    """
    held: dict[int, int] = {}
    for row, pivot in enumerate(pivots.tolist(), start=first):
        here, there = held.get(row, row), held.get(pivot, pivot)
        held[row], held[pivot] = there, here
    pairs = sorted((place, source) for place, source in held.items() if place != source)
    places, sources = np.array(pairs, np.int64).reshape(-1, 2).T
    return Moves(places, sources)


def permutation_of(pivots: NDArray[np.int64], rows: int, first: int = 0) -> NDArray[np.int64]:
    """Return XIPIV: row i of the permuted matrix is row ``result[i]`` of the original one."""
    result = np.arange(rows)
    places, sources = moves_of(pivots, first)
    result[places] = sources
    return result


def pivots_of(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return interchanges that bring rows `rows` to the top, in this order.

    Tournament pivoting chooses all rows of a panel before any is moved; LAPACK's solvers take
    interchanges.
    """
    place_of: dict[int, int] = {}
    row_at: dict[int, int] = {}
    pivots = np.empty(len(rows), np.int64)
    for place, row in enumerate(rows.tolist()):
        found = place_of.get(row, row)
        moved = row_at.get(place, place)
        pivots[place] = found
        row_at[found], place_of[moved] = moved, found
        row_at[place], place_of[row] = row, place
    return pivots
