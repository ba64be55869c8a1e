"""Compressed chunks in local files, read past the page cache and decoded one at a time.

zarr itself reads through the page cache, and decodes in threads of its own, whose allocators keep
freed memory: a product of order 8192 held 427 MB, one chunk at a time. Here it held 407, with two.
h5py decodes chunks of any size, for one thread at a time.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.matrices._chunkfiles import chunk_parts
from hdgemm.matrices._conversion_copy import copy_converted
from hdgemm.matrices._rectangles import RectangleMatrix
from hdgemm.matrices.transfer import ALIGNMENT, aligned_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from hdgemm.matrices._chunk_decoders import Decode
    from hdgemm.matrices.files import BlockFile

#: Chunks that are read and decoded at once.
_AT_ONCE: Final = 2
#: Bytes of the buffers of a thread that are kept for its next chunk, at most.
_KEPT_BYTES: Final = 16 << 20


class StoredChunk(NamedTuple):
    """The bytes of an encoded chunk in a file."""

    file: BlockFile
    offset: int
    nbytes: int


class _Buffers:
    """Memory in which one thread reads a chunk and decodes it.

    New memory for each chunk would cost a product of order 8192 a fiftieth of its time: the system
    clears pages, and interrupts the threads that multiply when it takes them back.
    """

    def __init__(self) -> None:
        self._stored = self._decoded = aligned_bytes(0)

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return len(self._stored) + len(self._decoded)

    def memory(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory for the bytes of a decoded chunk."""
        self._decoded = _grown(self._decoded, nbytes)
        return self._decoded[:nbytes]

    def content(self, chunk: StoredChunk) -> NDArray[np.uint8]:
        """Return the bytes of a chunk as it is stored."""
        self._stored = _grown(self._stored, chunk.nbytes + 2 * ALIGNMENT)
        start = chunk.file.read_around(chunk.offset, chunk.nbytes, self._stored)
        return self._stored[start : start + chunk.nbytes]


def _grown(memory: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    return memory if len(memory) >= nbytes else aligned_bytes(nbytes)


#: Buffers that no thread uses now. All matrices share them, since the operands of a product are
#: read in turn. They are freed together with any of the matrices.
_IDLE: Final[deque[_Buffers]] = deque(maxlen=_AT_ONCE)


class CompressedChunks(RectangleMatrix):
    """A `zarr.Array` or an `h5py.Dataset` that is read here, and written by its library.

    `find` is a context of a chunk, of None for one that was never stored and has the value `fill`.
    Decoded chunks have elements of the dtype `stored`. The others are the parameters of
    `RectangleMatrix`.
    """

    def __init__(
        self,
        array: Any,
        stored: np.dtype[Any],
        fill: Any,
        find: Callable[[tuple[int, int]], AbstractContextManager[StoredChunk | None]],
        decode: Decode,
        **parameters: Any,
    ) -> None:
        self._whole: tuple[int, int] = tuple(array.chunks)
        self._fill = fill
        self._stored, self._find, self._decode = stored, find, decode
        super().__init__(array, at_once=_AT_ONCE, **parameters)
        weakref.finalize(self, _IDLE.clear)

    def _fetch(self, rows: slice, cols: slice) -> NDArray[Any]:
        shape = rows.stop - rows.start, cols.stop - cols.start
        # In pages: the C library would keep freed blocks for each thread that reads.
        memory = aligned_bytes(math.prod(shape) * self.dtype.itemsize)
        found: NDArray[Any] = memory.view(self.dtype).reshape(shape)
        self._read_block(rows, cols, found)
        return found

    def _read_block(self, rows: slice, cols: slice, out: NDArray[Any]) -> None:
        with self._named("read", rows, cols), _buffers() as buffers:
            for index, (top, left), part in chunk_parts(self._whole, rows.start, cols.start, out):
                with self._find(index) as stored:
                    if stored is None:
                        part[...] = self._fill
                        continue
                    if self._takes_whole(part):
                        memory = part.reshape(-1).view(np.uint8)
                    else:
                        memory = buffers.memory(math.prod(self._whole) * self._stored.itemsize)
                    chunk = self._decoded(buffers.content(stored), memory, stored)
                if not np.may_share_memory(chunk, part):
                    height, width = part.shape
                    copy_converted(part, chunk[top : top + height, left : left + width])

    def _takes_whole(self, part: NDArray[Any]) -> bool:
        """Return whether a chunk can be decoded into the memory of a result."""
        same = part.shape == self._whole and part.dtype == self._stored
        return same and part.flags.c_contiguous

    def _decoded(
        self, content: NDArray[np.uint8], memory: NDArray[np.uint8], chunk: StoredChunk
    ) -> NDArray[Any]:
        try:
            decoded = self._decode(content, memory)
        except Exception as error:
            place = f"{chunk.file.path}, byte {chunk.offset}" if chunk.offset else chunk.file.path
            raise ValueError(f"{place}: {str(error) or type(error).__name__}") from error
        return np.frombuffer(decoded, self._stored).reshape(self._whole)


@contextmanager
def _buffers() -> Iterator[_Buffers]:
    try:
        buffers = _IDLE.pop()
    except IndexError:
        buffers = _Buffers()
    yield buffers
    if buffers.nbytes <= _KEPT_BYTES:
        _IDLE.append(buffers)
