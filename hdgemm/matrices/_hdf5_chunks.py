"""Where the chunks of an HDF5 dataset lie in its file."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ChunkPlace(NamedTuple):
    """The bytes of a stored chunk."""

    offset: int
    nbytes: int


class ChunkTable:
    """The places of the chunks that are stored, in 32 bytes for each of them.

    A file may have millions of small chunks, whose descriptions by h5py take 400 bytes each.

    Parameters
    ----------
    dataset
        An `h5py.Dataset` with chunks, of two dimensions.

    Attributes
    ----------
    unfiltered
        Whether a chunk may be stored without a filter, which HDF5 knows. A file can say so of all
        chunks that the edge of the matrix cuts; h5py does not tell.
    """

    def __init__(self, dataset: Any) -> None:
        (rows, cols), (high, wide) = dataset.shape, dataset.chunks
        whole = math.prod(dataset.chunks) * dataset.dtype.itemsize
        found = tuple(array("q") for _ in range(4))
        self.unfiltered = False

        def note(chunk: Any) -> None:
            top, left = chunk.chunk_offset
            at_edge = top + high > rows or left + wide > cols
            self.unfiltered |= bool(chunk.filter_mask) or (chunk.size == whole and at_edge)
            values = top // high, left // wide, chunk.byte_offset, chunk.size
            for column, value in zip(found, values, strict=True):
                column.append(value)

        dataset.id.chunk_iter(note)
        columns = [np.array(column, np.int64) for column in found]
        order = np.lexsort((columns[1], columns[0]))
        self._rows, self._cols, self._offsets, self._sizes = (each[order] for each in columns)

    def find(self, index: tuple[int, int]) -> ChunkPlace | None:
        """Return the place of a chunk; None for one that was never stored."""
        row, col = index
        first, last = np.searchsorted(self._rows, (row, row + 1)).tolist()
        cols: NDArray[np.int64] = self._cols[first:last]
        place = first + int(np.searchsorted(cols, col))
        if place == last or self._cols[place] != col:
            return None
        return ChunkPlace(int(self._offsets[place]), int(self._sizes[place]))
