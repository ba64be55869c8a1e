"""Matrices of which only place, shape and dtype are known: a plan needs no more."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from hdgemm.matrices.base import Matrix, Operand

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hdgemm.matrices.location import Location


class PlannedMatrix(Matrix):
    """A row-major matrix that cannot be read or written; `pitch` bytes lie between its rows in a
    file, None in a Zarr store; `in_ram` says that it is an array.
    """

    def __init__(self, where: Location | None, shape: tuple[int, int], dtype: DTypeLike) -> None:
        self.name = "a new array" if where is None else str(where)
        self.home = None if where is None or where.url else where.path
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.in_ram = where is None
        self.chunk = None if where is None else where.kind.chunk(shape)
        in_rows = where is not None and self.chunk is None
        self.pitch = shape[1] * self.dtype.itemsize if in_rows else None

    def part(self, row: int, col: int, shape: tuple[int, int]) -> Matrix:
        """Return a rectangle, which is planned as well."""
        found = copy(self)
        found.shape, found.origin = shape, (self.origin[0] + row, self.origin[1] + col)
        return found


def planned_matrix(
    where: Location | None, shape: tuple[int, int], dtype: DTypeLike, order: str = "C"
) -> Operand:
    """Return the matrix that `create_matrix` would begin somewhere; nothing is created.

    None describes an array in memory; `order` ``"F"`` is for arrays and .npy files.
    """
    if (order if where is None else where.kind.order(where, order)) == "F":
        return Operand(PlannedMatrix(where, shape[::-1], dtype), True)
    return Operand(PlannedMatrix(where, shape, dtype))
