"""Means of the columns of a tall matrix, and the sums of squares about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hdgemm.linalg.planning.rows import RowShape, RowWork
from hdgemm.linalg.rows.reducer import Reducer, RowBlock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


class ColumnMoments(Reducer):
    """Number of rows, mean and centred sum of squares of each column, by Chan's update.

    Attributes
    ----------
    count
        Rows.
    mean, squares
        n numbers each, in double precision.
    """

    def __init__(self, n: int, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self.count = 0
        self.mean = np.zeros(n, np.result_type(dtype, np.float64))
        self.squares = np.zeros(n)

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of sums, which the disk or the memory limits."""
        wide = self.mean.itemsize
        flops = 4 * shape.m * shape.n
        return RowWork("means", "means", flops, 3 * wide * shape.n, row_bytes=2 * wide * shape.n)

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return empty sums."""
        return type(self)(len(self.mean), self._dtype)

    def update(self, block: RowBlock) -> None:
        """Add a block."""
        if not len(block.a):
            return
        mean = block.a.mean(axis=0, dtype=self.mean.dtype)
        centred = block.a - mean
        # The mean of numbers near zero has small errors.
        rest = centred.mean(axis=0)
        squares = (np.abs(centred - rest) ** 2).sum(axis=0)
        self._join(len(block.a), mean + rest, squares)

    def _join(self, count: int, mean: NDArray[Any], squares: NDArray[Any]) -> None:
        whole = self.count + count
        step = mean - self.mean
        self.squares += squares + np.abs(step) ** 2 * (self.count * count / whole)
        self.mean = self.mean + step * (count / whole)
        self.count = whole

    def combine(self, other: Self) -> None:
        """Add the rows of another core."""
        if other.count:
            self._join(other.count, other.mean, other.squares)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Count, means and sums of squares."""
        return {"count": np.array(self.count), "mean": self.mean, "squares": self.squares}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from recorded sums."""
        self.count = int(arrays["count"])
        self.mean, self.squares = arrays["mean"], arrays["squares"]
