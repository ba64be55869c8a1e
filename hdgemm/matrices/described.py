"""Matrices of which only place, shape and dtype are known: a plan needs no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hdgemm.matrices.base import Matrix, Operand
from hdgemm.matrices.zarr_draft import chunk_of

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hdgemm.matrices.location import Location


class _Described(Matrix):
    """A row-major matrix that cannot be read or written."""

    def __init__(self, where: Location, shape: tuple[int, int], dtype: DTypeLike) -> None:
        self.name, self.home = str(where), where.path
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.chunk = chunk_of(shape) if where.format == "zarr" else None


def described(where: Location, shape: tuple[int, int], dtype: DTypeLike) -> Operand:
    """Return the matrix that `create_matrix` would begin somewhere; nothing is created."""
    if where.raw is not None and where.raw.order == "F":
        return Operand(_Described(where, shape[::-1], dtype), True)
    return Operand(_Described(where, shape, dtype))
