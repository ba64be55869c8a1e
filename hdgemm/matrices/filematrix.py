"""A row-major matrix in a file, moved by few, large, parallel requests.

A rectangle is cut into *lines*, contiguous in file and memory, or *bands*, groups of short rows
that are read with the gaps between them. Lines whose memory has the file's phase modulo 4096 move
without a copy, and so do whole rows of the file that lie apart in memory, where each fills blocks
of 4096 bytes. Everything else goes through a bounce buffer, where dtypes are converted too.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.base import Matrix
from hdgemm.matrices.files import MOST_ROWS
from hdgemm.matrices.transfer import (
    ALIGNMENT,
    BOUNCE_SIZE,
    SHORT,
    Bounce,
    copy_rows,
    disk_pool,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from numpy.typing import NDArray

    from hdgemm.matrices.files import BlockFile

    Piece = Callable[[Bounce], None]
    _MoveLine = Callable[["_Line", Bounce], None]
    _MoveRows = Callable[[int, int, NDArray[Any], Bounce], None]
    _MoveBand = Callable[[int, NDArray[Any], Bounce], None]

#: Bytes of one request; larger ones are no faster, smaller ones cost more cores.
REQUEST: Final = 8 << 20
#: Bytes that one thread moves in short rows, one request each, before another call has its turn.
_GROUP: Final = 1 << 20
#: Bytes a bounce buffer can take from any offset, its two ragged blocks allowed for.
_BOUNCE_SPAN: Final = BOUNCE_SIZE - 2 * ALIGNMENT
#: Gaps between rows of up to so many bytes are read and dropped: that takes as long as another
#: request (rows of 8 KiB: 17,000 requests/s, or 0.91 GB/s with their gaps).
GAP: Final = 48 << 10


class _Line(NamedTuple):
    """Elements that are contiguous in the file, from byte `offset`, and in memory."""

    offset: int
    memory: NDArray[Any]


class _Moves(NamedTuple):
    """How the pieces of a read, or of a write, are moved; see `FileMatrix._pieces`."""

    line: _MoveLine
    rows: _MoveRows
    band: _MoveBand
    scattered: _MoveBand
    gap: int


class FileMatrix(Matrix):
    """Rows × columns of a file, from byte `offset` on, rows `pitch` bytes apart (default: a row's
    own).

    `source` is the identity of the HDF5 dataset that has these elements. Closing the matrix closes
    the file where it is its `owner`.

    Raises `InputError` when the file is too short: `expected` and `found` in bytes. An own file is
    closed.
    """

    def __init__(
        self,
        file: BlockFile,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        offset: int = 0,
        pitch: int | None = None,
        *,
        source: Hashable = None,
        owner: bool = True,
    ) -> None:
        self.file = file
        self.path = self.home = file.path
        self.name = str(file.path)
        self.source = source
        self._owner = owner
        self.shape = shape
        self.dtype = dtype
        self.offset = offset
        self.pitch = shape[1] * dtype.itemsize if pitch is None else pitch
        found = file.size()
        if found < self.end:
            self.close()
            raise InputError(
                f"{file.path} is truncated: a {shape[0]}×{shape[1]} {dtype} matrix at byte "
                f"{offset} needs {self.end} bytes, the file has {found}",
                expected=self.end,
                found=found,
                path=str(file.path),
            )

    @property
    def end(self) -> int:
        """The first byte of the file after the last element."""
        rows, cols = self.shape
        if not rows or not cols:
            return self.offset
        return self.offset + (rows - 1) * self.pitch + cols * self.dtype.itemsize

    def _position(self, row: int, col: int) -> int:
        return self.offset + row * self.pitch + col * self.dtype.itemsize

    def phase(self, row: int, col: int) -> int:
        """Return this element's file offset modulo 4096."""
        return (self.offset + row * self.pitch + col * self.dtype.itemsize) % ALIGNMENT

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]``, converting to its dtype."""
        self._check(row, col, out.shape)
        disk_pool().run(self.read_pieces(row, col, out))

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store `tile` at ``[row, col]``, converting to the stored dtype."""
        self._check(row, col, tile.shape)
        disk_pool().run(self.write_pieces(row, col, tile))

    def flush(self) -> None:
        """Return when everything written is durable; fail if the file was cut short meanwhile."""
        self.file.flush()
        found = self.file.size()
        if found < self.end:
            raise MatrixIOError(
                f"{self.name} was cut short during the run: it has {found} of {self.end} bytes",
                path=self.name,
                offset=found,
                length=self.end - found,
            )

    def close(self) -> None:
        """Close the file, unless this matrix is a part of another."""
        if self._owner:
            self.file.close()

    def part(self, row: int, col: int, shape: tuple[int, int]) -> FileMatrix:
        """Return a rectangle: the same file at another offset."""
        # An empty rectangle after the last row would lie beyond the end of the file.
        offset = self._position(row, col) if min(shape) else self.offset
        found = FileMatrix(
            self.file, shape, self.dtype, offset, self.pitch, source=self.source, owner=False
        )
        found.name = self.name
        found.opened_from = self.opened_from
        found.origin = self.origin[0] + row * self.steps[0], self.origin[1] + col
        found.steps = self.steps
        return found

    def strided(self, rows: range, cols: range) -> FileMatrix | None:
        """Return every n-th row as a matrix whose rows are so far apart; None for other steps."""
        if not rows or not cols or rows.step < 1 or cols.step != 1:
            return None
        found = self.part(rows.start, cols.start, (rows[-1] + 1 - rows.start, len(cols)))
        found.shape = len(rows), len(cols)
        found.pitch = self.pitch * rows.step
        found.steps = self.steps[0] * rows.step, 1
        return found

    def _check(self, row: int, col: int, extents: tuple[int, ...]) -> None:
        rows, cols = extents
        if min(row, col) < 0 or row + rows > self.shape[0] or col + cols > self.shape[1]:
            raise InputError(
                f"a rectangle of {rows}×{cols} at [{row}, {col}] reaches outside the "
                f"{self.shape[0]}×{self.shape[1]} matrix {self.name}"
            )

    def read_pieces(self, row: int, col: int, out: NDArray[Any]) -> list[Piece]:
        """Cut a read into pieces for the disk pool, which may run beside other matrices' ones."""
        moves = _Moves(self._read_line, self._read_rows, self._read_band, self._read_scattered, GAP)
        return self._pieces(row, col, out, moves)

    def write_pieces(self, row: int, col: int, tile: NDArray[Any]) -> list[Piece]:
        """Cut a write into pieces for the disk pool."""
        moves = _Moves(
            self._write_line, self._write_rows, self._write_band, self._write_scattered, 0
        )
        return self._pieces(row, col, tile, moves)

    def _pieces(self, row: int, col: int, memory: NDArray[Any], moves: _Moves) -> list[Piece]:
        if not memory.size:
            return []
        rows, cols = memory.shape
        row_bytes = cols * self.dtype.itemsize
        if memory.flags.c_contiguous and (rows == 1 or row_bytes == self.pitch):
            whole = _Line(self._position(row, col), memory.reshape(-1))
            return [partial(moves.line, part) for part in self._cut(whole)]
        if row_bytes >= SHORT:
            parts = (part for one in self._lines(row, col, memory) for part in self._cut(one))
            return [partial(moves.line, part) for part in parts]
        if row_bytes == self.pitch and self._scattered(row, memory):
            count = -(-rows // min(MOST_ROWS, REQUEST // row_bytes))
            return [
                partial(moves.scattered, self._position(row + top, col), memory[top:bottom])
                for top, bottom in _even_cuts(rows, count)
            ]
        if self.pitch <= min(row_bytes + moves.gap, _BOUNCE_SPAN):
            count = -(-rows // (_BOUNCE_SPAN // self.pitch))
            return [
                partial(moves.band, self._position(row + top, col), memory[top:bottom])
                for top, bottom in _even_cuts(rows, count)
            ]
        count = min(rows, -(-rows * row_bytes // _GROUP))
        return [
            partial(moves.rows, row + top, col, memory[top:bottom])
            for top, bottom in _even_cuts(rows, count)
        ]

    def _write_rows(self, row: int, col: int, tile: NDArray[Any], bounce: Bounce) -> None:
        """Write short rows by a request each."""
        for line in self._lines(row, col, tile):
            self._write_line(line, bounce)

    def _read_rows(self, row: int, col: int, out: NDArray[Any], bounce: Bounce) -> None:
        """Read short rows by a direct request each; copy as many at once as the buffer holds."""
        rows, cols = out.shape
        nbytes = cols * self.dtype.itemsize
        # Each row lies in the buffer at the phase that it has in the file.
        pitch = self.pitch % ALIGNMENT + (2 - -nbytes // ALIGNMENT) * ALIGNMENT
        step = (BOUNCE_SIZE - ALIGNMENT) // pitch
        for top in range(0, rows, step):
            part = out[top : top + step]
            first = self._position(row + top, col)
            start = first % ALIGNMENT
            for i in range(len(part)):
                block = (start + i * pitch) // ALIGNMENT * ALIGNMENT
                self.file.read_around(first + i * self.pitch, nbytes, bounce.memory[block:])
            strides = pitch, self.dtype.itemsize
            copy_rows(part, np.ndarray(part.shape, self.dtype, bounce.memory.data, start, strides))

    def _lines(self, row: int, col: int, memory: NDArray[Any]) -> Iterator[_Line]:
        for i in range(len(memory)):
            yield _Line(self._position(row + i, col), memory[i])

    def _cut(self, line: _Line) -> list[_Line]:
        """Cut a line into requests, at file offsets that need no edges."""
        cap = REQUEST if self._in_place(line) else _BOUNCE_SPAN
        itemsize = self.dtype.itemsize
        start, count, found = 0, line.memory.size, []
        while start < count:
            offset = line.offset + start * itemsize
            ragged = offset % ALIGNMENT if offset % itemsize == 0 else 0
            stop = min(count, start + (cap - ragged) // itemsize)
            found.append(_Line(offset, line.memory[start:stop]))
            start = stop
        return found

    def _in_place(self, line: _Line) -> bool:
        """Return whether a line can be moved without conversion and without a bounce buffer."""
        memory = line.memory
        return (
            memory.dtype == self.dtype
            and memory.flags.c_contiguous
            and self.file.in_place(line.offset, memory)
        )

    def _scattered(self, row: int, memory: NDArray[Any]) -> bool:
        """Return whether whole rows, apart in memory, can be moved by one request for many."""
        return memory.dtype == self.dtype and self.file.scattered(self._position(row, 0), memory)

    def _read_scattered(self, offset: int, out: NDArray[Any], _: Bounce) -> None:
        self.file.read_rows(offset, out.view(np.uint8))

    def _write_scattered(self, offset: int, tile: NDArray[Any], _: Bounce) -> None:
        self.file.write_rows(offset, tile.view(np.uint8))

    def _read_line(self, line: _Line, bounce: Bounce) -> None:
        if self._in_place(line):
            self.file.read(line.offset, line.memory.view(np.uint8))
        else:
            self._read_band(line.offset, line.memory[np.newaxis], bounce)

    def _read_band(self, offset: int, out: NDArray[Any], bounce: Bounce) -> None:
        rows, cols = out.shape
        itemsize = self.dtype.itemsize
        nbytes = (rows - 1) * self.pitch + cols * itemsize
        start = self.file.read_around(offset, nbytes, bounce.memory)
        stored: NDArray[Any] = np.ndarray(
            out.shape, self.dtype, bounce.memory.data, start, (self.pitch, itemsize)
        )
        copy_rows(out, stored)

    def _write_line(self, line: _Line, bounce: Bounce) -> None:
        if self._in_place(line):
            self.file.write(line.offset, line.memory.view(np.uint8))
        else:
            self._write_band(line.offset, line.memory, bounce)

    def _write_band(self, offset: int, tile: NDArray[Any], bounce: Bounce) -> None:
        start = offset % ALIGNMENT
        span = bounce.memory[start : start + tile.size * self.dtype.itemsize]
        stored: NDArray[Any] = np.ndarray(tile.shape, self.dtype, span.data)
        np.copyto(stored, tile, casting="same_kind")
        self.file.write(offset, span)


def _even_cuts(rows: int, count: int) -> Iterator[tuple[int, int]]:
    """Cut rows into `count` bands of about equal height."""
    return itertools.pairwise(rows * band // count for band in range(count + 1))
