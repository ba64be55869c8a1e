"""C as a worker writes it: checksums of the pieces of a block; of one triangle of C too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.durable.fingerprint import as_stored, checksum
from hdgemm.errors import HdgemmError
from hdgemm.matrices.base import Matrix, Wrapper
from hdgemm.pipeline.tiles import Rect

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class BlockWriter(Wrapper):
    """C with the checksum of each rectangle that is written, in the order of C's rows.

    `may_write` returns before each write, or raises.
    """

    def __init__(self, matrix: Matrix, may_write: Callable[[], None]) -> None:
        super().__init__(matrix)
        self._may_write = may_write
        self._pieces: dict[Rect, int] = {}

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Write a rectangle and record its checksum."""
        stored = as_stored(tile, self.dtype)
        self._may_write()
        self.stored.write(row, col, stored)
        self._pieces[Rect(row, col, *tile.shape)] = checksum(stored)

    def flush(self) -> None:
        """Do nothing at the end of a run: `sync` follows while the next block is computed."""

    def sync(self) -> None:
        """Return when everything written is durable."""
        self.stored.flush()

    def pieces(self, block: Rect) -> list[tuple[Rect, int]]:
        """Return the rectangles written and their checksums; raise where they are not the block."""
        elements = sum(rect.area for rect in self._pieces)
        if elements != block.area:
            raise HdgemmError(f"{elements} of the {block.area} elements of {block} were stored")
        return sorted(self._pieces.items())


class TriangleWriter(BlockWriter):
    """One triangle of C, as C is stored; elements of the other one keep their values."""

    def __init__(self, matrix: Matrix, may_write: Callable[[], None], *, lower: bool) -> None:
        super().__init__(matrix, may_write)
        self._lower = lower

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Write the triangle's part of a rectangle; the checksum is of all of the rectangle."""
        rows, cols = tile.shape
        crosses = row < col + cols - 1 if self._lower else col < row + rows - 1
        if crosses:
            written = np.tri(rows, cols, row - col - (not self._lower), bool) == self._lower
            stored = np.empty((rows, cols), self.dtype)
            self.stored.read(row, col, stored)
            np.copyto(stored, tile, where=written, casting="same_kind")
            tile = stored
        super().write(row, col, tile)
