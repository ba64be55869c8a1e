"""TSQR: the R of a tall matrix in one pass over its rows, and Q^H·B beside it.

Each core reduces its own blocks of rows, one after the other, to one triangle (a flat tree); the
triangles of all cores are combined at the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from hdgemm.fortran import tpmqrt, tpqrt
from hdgemm.linalg.planning.rows import (
    REFLECTORS,
    RowShape,
    RowWork,
    triangle_flops,
    triangle_work,
)
from hdgemm.linalg.rows.column_moments import column_norms
from hdgemm.linalg.rows.products import RowMultiplier, product_work
from hdgemm.linalg.rows.reducer import Reducer, RowBlock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

#: Bytes of the rows that LAPACK reduces at once: they stay in a core's cache.
_STRIP_BYTES: Final = 2 << 20


def panel_width(n: int) -> int:
    """Return the columns of a block of reflectors; n/32 were fastest for n = 500 and n = 2000."""
    return min(REFLECTORS, max(16, n // 32), max(1, n))


def strips(a: NDArray[Any]) -> list[slice]:
    """Return the rows that LAPACK reduces at once."""
    n = a.shape[1]
    height = max(n // 2, _STRIP_BYTES // (max(1, n) * a.itemsize), 64)
    return [slice(first, min(first + height, len(a))) for first in range(0, len(a), height)]


class Triangle(Reducer):
    """R (n×n), Q^H·B (n×p), and the norm of the rest of each column of Q^H·B.

    Attributes
    ----------
    r, c, rest
        These three arrays; of a matrix with fewer than n rows, R ends with rows of zeros.
    """

    def __init__(self, r: NDArray[Any], c: NDArray[Any], rest: NDArray[Any]) -> None:
        self.r, self.c, self.rest = r, c, rest

    @classmethod
    def zeros(cls, n: int, p: int, dtype: np.dtype[Any]) -> Self:
        """Return the triangle of a matrix without rows."""
        real = np.zeros(0, dtype).real.dtype
        return cls(np.zeros((n, n), dtype, "F"), np.zeros((n, p), dtype, "F"), np.zeros(p, real))

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of TSQR."""
        return triangle_work(shape)

    def flops(self, rows: int, shape: RowShape) -> int:
        """Return the operations of rows that are reduced with a triangle."""
        return triangle_flops(rows, shape)

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return the triangle of a matrix without rows."""
        n, p = self.c.shape
        return self.zeros(n, p, self.r.dtype)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from recorded arrays."""
        self.r, self.c = (np.asfortranarray(arrays[name]) for name in "rc")
        self.rest = arrays["rest"]

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, for a checkpoint."""
        return {"r": self.r, "c": self.c, "rest": self.rest}

    def update(self, block: RowBlock) -> None:
        """Reduce more rows, which are overwritten."""
        self._absorb(block.a, block.b)

    def _absorb(self, a: NDArray[Any], b: NDArray[Any], *, triangle: bool = False) -> None:
        """Reduce more rows; `triangle` says that A is upper triangular."""
        n, p = self.c.shape
        t = np.zeros((panel_width(n), n), a.dtype, "F")
        work = np.empty(len(t) * max(n, p, 1), a.dtype)
        for rows in [slice(0, len(a))] if triangle else strips(a):
            tpqrt(self.r, a[rows], t, work, triangle=triangle)
            if p:
                tpmqrt(a[rows], t, self.c, b[rows], work, triangle=triangle)
                self.rest = np.hypot(self.rest, column_norms(b[rows]))

    def combine(self, other: Self) -> None:
        """Reduce the triangle of other rows, which is overwritten."""
        self._absorb(other.r, other.c, triangle=True)
        self.rest = np.hypot(self.rest, other.rest)


class ProjectedTriangle(RowMultiplier):
    """R of A·W (m×k), of which no row is stored.

    Parameters
    ----------
    w
        n×k, in the dtype of the blocks.
    """

    def __init__(self, w: NDArray[Any]) -> None:
        self._w = w
        self._triangle = Triangle.zeros(w.shape[1], 0, w.dtype)
        super().__init__()

    @property
    def r(self) -> NDArray[Any]:
        """R, k×k."""
        return self._triangle.r

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of the product and of TSQR."""
        product = product_work(shape, (self._w.shape[1],), np.dtype(shape.dtype))
        triangle = triangle_work(RowShape(shape.m, self._w.shape[1], 0, shape.dtype))
        return replace(
            triangle,
            name="TSQR of A·W",
            flops=product.flops + triangle.flops,
            shared_bytes=product.shared_bytes,
            core_bytes=triangle.core_bytes + product.core_bytes,
            row_bytes=self._w.shape[1] * self._w.itemsize,
            of_gemm=1.0,
            column_major=False,
            overwrites=False,
            device_tiles=product.device_tiles,
        )

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return the triangle of a matrix without rows."""
        return type(self)(self._w)

    def update(self, block: RowBlock) -> None:
        """Reduce the product of more rows."""
        product = np.empty((len(block.a), self._w.shape[1]), self._w.dtype, "F")
        self._multiply(block.a, [self._w], product)
        self._triangle.update(RowBlock(block.first, product, block.b[:, :0]))

    def combine(self, other: Self) -> None:
        """Reduce the triangle of other rows, which is overwritten."""
        self._triangle.combine(other._triangle)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the triangle."""
        return self._triangle.arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from recorded arrays."""
        self._triangle.restore(arrays)
