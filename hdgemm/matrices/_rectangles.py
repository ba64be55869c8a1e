"""Objects with shape, dtype and rectangle indexing: HDF5 datasets, Zarr arrays, user classes."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from hdgemm.errors import DoesNotFitError, HdgemmError, MatrixIOError
from hdgemm.machine.limits import host_bytes
from hdgemm.matrices._conversion_copy import copy_converted
from hdgemm.matrices.base import Matrix
from hdgemm.matrices.generated import calling_function
from hdgemm.matrices.transfer import disk_pool
from hdgemm.options import Options
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.matrices.transfer import Bounce

#: Bytes that are taken from a store at a time, where one chunk is not more.
BLOCK_BYTES: Final = 4 << 20
#: Bytes of a chunk from which on several decoded at once would hold much memory.
_LARGE: Final = 16 << 20


def check_unit(nbytes: int, what: str, advice: str) -> None:
    """Raise `DoesNotFitError` where a part that is only read as a whole takes more than half of
    the default `host_memory`.
    """
    allowed = host_bytes(Options()) // 2
    if nbytes > allowed:
        raise DoesNotFitError(
            f"{what}, {format_size(nbytes)} each, which are read as a whole; half of host_memory "
            f"is {format_size(allowed)}: {advice}",
            requested=nbytes,
            available=allowed,
            missing=nbytes - allowed,
        )


class Rectangles(Protocol):
    """The interface of an operand; an output also takes ``store[r0:r1, c0:c1] = tile``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    @property
    def dtype(self) -> Any:
        """A dtype, or anything that `numpy.dtype` takes."""

    def __getitem__(self, key: tuple[slice, slice], /) -> Any:
        """Return a rectangle as an array, or anything that `numpy.asarray` takes."""


class RectangleMatrix(Matrix):
    """A store that implements `Rectangles`.

    Blocks are cut on the grid of chunks of `chunk` rows and columns, so that no chunk is decoded
    twice for one rectangle. `keeps`, for a matrix that is never written while it is open, keeps the
    chunk that was last read in part, so that the rest of it is not decoded again: one chunk of
    memory. `at_once` blocks are read at a time. Equal sources are the same elements. `home` is the
    file, or the folder of files, that holds all elements, if any. `lock` is held while the store
    reads or writes; None where reads may overlap. `flush` and `close` are called for the `Matrix`
    methods of these names.
    """

    def __init__(
        self,
        store: Any,
        *,
        name: str,
        chunk: tuple[int, int] | None = None,
        keeps: bool = False,
        at_once: int = 1,
        source: Hashable = None,
        home: Path | None = None,
        lock: AbstractContextManager[Any] | None = None,
        flush: Callable[[], None] | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self.name = name
        rows, cols = store.shape
        self.shape = int(rows), int(cols)
        self.chunk = chunk
        self.encoded = chunk is not None
        self._keeps = keeps and chunk is not None
        self._at_once = at_once
        self._kept: tuple[tuple[int, int], NDArray[Any]] | None = None
        self.home = home
        self.source = id(store) if source is None else source
        self.dtype = np.dtype(store.dtype)
        large = self.decoded_bytes > _LARGE
        #: Threads that read one large chunk decode it once.
        self._keeping: AbstractContextManager[Any] = threading.Lock() if large else nullcontext()
        self._reading: AbstractContextManager[Any] = lock or nullcontext()
        # Two tiles in one chunk must not be merged into it at once.
        self._writing: AbstractContextManager[Any] = lock or threading.Lock()
        self._flush, self._close = flush, close

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]``, converting to its dtype."""
        if self._keeps and (whole := self._chunk_around(row, col, out.shape)) is not None:
            with self._keeping:
                part = self._part_of_chunk(whole, row, col, out.shape)
            copy_converted(out, part)
            return
        blocks = list(self._blocks(row, col, out.shape))
        reading: list[Callable[[Bounce], None]] = [
            partial(self._read_blocks, row, col, out, blocks[first :: self._at_once])
            for first in range(min(self._at_once, len(blocks)))
        ]
        if len(reading) > 1:
            disk_pool().run(reading)
        else:
            self._read_blocks(row, col, out, blocks)

    def _read_blocks(
        self,
        row: int,
        col: int,
        out: NDArray[Any],
        blocks: list[tuple[slice, slice]],
        _: Bounce | None = None,
    ) -> None:
        for rows, cols in blocks:
            target = out[rows.start - row : rows.stop - row, cols.start - col : cols.stop - col]
            self._read_block(rows, cols, target)

    def _read_block(self, rows: slice, cols: slice, out: NDArray[Any]) -> None:
        copy_converted(out, self._fetch(rows, cols))

    def _fetch(self, rows: slice, cols: slice) -> NDArray[Any]:
        with self._named("read", rows, cols), self._reading, calling_function():
            block = np.asarray(self._store[rows, cols])
        expected = rows.stop - rows.start, cols.stop - cols.start
        if block.shape != expected:
            raise MatrixIOError(
                f"{self.name} gave {block.shape} elements for the rectangle {expected} at "
                f"[{rows.start}, {cols.start}]",
                path=self.name,
                offset=rows.start,
                length=block.nbytes,
            )
        return block

    def _chunk_around(
        self, row: int, col: int, extents: tuple[int, ...]
    ) -> tuple[slice, slice] | None:
        """Return the chunk that contains a rectangle; None for a whole chunk, and for several."""
        found = []
        for first, extent, step, end in zip(
            (row, col), extents, self.chunk or (1, 1), self.shape, strict=True
        ):
            start = first // step * step
            if not extent or first + extent > start + step:
                return None
            found.append(slice(start, min(end, start + step)))
        rows, cols = found
        is_whole = extents == (rows.stop - rows.start, cols.stop - cols.start)
        return None if is_whole else (rows, cols)

    def _part_of_chunk(
        self, chunk: tuple[slice, slice], row: int, col: int, extents: tuple[int, ...]
    ) -> NDArray[Any]:
        rows, cols = chunk
        place, kept = (rows.start, cols.start), self._kept
        if kept is None or kept[0] != place:
            # Drop the old chunk first: the memory limit counts one.
            self._kept = kept = None
            kept = place, self._fetch(rows, cols)
            self._kept = kept
        top, left = row - rows.start, col - cols.start
        part: NDArray[Any] = kept[1][top : top + extents[0], left : left + extents[1]]
        return part

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store `tile` at ``[row, col]``, converting to the stored dtype."""
        for rows, cols in self._blocks(row, col, tile.shape):
            source = tile[rows.start - row : rows.stop - row, cols.start - col : cols.stop - col]
            block = np.ascontiguousarray(source).astype(self.dtype, casting="same_kind", copy=False)
            with self._named("write", rows, cols), self._writing, calling_function():
                self._store[rows, cols] = block

    def flush(self) -> None:
        """Return when everything written is durable, as far as the store tells."""
        if self._flush is not None:
            self._flush()

    def close(self) -> None:
        """Close the file that was opened for this matrix."""
        if self._close is not None:
            self._close()
            self._close = None

    def _blocks(
        self, row: int, col: int, extents: tuple[int, ...]
    ) -> Iterator[tuple[slice, slice]]:
        """Cut a rectangle on the chunk grid into blocks of at most `BLOCK_BYTES`, or one chunk."""
        rows, cols = extents
        if not rows or not cols:
            return
        high, wide = self.chunk or (1, 1)
        most = max(1, BLOCK_BYTES // (self.dtype.itemsize * high * wide))
        across = min(most, -(-cols // wide) + 1)
        down = max(1, most // across)
        for top, bottom in _cuts(row, row + rows, high * down):
            for left, right in _cuts(col, col + cols, wide * across):
                yield slice(top, bottom), slice(left, right)

    @contextmanager
    def _named(self, verb: str, rows: slice, cols: slice) -> Iterator[None]:
        """Turn a store's error into one that names it and the rectangle."""
        try:
            yield
        except HdgemmError:
            raise
        except Exception as error:
            raise MatrixIOError(
                f"cannot {verb} rows {rows.start}:{rows.stop}, columns {cols.start}:{cols.stop} "
                f"of {self.name}: {str(error) or type(error).__name__}",
                path=self.name,
                offset=rows.start,
                length=rows.stop - rows.start,
            ) from error


def _cuts(first: int, last: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut ``first:last`` at the multiples of `step`."""
    while first < last:
        until = min(last, (first // step + 1) * step)
        yield first, until
        first = until
