"""Row interchanges of the columns after a panel: the rows of U go to every process of a column.

HPL offers two exchanges with the same result: "long" sends each row of U around a ring, "binary
exchange" doubles what is known in each of log2(P) turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from hdgemm.fortran import laswp

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from hdgemm.mpi.communicator import Communicator, Request
    from hdgemm.mpi.distribution import Axis

    Columns = NDArray[Any]
    #: Rows by the process that holds them.
    Held = dict[int, Columns]
    T = TypeVar("T")
    #: Yields before each wait for a message, and returns a T.
    Waiting = Generator[None, None, T]


#: Columns whose rows are copied at a time: what is copied stays in a core's cache.
_PIECE: Final = 256


class Exchange(NamedTuple):
    """Where rows come from, once all interchanges of a panel are applied.

    `sources` are the rows that become rows ``first``, ``first + 1``, ... of U; `moved` has the rows
    below the block that change, and for each the row of the block that it becomes.
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


class RowExchange:
    """The interchanges of one panel, to be applied to any of the local columns.

    They are the `pivots` of the panel from row `first` on. This process holds `rows` of the matrix,
    the processes of `column` the others. `swap` is a key of `SWAPS`. With `split`, pieces are
    exchanged in pairs: the messages of one are on their way while rows are copied for the other (Jo
    et al., section 4.4).
    """

    def __init__(
        self,
        first: int,
        pivots: NDArray[np.int64],
        rows: Axis,
        column: Communicator,
        swap: str = "long",
        *,
        split: bool = False,
    ) -> None:
        self._pivots, self._first, self._start = pivots, first, rows.below(first)
        self._column, self._swap, self._together = column, SWAPS[swap], 2 if split else 1
        if column.size == 1:
            return
        sources, moved = compose(first, pivots)
        owners = sources // rows.block % rows.processes
        self._counts = np.bincount(owners, minlength=column.size)
        self._places = [np.flatnonzero(owners == process) for process in range(column.size)]
        self._mine = _places(sources[owners == rows.process].tolist(), rows)
        self._owner = rows.owner(first)
        goals: list[list[int]] = [[] for _ in range(column.size)]
        leaving: list[list[int]] = [[] for _ in range(column.size)]
        for row, held in moved.items():
            goals[rows.owner(row)].append(row)
            leaving[rows.owner(row)].append(held)
        self._arriving = _places(goals[rows.process], rows)
        self._leaving = [
            _places(each if self._owner == rows.process else [], rows) for each in leaving
        ]

    def apply(self, a: Columns) -> Columns:
        """Apply the interchanges to all rows of local columns, column-major; return the rows of U.

        They are a part of `a` on the process that holds the diagonal block.
        """
        start, width = self._start, len(self._pivots)
        if self._column.size == 1:
            laswp(a[start:], self._pivots - self._first)
            return a[start : start + width]
        u = a[start : start + width]
        if self._owner != self._column.rank:
            u = np.empty((width, a.shape[1]), a.dtype, order="F")
        pieces = [slice(left, left + _PIECE) for left in range(0, a.shape[1], _PIECE)]
        for first in range(0, len(pieces), self._together):
            _alternate(
                self._exchange(a[:, piece], u[:, piece], tag)
                for tag, piece in enumerate(pieces[first : first + self._together])
            )
        return u

    def _exchange(self, a: Columns, u: Columns, tag: int) -> Waiting[None]:
        """Exchange rows of a piece, and store the rows of U; `tag` marks its messages.

        Every process yields as soon as its first messages are on their way, and then in the same
        order as the others, so that none waits for one that waits.
        """
        sent = self._send_leaving(a, tag)
        mine = np.ascontiguousarray(a[self._mine])
        spread = self._swap(mine, self._counts, self._column, tag)
        next(spread)
        yield
        self._arrive(a, tag)
        held = yield from spread
        for request in sent:
            request.wait()
        for process, part in held.items():
            u[self._places[process]] = part

    def _send_leaving(self, a: Columns, tag: int) -> list[Request]:
        """Send the rows of the diagonal block that leave its owner to where they go."""
        return [
            self._column.send(np.ascontiguousarray(a[places]), process, tag)
            for process, places in enumerate(self._leaving)
            if process != self._column.rank and len(places)
        ]

    def _arrive(self, a: Columns, tag: int) -> None:
        """Store the rows of the diagonal block that come to this process, the owner or another."""
        if self._owner == self._column.rank:
            a[self._arriving] = a[self._leaving[self._owner]]
        elif len(self._arriving):
            arriving = np.empty((len(self._arriving), a.shape[1]), a.dtype)
            self._column.receive(arriving, self._owner, tag)
            a[self._arriving] = arriving


def _alternate(exchanges: Iterable[Waiting[None]]) -> None:
    """Run several exchanges in turn, each until it waits for a message.

    All processes of a column run the same exchanges in the same order.
    """
    running = list(exchanges)
    while running:
        running = [exchange for exchange in running if next(exchange, exchange) is None]


def _places(positions: Sequence[int], rows: Axis) -> NDArray[np.int64]:
    """Return the local numbers of rows that this process holds."""
    return np.array([rows.below(position) for position in positions], np.int64)


def _ring(
    mine: Columns, counts: NDArray[np.int64], column: Communicator, tag: int
) -> Waiting[Held]:
    """Pass rows around the ring of processes, each turn those that arrived in the last."""
    held, size, rank = {column.rank: mine}, column.size, column.rank
    for turn in range(size - 1):
        request = column.send(held[(rank - turn) % size], (rank + 1) % size, tag)
        source = (rank - turn - 1) % size
        held[source] = np.empty((counts[source], mine.shape[1]), mine.dtype)
        yield
        column.receive(held[source], (rank - 1) % size, tag)
        request.wait()
    return held


def _binary_exchange(
    mine: Columns, counts: NDArray[np.int64], column: Communicator, tag: int
) -> Waiting[Held]:
    """Exchange all rows known with a partner at distance 1, 2, 4, ...

    Processes beyond the largest power of two give their rows to a partner below it first, and
    receive the result last.
    """
    rank, held = column.rank, {column.rank: mine}
    power = 1 << (column.size.bit_length() - 1)

    def send(to: int) -> Request:
        return column.send(np.concatenate([held[process] for process in sorted(held)]), to, tag)

    def receive(source: int, processes: list[int]) -> None:
        sizes = [int(counts[process]) for process in processes]
        together = np.empty((sum(sizes), mine.shape[1]), mine.dtype)
        column.receive(together, source, tag)
        parts = np.split(together, np.cumsum(sizes)[:-1])
        held.update(zip(processes, parts, strict=True))

    if rank >= power:
        request = send(rank - power)
        yield
        receive(rank - power, list(range(column.size)))
        request.wait()
        return held
    if rank + power < column.size:
        yield
        receive(rank + power, [rank + power])
    for bit in range(power.bit_length() - 1):
        distance = 1 << bit
        partner = rank ^ distance
        group = range(partner // distance * distance, partner // distance * distance + distance)
        theirs = [process for process in range(column.size) if process % power in group]
        request = send(partner)
        yield
        receive(partner, theirs)
        request.wait()
    if rank + power < column.size:
        send(rank + power).wait()
    return held


#: How the rows of U are spread, by HPL's names.
SWAPS: Final[
    Mapping[str, Callable[[Columns, NDArray[np.int64], Communicator, int], Waiting[Held]]]
] = {
    "long": _ring,
    "binary-exchange": _binary_exchange,
}
