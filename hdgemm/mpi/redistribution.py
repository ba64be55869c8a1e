"""Redistribution between strips of stored matrices and block-cyclic parts (MPI_Alltoallv).

In each turn every rank has one strip at most, of which each other rank gets, or gives, the rows and
columns that it holds. All ranks know all strips, so that only elements are sent.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.matrices.transfer import copy_rows
from hdgemm.mpi.strips import Rectangle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from hdgemm.mpi.distribution import Axis
    from hdgemm.mpi.part import Part
    from hdgemm.mpi.strips import Strips

_NOTHING: Final = Rectangle(0, 0, 0, 0)
#: Strips, and buffers of messages, that a rank holds at a time: the strip that is redistributed,
#: the next or last one, and what is sent and received of the first.
BUFFERS: Final = 4


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

    def processes(self) -> list[tuple[int, int]]:
        """Return the place of each rank on both axes, by its number in the grid."""
        rows, cols = self.part.rows, self.part.cols
        grid = [(row, col) for row in range(rows.processes) for col in range(cols.processes)]
        return [(col, row) if self.trans else (row, col) for row, col in grid]


def scatter(
    strips: Strips, place: Place, read: Callable[[Rectangle, NDArray[Any]], object]
) -> None:
    """Read strips and deal their elements to the ranks that hold them.

    `read` fills an array with one strip; it is called in a thread, while the strip before is dealt.
    It raises nothing: the other ranks wait for its elements.
    """
    with ThreadPoolExecutor(1, "hdgemm-read") as reader:
        memory = [np.empty(strips.elements, place.part.a.dtype) for _ in range(2)]

        def begin(turn: int, strip: Rectangle) -> Any:
            array = memory[turn % 2][: strip.rows * strip.cols].reshape(strip.rows, strip.cols)
            return array, reader.submit(read, strip, array) if array.size else None

        rank, turns = place.part.grid.rank, list(_turns(strips, place.part.grid.size))
        begun = [begin(0, turns[0][rank])] if turns else []
        for turn, now in enumerate(turns):
            array, reading = begun.pop()
            if reading is not None:
                reading.result()
            if turn + 1 < len(turns):
                begun.append(begin(turn + 1, turns[turn + 1][rank]))
            _deal(place, now, array)


def gather(
    strips: Strips, place: Place, write: Callable[[Rectangle, NDArray[Any]], object]
) -> None:
    """Gather strips from the ranks that hold their elements, and write them.

    `write` is called with one strip at a time, in a thread, while the next one is gathered. It
    raises nothing: the other ranks wait for this one.
    """
    with ThreadPoolExecutor(1, "hdgemm-write") as writer:
        memory = [np.empty(strips.elements, place.part.a.dtype) for _ in range(2)]
        rank, writing = place.part.grid.rank, None
        for turn, now in enumerate(_turns(strips, place.part.grid.size)):
            strip = now[rank]
            array = memory[turn % 2][: strip.rows * strip.cols].reshape(strip.rows, strip.cols)
            _collect(place, now, array)
            if writing is not None:
                writing.result()
            writing = writer.submit(write, strip, array) if array.size else None


def _turns(strips: Strips, ranks: int) -> Iterator[list[Rectangle]]:
    """Yield the strips of all ranks, turn by turn."""
    rectangles = strips.rectangles()
    while found := list(islice(rectangles, ranks)):
        yield found + [_NOTHING] * (ranks - len(found))


def _deal(place: Place, strips: Sequence[Rectangle], array: NDArray[Any]) -> None:
    """Send the elements of this rank's strip, and store all that arrive."""
    grid = place.part.grid
    if grid.size == 1:
        copy_rows(place.local(strips[0]), array)
        return
    own = strips[grid.rank]
    cuts = [_cuts(place, own, process) for process in place.processes()]
    sent = np.empty(array.size, array.dtype)
    counts = [_copy(array, sent[at:], cut) for at, cut in _placed(cuts)]
    targets = [place.local(strip) for strip in strips]
    found = grid.exchange(sent, counts, [target.size for target in targets])
    at = 0
    for target in targets:
        copy_rows(target, found[at : at + target.size].reshape(target.shape))
        at += target.size


def _collect(place: Place, strips: Sequence[Rectangle], array: NDArray[Any]) -> None:
    """Send this rank's elements of all strips, and fill in its own strip."""
    grid = place.part.grid
    if grid.size == 1:
        np.copyto(array, place.local(strips[0]))
        return
    locals_ = [place.local(strip) for strip in strips]
    sent = np.empty(sum(each.size for each in locals_), array.dtype)
    at = 0
    for each in locals_:
        np.copyto(sent[at : at + each.size].reshape(each.shape), each)
        at += each.size
    cuts = [_cuts(place, strips[grid.rank], process) for process in place.processes()]
    counts = [_size(cut) for cut in cuts]
    found = grid.exchange(sent, [each.size for each in locals_], counts)
    for start, cut in _placed(cuts):
        _copy(array, found[start:], cut, back=True)


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


def _placed(cuts: Sequence[_Cut]) -> Iterator[tuple[int, _Cut]]:
    """Yield where the elements of each process begin in a message, and its parts."""
    at = 0
    for cut in cuts:
        yield at, cut
        at += _size(cut)


def _copy(array: NDArray[Any], message: NDArray[Any], cut: _Cut, *, back: bool = False) -> int:
    """Copy the parts of a strip to the beginning of a message, or back; return their elements."""
    size = _size(cut)
    if not size:
        return 0
    rows, cols = cut
    packed = message[:size].reshape(sum(part.stop - part.start for part in rows), -1)
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
    return size
