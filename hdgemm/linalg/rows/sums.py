"""Sums over the rows of a tall matrix: the Gram matrix, means and co-moments, norms."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import numpy as np

from hdgemm.fortran import gemm, rank_k
from hdgemm.linalg.planning.device_tiles import gram_tiles
from hdgemm.linalg.planning.rows import RowShape, RowWork
from hdgemm.linalg.rows.reducer import Reducer, RowBlock
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hdgemm.linalg.rows._device_lane import DeviceLane, DeviceSum

#: Bytes of the absolute values that are added at once: they stay in the cache.
_STRIP_BYTES: Final = 256 << 10
#: Time of one core for each element that is centred and summed, besides the rank update (measured:
#: 10 ns with 100 columns).
_CENTRING_SECONDS: Final = 1.2e-8
#: Norms of one pass: the Frobenius norm, largest and smallest sums of the absolute values of a
#: column or a row, the largest absolute value.
NormName: TypeAlias = Literal["fro", "columns", "rows", "max"]


def gram_work(shape: RowShape) -> RowWork:
    """Return the work of the lower triangle of A^H·A."""
    wide = np.result_type(shape.dtype, np.float64).itemsize
    itemsize = np.dtype(shape.dtype).itemsize
    return RowWork(
        name="A^H·A",
        result="A^H·A",
        flops=flops_per_multiply_add(shape.dtype) * shape.m * shape.n * (shape.n + 1) // 2,
        core_bytes=shape.n**2 * (2 * wide + itemsize),
        column_major=True,
        device_tiles=gram_tiles(shape.n, None, conjugates=np.dtype(shape.dtype).kind == "c"),
    )


def moments_work(shape: RowShape) -> RowWork:
    """Return the work of `Moments` for rows of [1 | A]."""
    return replace(
        gram_work(shape._replace(n=shape.n - 1, made=0)),
        name="moments",
        result="co-moments",
        element_seconds=_CENTRING_SECONDS,
        overwrites=True,
    )


class Gram(Reducer):
    """The lower triangle of A^H·A (n×n), summed in double precision.

    Attributes
    ----------
    gram
        float64 or complex128; the other triangle is zero.
    """

    def __init__(self, n: int, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self.gram = np.zeros((n, n), np.result_type(dtype, np.float64), "F")
        self._sum: DeviceSum | None = None

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of rank updates."""
        return gram_work(shape)

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return an empty sum."""
        return type(self)(len(self.gram), self._dtype)

    def use(self, lane: DeviceLane) -> None:
        """Let a device multiply and add."""
        self._sum = lane.sum(self.gram.shape, self._dtype, triangle=True)

    def leave(self) -> None:
        """Take the sum of the device."""
        if self._sum is not None:
            self.gram += self._sum.take()
            self._sum = None

    def update(self, block: RowBlock) -> None:
        """Add a block's part; squares may overflow or underflow, without a warning."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            self._add(block.a)

    def _add(self, a: NDArray[Any]) -> None:
        if self._sum is not None:
            self._sum.add_gram(a)
            if self.gram.dtype != a.dtype:
                self.gram += self._sum.take()
            return
        if self.gram.dtype == a.dtype:
            rank_k(1.0, a, self.gram, trans=True)
            return
        part = np.zeros(self.gram.shape, a.dtype, "F")
        rank_k(1.0, a, part, trans=True)
        self.gram += part

    def combine(self, other: Self) -> None:
        """Add the sum of another core."""
        self.gram += other.gram

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The sum, and its part on a device."""
        on_device = {} if self._sum is None else {"sum": self._sum.array}
        return {"gram": self.gram} | on_device

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a recorded sum."""
        self.gram = np.asfortranarray(arrays["gram"])
        if self._sum is not None:
            self._sum.restore(arrays["sum"])


class Moments(Gram):
    """Weight, mean and centred co-moments of the rows of [1 | A], by Chan's update.

    Each block is centred by its own mean, and overwritten; the sums of blocks are combined as those
    of samples (T. F. Chan, G. H. Golub, R. J. LeVeque: Algorithms for computing the sample
    variance, 1983). The pass puts a column of ones before A, which has the roots of the weights.

    Attributes
    ----------
    weight
        The sum of the weights: the number of rows without weights.
    mean
        n numbers, in double precision.
    gram
        The lower triangle of ``(A - mean)^H·W·(A - mean)``.
    spread
        Whether a column has different elements, for columns whose sum of squares is zero.
    """

    def __init__(self, n: int, dtype: np.dtype[Any]) -> None:
        super().__init__(n, dtype)
        self.weight, self.mean = 0.0, np.zeros(n, self.gram.dtype)
        self.spread = np.zeros(n, np.bool_)

    def out_of_range(self, m: int) -> NDArray[np.bool_]:
        """Return a mask of the columns, of m elements, whose squares overflow or underflow.

        Columns with elements that are not finite are among them.
        """
        squares, limits = np.diagonal(self.gram).real, np.finfo(self._dtype)
        least = m * float(limits.tiny) / float(limits.eps)
        varied = self.spread | (squares != 0)
        found: NDArray[np.bool_] = ~np.isfinite(squares) | (varied & (squares < least))
        return found

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of rank updates of A without its column of ones."""
        return moments_work(shape)

    def update(self, block: RowBlock) -> None:
        """Centre a block and add its part; squares may overflow or underflow, without a warning."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            self._centre_and_add(block)

    def _centre_and_add(self, block: RowBlock) -> None:
        roots, a = block.a[:, 0], block.a[:, 1:]
        wide = self.gram.real.dtype
        weight = float(np.sum(np.abs(roots) ** 2, dtype=wide))
        if not weight:
            return
        # Two means: the second one is of numbers near zero, whose sum has small errors.
        mean = np.zeros_like(self.mean)
        for _ in range(2):
            step = (roots @ a).astype(mean.dtype) / weight
            row = np.asfortranarray(step.astype(a.dtype)[np.newaxis, :])
            gemm(-1.0, block.a[:, :1], row, a)
            mean += row[0]
        self._note_spread(a)
        self._add(a)
        self._join(weight, mean)

    def _note_spread(self, a: NDArray[Any]) -> None:
        """Look for elements other than zero in the columns that have had none, by few rows."""
        flat = np.flatnonzero((np.diagonal(self.gram) == 0) & ~self.spread)
        first = 0
        while flat.size and first < len(a):
            last = first + max(1, _STRIP_BYTES // (flat.size * a.itemsize))
            self.spread[flat] |= a[first:last, flat].any(axis=0)
            flat, first = flat[~self.spread[flat]], last

    def _join(self, weight: float, mean: NDArray[Any]) -> None:
        """Add the part of the difference of two means."""
        whole = self.weight + weight
        step = mean - self.mean
        self.spread |= (step != 0) & bool(self.weight)
        column = np.asfortranarray((step * np.sqrt(self.weight * weight / whole))[np.newaxis, :])
        rank_k(1.0, column, self.gram, trans=True)
        self.mean += step * (weight / whole)
        self.weight = whole

    def combine(self, other: Self) -> None:
        """Add the rows of another core."""
        super().combine(other)
        self.spread |= other.spread
        if other.weight:
            self._join(other.weight, other.mean)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Weight, mean, co-moments, and which columns vary."""
        return super().arrays | {
            "weight": np.array(self.weight),
            "mean": self.mean,
            "spread": self.spread,
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from recorded sums."""
        super().restore(arrays)
        self.weight, self.mean = float(arrays["weight"]), arrays["mean"]
        self.spread = arrays["spread"]


class Norm(Reducer):
    """One norm of A, in one pass; NaN for NaN.

    Parameters
    ----------
    name
        Which one.
    n
        Columns of A.
    smallest
        Of the sums of columns or rows, the smallest one.
    """

    def __init__(self, name: NormName, n: int, *, smallest: bool = False) -> None:
        self._name, self._n, self._smallest = name, n, smallest
        self._sums = np.zeros(n if name == "columns" else 0)
        # Of rows: the largest (smallest) sum; of "fro": the root of the sum of squares.
        self._one = np.inf if name == "rows" and smallest else 0.0

    @property
    def value(self) -> float:
        """The norm."""
        if self._name != "columns":
            return float(self._one)
        return float(self._sums.min() if self._smallest else self._sums.max(initial=0.0))

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of sums, which the disk or the memory limits."""
        flops = shape.m * shape.n
        return RowWork("norm", "sums", flops, 8 * self._n + 4 * _STRIP_BYTES)

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return an empty sum."""
        return type(self)(self._name, self._n, smallest=self._smallest)

    def update(self, block: RowBlock) -> None:
        """Add a block, by strips of its longer lines."""
        a = block.a
        height = max(1, _STRIP_BYTES // max(1, self._n * 8))
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, len(a), height):
                self._add(np.abs(a[first : first + height]))

    def _add(self, sizes: NDArray[Any]) -> None:
        if self._name == "columns":
            self._sums += sizes.sum(axis=0, dtype=np.float64)
        elif self._name == "rows":
            self._take(sizes.sum(axis=1, dtype=np.float64))
        elif self._name == "max":
            self._take(sizes)
        else:
            self._one = _hypot(self._one, _root_of_squares(sizes))

    def _take(self, found: NDArray[Any]) -> None:
        """Take the extreme of some numbers; NaN stays."""
        if found.size:
            least = np.minimum(self._one, found.min())
            self._one = float(least if self._smallest else np.maximum(self._one, found.max()))

    def combine(self, other: Self) -> None:
        """Add the sums of another core."""
        self._sums += other._sums
        if self._name == "fro":
            self._one = _hypot(self._one, other._one)
        else:
            self._take(np.array([other._one]))

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The sums."""
        return {"sums": self._sums, "one": np.array(self._one)}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from recorded sums."""
        self._sums, self._one = arrays["sums"], float(arrays["one"])


def _hypot(x: float, y: float) -> float:
    """Return the root of x² + y², NaN also for NaN and Inf."""
    return float(np.hypot(x, y)) if x == x and y == y else np.nan  # noqa: PLR0124 - NaN


def _root_of_squares(sizes: NDArray[Any]) -> float:
    """Return the root of the sum of squares, which overflows only if the root does."""
    largest = float(sizes.max(initial=0.0))
    if largest == 0.0 or not np.isfinite(largest):
        return largest
    scaled = sizes.astype(np.float64) / largest
    return largest * float(np.sqrt(np.sum(scaled * scaled)))
