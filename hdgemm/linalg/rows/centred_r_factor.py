"""R of the rows of a tall matrix less their mean, in one pass: no copy of a block is made.

R of the centred rows is the trailing part of the R of [1 | A]. Let w rows have the mean m, and h
more rows B the mean m + d. A Householder step with the column of ones leaves the centred rows of B
and the row √(w·h/(w + h))·d. They have the same products as the rows ``B - (m + d) + √(w/(w +
h))·d``, and are reduced in their place, strip by strip: T. F. Chan, G. H. Golub, R. J. LeVeque,
Algorithms for computing the sample variance, 1983, for triangles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hdgemm.linalg.planning.rows import RowShape, RowWork, centred_work, strip_rows
from hdgemm.linalg.rows.r_factor import RFactor
from hdgemm.matrices.transfer import aligned_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hdgemm.linalg.rows.reducer import RowBlock


class CentredRFactor(RFactor):
    """R (n×n) of the rows of A less their mean, and the mean.

    Parameters
    ----------
    near
        n numbers in the dtype of the blocks, from which the mean differs by the spread of the
        columns: a sum of differences has small errors.
    """

    def __init__(self, near: NDArray[Any]) -> None:
        super().__init__(len(near), near.dtype)
        self._near = near
        self._count = 0
        self._step = np.zeros(len(near), np.result_type(near.dtype, np.float64))

    @property
    def mean(self) -> NDArray[Any]:
        """The mean of all rows, in double precision."""
        return self._near + self._step

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of the reduction."""
        return centred_work(shape)

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return the triangle of a matrix without rows."""
        return type(self)(self._near)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The triangle, the number of rows, and their mean."""
        return super().arrays | {"count": np.array(self._count), "step": self._step}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from recorded arrays."""
        super().restore(arrays)
        self._count, self._step = int(arrays["count"]), arrays["step"]

    def update(self, block: RowBlock) -> None:
        """Reduce more rows."""
        a, n = block.a, len(self._near)
        height = max(1, min(len(a), strip_rows(n, a.dtype)))
        centred, memory = (aligned_bytes(height * n * a.itemsize).view(a.dtype) for _ in range(2))
        for first in range(0, len(a), height):
            rows = a[first : first + height]
            self._reduce(self._centred(rows, centred[: rows.size].reshape(rows.shape)), memory)

    def _centred(self, rows: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """Count a strip and its mean; return the rows that R takes up, in `out`."""
        count, whole = len(rows), self._count + len(rows)
        near = self.mean.astype(out.dtype)
        np.subtract(rows, near, out=out)
        rest = (np.ones(count, out.dtype) @ out) / count
        step = (near - self._near) + rest - self._step
        out -= (rest - np.sqrt(self._count / whole) * step).astype(out.dtype)
        self._step = self._step + step * (count / whole)
        self._count = whole
        return out

    def combine(self, other: Self) -> None:
        """Reduce the triangle of other rows, which is overwritten."""
        if not other._count:
            return
        super().combine(other)
        whole = self._count + other._count
        step = other._step - self._step
        row = np.sqrt(self._count * (other._count / whole)) * step
        self._reflect(np.asfortranarray(row[np.newaxis].astype(self._near.dtype)))
        self._step = self._step + step * (other._count / whole)
        self._count = whole
