"""Compressed chunks of a local Zarr array, read past the page cache and decoded one at a time.

zarr itself reads through the page cache, and decodes in threads of its own, whose allocators keep
freed memory: a product of order 8192 held 427 MB, one chunk at a time. Here it held 407, with two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.matrices._chunkfiles import chunk_parts
from hdgemm.matrices.files import BlockFile
from hdgemm.matrices.transfer import ALIGNMENT, aligned_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray


class CompressedChunks:
    """The rectangles of a `zarr.Array`; it writes them by zarr.

    `find` returns the file of a chunk, None for one that was never stored. `decode` returns the
    bytes of one: elements of the dtype `stored`.
    """

    def __init__(
        self,
        array: Any,
        stored: np.dtype[Any],
        find: Callable[[tuple[int, int]], Path | None],
        decode: Callable[[NDArray[np.uint8]], Any],
    ) -> None:
        self._array = array
        self._chunk: tuple[int, int] = tuple(array.chunks)
        self._stored, self._find, self._decode = stored, find, decode
        self.shape: tuple[int, ...] = array.shape
        self.dtype = np.dtype(array.dtype)

    def __getitem__(self, key: tuple[slice, slice], /) -> NDArray[Any]:
        rows, cols = key
        high, wide = self._chunk
        i, j = rows.start // high, cols.start // wide
        if rows.stop <= (i + 1) * high and cols.stop <= (j + 1) * wide:
            top, left = i * high, j * wide
            return self._decoded((i, j))[
                rows.start - top : rows.stop - top, cols.start - left : cols.stop - left
            ]
        found = np.empty((rows.stop - rows.start, cols.stop - cols.start), self.dtype)
        for index, (top, left), part in chunk_parts(self._chunk, rows.start, cols.start, found):
            height, width = part.shape
            part[...] = self._decoded(index)[top : top + height, left : left + width]
        return found

    def __setitem__(self, key: tuple[slice, slice], tile: NDArray[Any], /) -> None:
        self._array[key] = tile

    def _decoded(self, index: tuple[int, int]) -> NDArray[Any]:
        path = self._find(index)
        if path is None:
            fill = self._array.fill_value
            return np.broadcast_to(self.dtype.type(0 if fill is None else fill), self._chunk)
        elements = np.frombuffer(self._decode(_content(path)), self._stored)
        return elements.reshape(self._chunk)


def _content(path: Path) -> NDArray[np.uint8]:
    file = BlockFile(path)
    try:
        nbytes = file.size()
        memory = aligned_bytes(nbytes + 2 * ALIGNMENT)
        start = file.read_around(0, nbytes, memory)
    finally:
        file.close()
    return memory[start : start + nbytes]
