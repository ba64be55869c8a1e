"""Slabs in the output: stored in pieces, each with a checksum, also through a redo log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hdgemm.durable.fingerprint import as_stored, checksum, stored_checksum
from hdgemm.durable.pieces import begins_otherwise, sample
from hdgemm.pipeline.plan import Rect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from hdgemm.durable.redo_log import RedoLog
    from hdgemm.linalg.planning.slab import Columns
    from hdgemm.matrices.stored import StoredMatrix


class SlabStore:
    """The output of a durable factorisation.

    Parameters
    ----------
    output
        Opened for writing; slabs are columns of it.
    piece_bytes
        Bytes of a piece, at most, where a column is not longer.
    """

    def __init__(self, output: StoredMatrix, piece_bytes: int) -> None:
        operand = output.operand
        self._matrix, self._trans = operand.matrix, operand.trans
        self._rows = output.shape[0]
        self._piece_bytes = piece_bytes

    def pieces(self, place: Columns) -> list[Rect]:
        """Return the pieces of a slab, from left to right, as rectangles of the stored matrix."""
        first, last, top = place
        rows = self._rows - top
        step = max(1, self._piece_bytes // max(1, rows * self._matrix.dtype.itemsize))
        spans = [(col, min(step, last - col)) for col in range(first, last, step)]
        if self._trans:
            return [Rect(col, top, cols, rows) for col, cols in spans]
        return [Rect(top, col, rows, cols) for col, cols in spans]

    def redo_size(self, places: Iterable[Columns]) -> tuple[int, int]:
        """Return bytes and count of the slots of a redo log that holds any one of some slabs."""
        slabs = [self.pieces(place) for place in places]
        most = max((rect.rows * rect.cols for slab in slabs for rect in slab), default=0)
        return most * self._matrix.dtype.itemsize, max(map(len, slabs), default=0)

    def _tiles(self, place: Columns, array: NDArray[Any]) -> Iterator[tuple[Rect, NDArray[Any]]]:
        col = 0
        for rect in self.pieces(place):
            width = rect.rows if self._trans else rect.cols
            part = array[:, col : col + width]
            col += width
            yield rect, as_stored(part.T if self._trans else part, self._matrix.dtype)

    def write(self, place: Columns, array: NDArray[Any]) -> list[int]:
        """Store a slab durably; return the checksums of its pieces."""
        sums = []
        for rect, tile in self._tiles(place, array):
            sums.append(checksum(tile))
            self._matrix.write(rect.row, rect.col, tile)
        self._matrix.flush()
        return sums

    def keep(self, redo: RedoLog, place: Columns, array: NDArray[Any]) -> list[int]:
        """Put a slab durably into a redo log; return the checksums of its pieces."""
        sums = []
        for slot, (rect, tile) in enumerate(self._tiles(place, array)):
            sums.append(checksum(tile))
            redo.keep(slot, rect, tile, sums[-1])
        return sums

    def apply(self, redo: RedoLog, place: Columns, sums: Sequence[int]) -> None:
        """Write to the output what a redo log has of a slab."""
        wanted = dict(zip(self.pieces(place), sums, strict=True))
        for kept in redo.kept():
            if wanted.get(kept.rect) == kept.crc:
                rows = redo.load(kept, self._matrix.dtype)
                tile = rows.reshape(kept.rect.rows, kept.rect.cols)
                self._matrix.write(kept.rect.row, kept.rect.col, tile)
        self._matrix.flush()

    def whole(self, place: Columns, sums: Sequence[int]) -> bool:
        """Read a slab; return whether it has these checksums."""
        return all(
            stored_checksum(self._matrix, rect) == crc
            for rect, crc in zip(self.pieces(place), sums, strict=True)
        )

    def samples(self, places: Iterable[Columns]) -> list[list[int]]:
        """Return checksums of how pieces of some slabs begin now."""
        rects = [rect for place in places for rect in self.pieces(place)]
        return sample(self._matrix, rects) if rects else []

    def as_sampled(self, places: Iterable[Columns], samples: Iterable[Sequence[int]]) -> bool:
        """Return whether the pieces of some slabs begin as they did when they were sampled."""
        rects = [rect for place in places for rect in self.pieces(place)]
        return not begins_otherwise(self._matrix, samples, rects)
