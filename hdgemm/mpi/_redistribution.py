"""Redistribution between strips of stored matrices and block-cyclic parts (MPI_Alltoallv).

In each turn every rank has one strip at most, of which each other rank gets, or gives, the rows and
columns that it holds. All ranks know all strips, so that only elements are sent. Strips within the
blocks of one row or column of the grid are read by its processes, and dealt among them alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.matrices.read_ahead import WriteBehind
from hdgemm.matrices.transfer import ALIGNMENT, aligned_bytes, array_at, copy_rows
from hdgemm.mpi._strips import Rectangle
from hdgemm.threads import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from hdgemm.mpi._part import Part
    from hdgemm.mpi._strips import Strips
    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.distribution import Axis


class _Messages:
    """Memory of the messages that one rank sends and receives, used again in each turn.

    First touches of new memory would take longer than the copies.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._memory = {"sent": np.empty(0, dtype), "found": np.empty(0, dtype)}

    def get(self, name: str, size: int) -> NDArray[Any]:
        """Return so many elements, whose content is undefined."""
        if self._memory[name].size < size:
            self._memory[name] = np.empty(size, self._dtype)
        return self._memory[name][:size]


_NOTHING: Final = Rectangle(0, 0, 0, 0)
#: Strips that are read at once, ahead of the one that is dealt: with one, the disk waited where an
#: exchange took longer than a read; three in turn were 0.01 to 0.03 of the disk's rate slower.
_READ_AHEAD: Final = 2
#: Strips, and buffers of messages, that a rank holds at a time: the strip that is redistributed,
#: the next ones or the last one, and what is sent and received of the first.
BUFFERS: Final = 3 + _READ_AHEAD
#: Rows that the fullest row or column of the grid may hold to read them alone, of their mean.
_FAIR: Final = 1.25
#: Height of a strip, in blocks, above which all ranks read strips: a block, read alone, would be a
#: short request. The column B of 8000 rows has 42 blocks, which took 2 to 5 ms.
_BLOCKS: Final = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stored matrix lies in a distributed one.

    Parameters
    ----------
    part
        This rank's part.
    first
        The column of the distributed matrix that the matrix's first one is.
    trans
        The stored matrix is the transpose.
    top
        The row of the distributed matrix that the matrix's first one is.
    """

    part: Part
    first: int = 0
    trans: bool = False
    top: int = 0

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """The axes of stored rows and of stored columns."""
        part = self.part
        return (part.cols, part.rows) if self.trans else (part.rows, part.cols)

    @property
    def view(self) -> NDArray[Any]:
        """Elements of this rank in the stored orientation."""
        return self.part.a.T if self.trans else self.part.a

    def spans(self, strip: Rectangle) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the rows and the columns of a strip, as positions on the axes."""
        low, left = (self.first, self.top) if self.trans else (self.top, self.first)
        row, col = strip.row + low, strip.col + left
        return (row, row + strip.rows), (col, col + strip.cols)

    def local(self, strip: Rectangle) -> NDArray[Any]:
        """Return this rank's elements of a strip, which lie together."""
        (rows, cols), (high, wide) = self.axes, self.spans(strip)
        return self.view[
            rows.below(high[0]) : rows.below(high[1]), cols.below(wide[0]) : cols.below(wide[1])
        ]

    @property
    def everyone(self) -> _Team:
        """All ranks."""
        rows, cols = self.part.rows, self.part.cols
        grid = [(row, col) for row in range(rows.processes) for col in range(cols.processes)]
        processes = [(col, row) if self.trans else (row, col) for row, col in grid]
        return _Team(self.part.grid, processes)

    @property
    def peers(self) -> _Team:
        """The ranks that hold the same stored rows as this one."""
        rows, cols = self.axes
        processes = [(rows.process, col) for col in range(cols.processes)]
        return _Team(self.part.column if self.trans else self.part.row, processes)

    def readers(self, strips: Strips) -> tuple[_Team, Iterator[Rectangle]]:
        """Return the ranks that read strips for each other, and their strips.

        These are the ranks that hold the same stored rows, where all have about as many to read and
        a block of rows is not short.
        """
        axis, low = self.axes[0], self.first if self.trans else self.top
        rows, span = strips.shape[0], (low, low + strips.shape[0])
        most = max(
            axis.below(span[1], each) - axis.below(low, each) for each in range(axis.processes)
        )
        short = axis.block * _BLOCKS < strips.height
        if strips.chunked or short or most * axis.processes > _FAIR * rows:
            return self.everyone, strips.rectangles()
        if axis.processes == 1:
            return self.peers, strips.rectangles()
        pieces = axis.pieces(axis.process, *span)
        return self.peers, strips.rectangles([(start - low, stop - low) for start, stop in pieces])


class _Team(NamedTuple):
    """Ranks that deal strips among themselves, and the place of each on both axes."""

    ranks: Communicator
    processes: list[tuple[int, int]]


def scatter(
    strips: Strips,
    place: Place,
    read: Callable[[Rectangle, NDArray[Any]], object],
    finish: Callable[[Rectangle, NDArray[Any]], object],
    phase: Callable[[int, int], int],
) -> None:
    """Read strips and deal their elements to the ranks that hold them.

    `read` fills an array with one strip; it is called in threads, so that the requests of the next
    strip follow at once, while `finish` changes and checks an earlier strip, and that is dealt.
    Both raise nothing: the other ranks wait for this one's elements. Each array begins at the
    `phase` of its first row and column, for direct requests.
    """
    dtype = place.part.a.dtype
    team, rectangles = place.readers(strips)
    rank = team.ranks.rank
    with WorkerPool(_READ_AHEAD, "hdgemm-read") as reader:
        nbytes = strips.elements * dtype.itemsize + ALIGNMENT
        memory = [aligned_bytes(nbytes) for _ in range(1 + _READ_AHEAD)]
        messages = _Messages(dtype)

        def begin(turn: int, strip: Rectangle) -> Any:
            shape, start = (strip.rows, strip.cols), phase(strip.row, strip.col)
            array = array_at(memory[turn % len(memory)], shape, dtype, start)
            return array, reader.submit(read, strip, array) if array.size else None

        turns = list(_turns(rectangles, team.ranks.size))
        begun = deque(begin(turn, now[rank]) for turn, now in enumerate(turns[:_READ_AHEAD]))
        for turn, now in enumerate(turns):
            array, reading = begun.popleft()
            if turn + _READ_AHEAD < len(turns):
                begun.append(begin(turn + _READ_AHEAD, turns[turn + _READ_AHEAD][rank]))
            if reading is not None:
                reading.result()
            if array.size:
                finish(now[rank], array)
            _deal(place, team, now, array, messages)


def gather(
    strips: Strips, place: Place, write: Callable[[Rectangle, NDArray[Any]], object]
) -> None:
    """Gather strips from the ranks that hold their elements, and write them.

    `write` is called with one strip at a time, in a thread, while the next one is gathered. It
    raises nothing: the other ranks wait for this one.
    """
    with WriteBehind() as writes:
        memory = [np.empty(strips.elements, place.part.a.dtype) for _ in range(2)]
        messages = _Messages(place.part.a.dtype)
        team = place.everyone
        for turn, now in enumerate(_turns(strips.rectangles(), team.ranks.size)):
            strip = now[team.ranks.rank]
            array = memory[turn % 2][: strip.rows * strip.cols].reshape(strip.rows, strip.cols)
            _collect(place, team, now, array, messages)
            if array.size:  # empty in the last turn only, where no strip is left
                writes.begin(partial(write, strip, array))


def _turns(strips: Iterable[Rectangle], ranks: int) -> Iterator[list[Rectangle]]:
    """Yield the strips of all ranks, turn by turn."""
    rectangles = iter(strips)
    while found := list(islice(rectangles, ranks)):
        yield found + [_NOTHING] * (ranks - len(found))


def _deal(
    place: Place,
    team: _Team,
    strips: Sequence[Rectangle],
    array: NDArray[Any],
    messages: _Messages,
) -> None:
    """Send the elements of this rank's strip, and store all that arrive."""
    ranks = team.ranks
    if ranks.size == 1:
        copy_rows(place.local(strips[0]), array)
        return
    rank, own = ranks.rank, strips[ranks.rank]
    cuts = [_cuts(place, own, process) for process in team.processes]
    counts = [0 if process == rank else _size(cut) for process, cut in enumerate(cuts)]
    sent = messages.get("sent", sum(counts))
    for part, cut in _parts(sent, counts, cuts):
        _copy(array, part, cut)
    targets = [place.local(strip) for strip in strips]
    sizes = [0 if process == rank else each.size for process, each in enumerate(targets)]
    found = messages.get("found", sum(sizes))
    ranks.exchange(sent, counts, sizes, found)
    _copy(array, targets[rank], cuts[rank])
    for target, part in zip(targets, _split(found, sizes), strict=True):
        if part.size:
            copy_rows(target, part.reshape(target.shape))


def _collect(
    place: Place,
    team: _Team,
    strips: Sequence[Rectangle],
    array: NDArray[Any],
    messages: _Messages,
) -> None:
    """Send this rank's elements of all strips, and fill in its own strip."""
    ranks = team.ranks
    if ranks.size == 1:
        np.copyto(array, place.local(strips[0]))
        return
    rank = ranks.rank
    sources = [place.local(strip) for strip in strips]
    sizes = [0 if process == rank else each.size for process, each in enumerate(sources)]
    sent = messages.get("sent", sum(sizes))
    for source, part in zip(sources, _split(sent, sizes), strict=True):
        if part.size:
            np.copyto(part.reshape(source.shape), source)
    cuts = [_cuts(place, strips[rank], process) for process in team.processes]
    counts = [0 if process == rank else _size(cut) for process, cut in enumerate(cuts)]
    found = messages.get("found", sum(counts))
    ranks.exchange(sent, sizes, counts, found)
    _copy(array, sources[rank], cuts[rank], back=True)
    for part, cut in _parts(found, counts, cuts):
        _copy(array, part, cut, back=True)


def _split(message: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    """Return the elements of each process, which lie one after the other."""
    return np.split(message, np.cumsum(sizes)[:-1])


#: Rows and columns of a strip that one rank holds, as slices of the strip.
_Cut = tuple[list[slice], list[slice]]


def _cuts(place: Place, strip: Rectangle, process: tuple[int, int]) -> _Cut:
    """Return the parts of a strip that a process holds."""
    rows, cols = (
        [slice(low - span[0], high - span[0]) for low, high in axis.pieces(own, *span)]
        for axis, own, span in zip(place.axes, process, place.spans(strip), strict=True)
    )
    return rows, cols


def _size(cut: _Cut) -> int:
    rows, cols = (sum(int(part.stop - part.start) for part in parts) for parts in cut)
    return rows * cols


def _parts(
    message: NDArray[Any], counts: Sequence[int], cuts: Sequence[_Cut]
) -> Iterator[tuple[NDArray[Any], _Cut]]:
    """Yield the elements of each other process as a matrix, and its parts of a strip."""
    for part, count, cut in zip(_split(message, counts), counts, cuts, strict=True):
        if count:
            yield part.reshape(sum(each.stop - each.start for each in cut[0]), -1), cut


def _copy(array: NDArray[Any], packed: NDArray[Any], cut: _Cut, *, back: bool = False) -> None:
    """Copy the parts of a strip to a matrix of them alone, or back."""
    rows, cols = cut
    top = 0
    for row in rows:
        high, left = row.stop - row.start, 0
        for col in cols:
            wide = col.stop - col.start
            piece = packed[top : top + high, left : left + wide]
            if back:
                array[row, col] = piece
            else:
                piece[:] = array[row, col]
            left += wide
        top += high
