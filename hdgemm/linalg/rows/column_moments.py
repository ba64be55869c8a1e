"""Means of the columns of a tall matrix, and norms of the columns less their means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hdgemm.linalg.planning.rows import RowShape, RowWork
from hdgemm.linalg.rows.reducer import Reducer, RowBlock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


class ColumnMoments(Reducer):
    """Number of rows, mean, and norm about the mean of each column, by Chan's update.

    Attributes
    ----------
    count
        Rows.
    mean, norms
        n numbers each, in double precision.
    """

    def __init__(self, n: int, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self.count = 0
        self.mean = np.zeros(n, np.result_type(dtype, np.float64))
        self.norms = np.zeros(n)

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
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            mean = block.a.mean(axis=0, dtype=self.mean.dtype)
            centred = block.a - mean
            # The mean of numbers near zero has small errors.
            rest = centred.mean(axis=0)
            centred -= rest
            self._join(len(block.a), mean + rest, column_norms(centred))

    def _join(self, count: int, mean: NDArray[Any], norms: NDArray[Any]) -> None:
        whole = self.count + count
        step = mean - self.mean
        between = np.abs(step) * np.sqrt(self.count * count / whole)
        self.norms = np.hypot(np.hypot(self.norms, norms), between)
        self.mean = self.mean + step * (count / whole)
        self.count = whole

    def combine(self, other: Self) -> None:
        """Add the rows of another core."""
        if other.count:
            self._join(other.count, other.mean, other.norms)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Count, means and norms."""
        return {"count": np.array(self.count), "mean": self.mean, "norms": self.norms}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from recorded sums."""
        self.count = int(arrays["count"])
        self.mean, self.norms = arrays["mean"], arrays["norms"]


def column_norms(a: NDArray[Any]) -> NDArray[Any]:
    """Return the Euclidean norms of columns, which overflow only if the norms do."""
    sizes = np.abs(a)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        norms: NDArray[Any] = np.sqrt((sizes**2).sum(axis=0))
        known = np.finfo(sizes.dtype)
        usual = (norms > np.sqrt(known.tiny) / known.eps) & (norms < np.inf)
        if np.all(usual):
            return norms
        largest = sizes.max(axis=0, initial=0.0)
        sizes /= np.where(largest > 0, largest, 1)
        scaled: NDArray[Any] = np.where(usual, norms, largest * np.sqrt((sizes**2).sum(axis=0)))
    return scaled


def powers_of_two(sizes: NDArray[Any]) -> NDArray[Any]:
    """Return powers of two near positive numbers, which scale without rounding; 1 for others."""
    usable = np.isfinite(sizes) & (sizes > 0)
    exponents = np.frexp(np.where(usable, sizes, 1))[1] - 1
    found: NDArray[Any] = np.ldexp(np.ones_like(sizes), exponents)
    return found
