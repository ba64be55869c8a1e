"""Matrices in chunks that lie uncompressed in files: read and written at their offsets."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.base import Matrix
from hdgemm.matrices.transfer import disk_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from hdgemm.matrices.filematrix import FileMatrix

    #: Returns chunk ``(i, j)``, opened as long as the stack lives; None where it was never stored.
    #: The flag asks for a chunk to write, which is made if it is missing.
    OpenChunk = Callable[[tuple[int, int], ExitStack, bool], FileMatrix | None]

#: Chunks that are moved, and their files open, at a time.
_BATCH: Final = 64


class ChunkFiles(Matrix):
    """A grid of row-major chunks of a matrix; chunks on the edge are stored whole.

    `fill` is the value of chunks that were never stored, and `open_chunk` finds a chunk. Equal
    sources are the same elements. `home` is the file, or the folder of files, that the chunks are
    in.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        chunk: tuple[int, int],
        fill: Any,
        open_chunk: OpenChunk,
        source: Hashable,
        *,
        home: Path,
        flush: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.chunk = chunk
        self.source = source
        self.home = home
        self._extents = chunk
        self._fill = fill
        self._open_chunk = open_chunk
        self._flush, self._close = flush, close

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]``, converting to its dtype."""
        self._move(row, col, out, write=False)

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store `tile` at ``[row, col]``, converting to the stored dtype."""
        self._move(row, col, tile, write=True)

    def flush(self) -> None:
        """Return when everything written is durable."""
        self._flush()

    def close(self) -> None:
        """Close the file of the chunks."""
        self._close()

    def _move(self, row: int, col: int, memory: NDArray[Any], *, write: bool) -> None:
        for batch in _batches(chunk_parts(self._extents, row, col, memory)):
            with ExitStack() as stack:
                pieces = []
                for index, (top, left), part in batch:
                    chunk = self._find(index, stack, write=write)
                    if chunk is None:  # never stored; a chunk to write is made
                        part[...] = self._fill
                    elif write:
                        pieces += chunk.write_pieces(top, left, part)
                    else:
                        pieces += chunk.read_pieces(top, left, part)
                disk_pool().run(pieces)

    def _find(self, index: tuple[int, int], stack: ExitStack, *, write: bool) -> FileMatrix | None:
        try:
            return self._open_chunk(index, stack, write)
        except InputError as error:
            # The matrix was complete when it was opened: its store fails during the run.
            raise MatrixIOError(
                f"chunk {index} of {self.name}: {error}", path=self.name, offset=0, length=0
            ) from error


def chunk_parts(
    chunk: tuple[int, int], row: int, col: int, memory: NDArray[Any]
) -> Iterator[tuple[tuple[int, int], tuple[int, int], NDArray[Any]]]:
    """Cut the memory of a rectangle at ``[row, col]`` on the grid of chunks.

    Yields each chunk's index, where in the chunk the rectangle's part starts, and the part.
    """
    high, wide = chunk
    rows, cols = memory.shape
    for i in range(row // high, -(-(row + rows) // high)):
        top, bottom = max(row, i * high), min(row + rows, (i + 1) * high)
        for j in range(col // wide, -(-(col + cols) // wide)):
            left, right = max(col, j * wide), min(col + cols, (j + 1) * wide)
            part = memory[top - row : bottom - row, left - col : right - col]
            yield (i, j), (top - i * high, left - j * wide), part


def _batches(parts: Iterator[Any]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for part in parts:
        batch.append(part)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    yield batch
