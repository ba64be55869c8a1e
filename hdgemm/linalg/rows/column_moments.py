"""Means of the columns of a tall matrix, and norms of the columns less their means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from hdgemm.linalg.planning.rows import RowShape, RowWork
from hdgemm.linalg.rows.reducer import Reducer, RowBlock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


#: Bytes of rows that are centred at once, and rows at least.
_STRIP_BYTES: Final = 1 << 20
_LEAST_ROWS: Final = 64


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
        row_bytes = self.mean.itemsize * shape.n
        copies = 3 * row_bytes * min(shape.m, _strip_rows(row_bytes))
        return RowWork("means", "means", 4 * shape.m * shape.n, 3 * row_bytes + copies)

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return empty sums."""
        return type(self)(len(self.mean), self._dtype)

    def update(self, block: RowBlock) -> None:
        """Add a block."""
        step = _strip_rows(self.mean.nbytes)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for first in range(0, len(block.a), step):
                self._add(block.a[first : first + step])

    def _add(self, rows: NDArray[Any]) -> None:
        mean = rows.mean(axis=0, dtype=self.mean.dtype)
        centred = rows - mean
        # The mean of numbers near zero has small errors.
        rest = centred.mean(axis=0)
        centred -= rest
        self._join(len(rows), mean + rest, column_norms(centred))

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


def _strip_rows(row_bytes: int) -> int:
    """Return the rows that are centred at once: the C library keeps larger copies for each thread
    of a pass.
    """
    return max(_LEAST_ROWS, _STRIP_BYTES // max(1, row_bytes))


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
