"""Row interchanges of the columns after a panel: the rows of U go to every process of a column.

HPL offers two exchanges with the same result: "long" sends each row of U around a ring, "binary
exchange" doubles what is known in each of log2(P) turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hdgemm.fortran import laswp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from hdgemm.hpl.communicator import Communicator, Request
    from hdgemm.hpl.distribution import Axis

    Columns = NDArray[np.floating]
    #: Rows by the process that holds them.
    Held = dict[int, Columns]


class Exchange(NamedTuple):
    """Where rows come from, once all interchanges of a panel are applied.

    Parameters
    ----------
    sources
        The rows that become rows ``first``, ``first + 1``, ... of U.
    moved
        Rows below the block that change, and for each the row of the block that it becomes.
    """

    sources: NDArray[np.int64]
    moved: dict[int, int]


def compose(first: int, pivots: NDArray[np.int64]) -> Exchange:
    """Return the permutation that the interchanges of a panel amount to."""
    content: dict[int, int] = {}
    for place, pivot in enumerate(pivots.tolist(), start=first):
        here, there = content.get(place, place), content.get(pivot, pivot)
        content[place], content[pivot] = there, here
    end = first + len(pivots)
    sources = np.array([content[row] for row in range(first, end)], np.int64)
    return Exchange(sources, {row: held for row, held in content.items() if row >= end})


def interchange(
    a: Columns,
    first: int,
    pivots: NDArray[np.int64],
    rows: Axis,
    column: Communicator,
    swap: str = "long",
) -> Columns:
    """Apply a panel's interchanges to local columns, and return the rows of U.

    The rows of the diagonal block are not stored: the caller does, once it has solved for U.

    Parameters
    ----------
    a
        All local rows of the columns, column-major.
    first, pivots
        The panel's first row, and its interchanges.
    column
        The processes that hold the other rows.
    swap
        A key of `SWAPS`.
    """
    start = rows.below(first)
    if column.size == 1:
        laswp(a[start:], pivots - first)
        return a[start : start + len(pivots)]
    exchange = compose(first, pivots)
    owners = exchange.sources // rows.block % rows.processes
    own = exchange.sources[owners == rows.process]
    mine = np.ascontiguousarray(a[[rows.below(row) for row in own.tolist()]])
    _move(a, exchange.moved, rows.owner(first), rows, column)
    counts = np.bincount(owners, minlength=column.size)
    held = SWAPS[swap](mine, counts, column)
    u = np.empty((len(pivots), a.shape[1]), a.dtype, order="F")
    for process, part in held.items():
        u[owners == process] = part
    return u


def _move(
    a: Columns, moved: Mapping[int, int], owner: int, rows: Axis, column: Communicator
) -> None:
    """Send the rows of the diagonal block that leave it from their owner to where they go."""
    sent = []
    by_process = {
        process: [pair for pair in moved.items() if rows.owner(pair[0]) == process]
        for process in range(column.size)
    }
    own = by_process[rows.process]
    places = [rows.below(row) for row, _ in own]
    arriving = np.empty((len(own), a.shape[1]), a.dtype)
    if owner == rows.process:
        for process, pairs in by_process.items():
            leaving = np.ascontiguousarray(a[[rows.below(row) for _, row in pairs]])
            if process == owner:
                arriving = leaving
            elif pairs:
                sent.append(column.send(leaving, process))
    elif own:
        column.receive(arriving, owner)
    if own:
        a[places] = arriving
    for request in sent:
        request.wait()


def _ring(mine: Columns, counts: NDArray[np.int64], column: Communicator) -> Held:
    """Pass rows around the ring of processes, each turn those that arrived in the last."""
    held, size, rank = {column.rank: mine}, column.size, column.rank
    for turn in range(size - 1):
        request = column.send(held[(rank - turn) % size], (rank + 1) % size)
        source = (rank - turn - 1) % size
        held[source] = np.empty((counts[source], mine.shape[1]), mine.dtype)
        column.receive(held[source], (rank - 1) % size)
        request.wait()
    return held


def _binary_exchange(mine: Columns, counts: NDArray[np.int64], column: Communicator) -> Held:
    """Exchange all rows known with a partner at distance 1, 2, 4, ...

    Processes beyond the largest power of two give their rows to a partner below it first, and
    receive the result last.
    """
    rank, held = column.rank, {column.rank: mine}
    power = 1 << (column.size.bit_length() - 1)

    def send(to: int) -> Request:
        return column.send(np.concatenate([held[process] for process in sorted(held)]), to)

    def receive(source: int, processes: list[int]) -> None:
        sizes = [int(counts[process]) for process in processes]
        together = np.empty((sum(sizes), mine.shape[1]), mine.dtype)
        column.receive(together, source)
        parts = np.split(together, np.cumsum(sizes)[:-1])
        held.update(zip(processes, parts, strict=True))

    if rank >= power:
        send(rank - power).wait()
        receive(rank - power, list(range(column.size)))
        return held
    if rank + power < column.size:
        receive(rank + power, [rank + power])
    for bit in range(power.bit_length() - 1):
        distance = 1 << bit
        partner = rank ^ distance
        group = range(partner // distance * distance, partner // distance * distance + distance)
        theirs = [process for process in range(column.size) if process % power in group]
        request = send(partner)
        receive(partner, theirs)
        request.wait()
    if rank + power < column.size:
        send(rank + power).wait()
    return held


#: How the rows of U are spread, by HPL's names.
SWAPS: Final[Mapping[str, Callable[[Columns, NDArray[np.int64], Communicator], Held]]] = {
    "long": _ring,
    "binary-exchange": _binary_exchange,
}
