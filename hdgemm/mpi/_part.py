"""One process's part of a matrix that is dealt block-cyclically to a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.mpi.distribution import Axis

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.variant import Variant

    Columns = NDArray[Any]

#: Bytes of a cache line.
_CACHE_LINE: Final = 64


@dataclass(frozen=True, slots=True)
class Part:
    """One process's part of [A|B]: column-major elements, and which rows and columns they are.

    `row` and `column` are the processes of the same row and column of the grid; `grid` are all,
    numbered along the rows.
    """

    a: Columns
    rows: Axis
    cols: Axis
    row: Communicator
    column: Communicator
    grid: Communicator

    @classmethod
    def allocate(
        cls, variant: Variant, world: Communicator, columns: int, dtype: DTypeLike
    ) -> Part:
        """Return the part of a matrix of N rows and so many columns, whose elements are undefined.

        Blocks of NB×NB are dealt to the grid in turn, in both directions (Jo et al., section 2.1).
        `world` has the first P·Q processes.
        """
        p, q = variant.grid
        my_row, my_col = variant.place(world.rank)
        rows = Axis(variant.n, variant.nb, p, my_row)
        cols = Axis(columns, variant.nb, q, my_col)
        # Columns an odd number of cache lines apart: their elements of a row lie in all cache sets.
        line = _CACHE_LINE // np.dtype(dtype).itemsize
        lead = (-(-rows.count // line) | 1) * line
        return cls(
            np.empty((lead, cols.count), dtype, "F")[: rows.count],
            rows,
            cols,
            world.split(my_row, my_col),
            world.split(p + my_col, my_row),
            world.split(0, my_row * q + my_col),
        )

    def columns(self, first: int, width: int) -> Columns:
        """Return the local columns of a panel that this process holds, all rows."""
        return self.a[:, self.cols.below(first) :][:, :width]

    def block(self, first: int, width: int) -> slice:
        """Return the local rows of a panel's diagonal block, on the processes that hold it."""
        place = self.rows.below(first)
        return slice(place, place + width)

    def has_rows(self, first: int) -> bool:
        """Say whether this process holds the rows of the block that begins at `first`."""
        return self.rows.owner(first) == self.rows.process

    def has_columns(self, first: int) -> bool:
        """Say whether this process holds the columns of the block that begins at `first`."""
        return self.cols.owner(first) == self.cols.process
