"""Panels with tournament pivoting over the processes of a column: one exchange for all pivots.

Each process proposes the rows that partial pivoting takes from its own rows of the panel. All
proposals are gathered, and every process plays the rest of the tournament by itself: a panel takes
log₂P messages one after the other, where partial pivoting takes so many for each column (Grigori,
Demmel, Xiang, "CALU: a communication optimal LU factorization algorithm", 2011).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.mpi._interchange import RowExchange
from hdgemm.mpi._panel import Panel
from hdgemm.pipeline.devices.interchanges import pivots_of
from hdgemm.tasks.tournament import Chosen, Proposal, divide, merge, propose

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.distribution import Axis

    Columns = NDArray[Any]


def factor_by_tournament(a: Columns, first: int, rows: Axis, column: Communicator) -> Panel:
    """Factor all local rows `a` of a panel in place, as `factor_panel` does.

    Elements of L may be larger than 1. With one process in a column, this is partial pivoting.
    """
    width = min(a.shape[1], rows.extent - first)
    start, end = rows.below(first), rows.below(first + width)
    panel = a[:, :width]
    chosen = choose_rows(panel[start:], rows.positions()[start:], column)
    pivots = pivots_of(chosen.rows - first) + first
    RowExchange(first, pivots, rows, column).apply(panel)
    top = np.asfortranarray(chosen.factors)
    if rows.owner(first) == rows.process:
        panel[start:end] = top
    divide(panel[end:], top)
    return Panel(first, pivots, top, panel[end:])


def choose_rows(own: Columns, positions: NDArray[np.int64], column: Communicator) -> Chosen:
    """Return the pivot rows of a panel of which this process has some rows, on all processes."""
    width = own.shape[1]
    dtype = np.dtype([("row", np.int64), ("values", own.dtype, (width,))])
    proposals = np.zeros(width, dtype)
    proposals["row"] = -1
    if len(own):
        best = propose(0, positions, own)[0]
        proposals["row"][: len(best.rows)] = best.rows
        proposals["values"][: len(best.rows)] = best.values
    found = column.gather(proposals.view(np.uint8)).view(dtype)
    return _play([_proposal(each) for each in found])


def _proposal(rows: NDArray[Any]) -> Proposal:
    used = rows[rows["row"] >= 0]
    return Proposal(0, used["row"], used["values"])


def _play(proposals: list[Proposal]) -> Chosen:
    """Return the rows that win a binary tree of proposals."""
    left = [each for each in proposals if len(each.rows)]
    while len(left) > 1:
        pairs = zip(left[::2], left[1::2], strict=False)
        left = [merge(*pair) for pair in pairs] + left[len(left) // 2 * 2 :]
    return Chosen.of(left[0])
