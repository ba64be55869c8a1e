"""R of a tall matrix: from sums B^H·B where they are accurate, else by Householder's method.

Rows B below a triangle R are added by strips that stay in the cache. R' is the Cholesky factor of
R^H·R + B^H·B, at the rate of products and for half of Householder's operations. Let D be the norms
of R's columns, and √t bound the norms of B's columns in units of them. Errors of element (i, j) of
the sum are at most c·eps·(1 + t)·D_i·D_j. They perturb R' to (I + F)·R' with
||F|| <= c·eps·(1 + t)·||D·R^-1||², and the singular values by c·eps·(1 + t)·||D·R^-1|| in units of
the largest one. So rows are summed while t and ||D·R^-1||² are small: while the columns of R,
scaled to one norm, are well-conditioned. LAPACK's tpqrt reduces all other rows: the first ones,
outliers, rows of columns that are nearly dependent.

A sum is kept until it is several times as large as R^H·R, so that the n³ operations of a factor do
not count: the larger, the better conditioned R is, for the same bound of errors.

N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, 10.1 (Cholesky factors of scaled
matrices). Whitened rows Y = B·R^-1 and factors of I + Y^H·Y would be accurate for any R, but their
solves are no faster than tpqrt for some hundred columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from hdgemm.fortran import gemm, potrf, rank_k, tpqrt, trsm
from hdgemm.linalg.planning.rows import (
    REFLECTORS,
    RowShape,
    RowWork,
    r_factor_work,
    strip_rows,
    takes_sums,
    triangle_flops,
)
from hdgemm.linalg.rows.column_moments import column_norms
from hdgemm.linalg.rows.reducer import Reducer, RowBlock
from hdgemm.linalg.rows.tsqr import Triangle, panel_width
from hdgemm.matrices.transfer import aligned_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from hdgemm.linalg.rows._device_lane import DeviceLane, DeviceSum

#: ||D·R^-1||² up to which B^H·B is summed.
_WELL: Final = 200.0
#: t·||D·R^-1||² up to which a strip is summed, and from which on R takes up a sum.
_MOST: Final = 4 * _WELL
#: Strips that are not tried at most, after one that was not summed.
_MOST_SKIPPED: Final = 7
#: Columns of R that are multiplied at once.
_PANEL: Final = REFLECTORS
#: Vectors and steps of the inverse iteration for ||D·R^-1||.
_VECTORS: Final = 4
_STEPS: Final = 5


class RFactor(Reducer):
    """R (n×n) of the rows of A; of a matrix with fewer than n rows, it ends with rows of zeros.

    With B beside A, the R of [A | B] has Q^H·B right of the R of A, and below it the triangle of
    the rest of Q^H·B: it is accurate for any B, since sums are taken up only while the columns of
    [A | B], scaled to one norm, are well-conditioned.

    Parameters
    ----------
    n, dtype
        Columns of A, and dtype of the blocks.
    p
        Columns of B.
    """

    def __init__(self, n: int, dtype: np.dtype[Any], p: int = 0) -> None:
        self._n = n
        # R above the diagonal; on and below it the conjugate of the sum of B^H·B.
        self._packed = np.zeros((n + p, n + p + 1), dtype, "F")
        self._size = 0.0  # of the sum, in units of the limits
        # t·D²: a strip is summed if the squares of its columns' norms are not larger. Empty where R
        # is not fit, None where unknown. Journals name it "squares".
        self._limits: NDArray[Any] | None = None
        self._failures = self._skip = 0
        self._on_device: DeviceSum | None = None  # a part of the sum

    @property
    def r(self) -> NDArray[Any]:
        """The triangle, n×n; column-major without B."""
        return self._whole()[: self._n, : self._n]

    @property
    def c(self) -> NDArray[Any]:
        """The first n rows of Q^H·B."""
        return self._whole()[: self._n, self._n :]

    @property
    def rest(self) -> NDArray[Any]:
        """The norm of the rest of each column of Q^H·B."""
        return column_norms(self._whole()[self._n :, self._n :])

    def _whole(self) -> NDArray[Any]:
        """Return the R of [A | B], column-major."""
        self._settle()
        return self._packed[:, 1:]

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of the reduction."""
        return r_factor_work(shape)

    def flops(self, rows: int, shape: RowShape) -> int:
        """Return the operations of rows that are reduced with a triangle."""
        return triangle_flops(rows, shape)

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return the triangle of a matrix without rows."""
        return type(self)(self._n, self._packed.dtype, len(self._packed) - self._n)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The triangle with the sum, and what decides about the next rows."""
        known = self._limits is not None
        state = np.array([self._size, self._failures, self._skip, known])
        limits = self._limits if self._limits is not None else np.zeros(0)
        on_device = {} if self._on_device is None else {"sum": self._on_device.array}
        return {"packed": self._packed, "state": state, "squares": limits} | on_device

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from recorded arrays."""
        self._packed = np.asfortranarray(arrays["packed"])
        size, failures, skip, known = arrays["state"]
        self._size, self._failures, self._skip = float(size), int(failures), int(skip)
        self._limits = arrays["squares"] if known else None
        if self._on_device is not None:
            self._on_device.restore(arrays["sum"])

    def use(self, lane: DeviceLane) -> None:
        """Let a device sum the rows that are summed."""
        self._on_device = lane.sum((len(self._packed),) * 2, self._packed.dtype, triangle=True)

    def leave(self) -> None:
        """Take the sum of the device."""
        self._take_sum()
        self._on_device = None

    def update(self, block: RowBlock) -> None:
        """Reduce more rows."""
        a, n = block.a, len(self._packed)
        height = max(1, min(len(a), strip_rows(n, a.dtype)))
        memory = aligned_bytes(height * n * a.itemsize).view(a.dtype)
        beside = np.empty((height, n) if n > self._n else (0, 0), a.dtype)
        for first in range(0, len(a) if n else 0, height):
            rows = a[first : first + height]
            if n > self._n:
                rows = beside[: len(rows)]
                rows[:, : self._n] = a[first : first + height]
                rows[:, self._n :] = block.b[first : first + height]
            self._reduce(rows, memory)

    def _reduce(self, rows: NDArray[Any], memory: NDArray[Any]) -> None:
        """Add a strip of rows to the sum, or reduce a copy of it by Householder's method."""
        if not self._added(rows, memory):
            below = memory[: rows.size].reshape(rows.shape, order="F")
            below[:] = rows
            self._reflect(below)

    def combine(self, other: Self) -> None:
        """Reduce the triangle of other rows, which is overwritten."""
        self._reflect(other._whole(), triangle=True)

    def _reflect(self, below: NDArray[Any], *, triangle: bool = False) -> None:
        """Reduce rows, which are overwritten, by Householder's method."""
        r = self._whole()
        t = np.zeros((panel_width(len(r)), len(r)), r.dtype, "F")
        tpqrt(r, below, t, np.empty(t.size, r.dtype), triangle=triangle)
        self._limits = None

    def _added(self, rows: NDArray[Any], memory: NDArray[Any]) -> bool:
        """Add rows to the sum; False where this is inaccurate, or not tried after such rows."""
        if self._skip:
            self._skip -= 1
            return False
        if self._limits is None:
            self._limits = limits_of(self._packed[:, 1:])
        turned = memory[: rows.size].reshape(rows.shape[::-1], order="F")
        with np.errstate(all="ignore"):
            size = self._sum(rows, turned, self._limits) if len(self._limits) else None
        if size is None:
            if not self._packed[:, 1:].diagonal().any():
                return False  # no rows yet: the next strip is tried
            self._skip = min(2**self._failures, _MOST_SKIPPED)
            self._failures = min(self._failures + 1, _MOST_SKIPPED)
            return False
        self._failures = 0
        self._size += size
        if self._size > 1:
            self._settle()
        return True

    def _sum(self, rows: NDArray[Any], turned: NDArray[Any], limits: NDArray[Any]) -> float | None:
        """Add B^H·B; return the largest square of a column in units of its limit, None above 1."""
        found = _column_squares(rows)
        if not (found <= limits).all():  # or NaN
            return None
        if self._on_device is not None:
            self._on_device.add_gram(rows)
        else:
            if rows.strides[1] != rows.itemsize:
                turned[:] = rows.T
            else:
                turned = rows.T
            rank_k(1.0, turned, self._packed[:, :-1])
        least = np.finfo(float).tiny  # a sum that is not empty has a size
        return float(np.max(found[limits > 0] / limits[limits > 0], initial=least))

    def _settle(self) -> None:
        """Let R take up the sum, which is zero afterwards."""
        if not self._size or self._limits is None:
            return
        self._take_sum()
        _factor_total(self._packed, self._limits == 0)
        for column in range(len(self._packed)):
            self._packed[column:, column] = 0
        self._size, self._limits = 0.0, None

    def _take_sum(self) -> None:
        """Add the part of the sum that lies on a device."""
        if self._on_device is not None and self._size:
            part = self._on_device.take().conj()
            for column in range(len(part)):
                self._packed[column:, column] += part[column:, column]


def r_and_qb(n: int, p: int, dtype: np.dtype[Any]) -> RFactor | Triangle:
    """Return a reducer that finds R of A (m×n), Q^H·B for p columns of B, and norms of residuals.

    The R of [A | B] takes p² more operations for each row: where p is large, Householder's method
    is faster.
    """
    return RFactor(n, dtype, p) if takes_sums(n, p) else Triangle.zeros(n, p, dtype)


def limits_of(r: NDArray[Any]) -> NDArray[Any]:
    """Return t·D², the squares of the norms of R's columns, with t·||D·R^-1||² = `_MOST`.

    Return nothing if ||D·R^-1||² > `_WELL`. Columns of zeros do not count. ||D·R^-1|| is estimated
    by inverse iteration.
    """
    n, none = len(r), np.zeros(0)
    with np.errstate(all="ignore"):
        squares = np.array([np.vdot(r[: j + 1, j], r[: j + 1, j]).real for j in range(n)], float)
        diagonal = np.einsum("ii->i", r)
        zeros = diagonal == 0
        if not np.isfinite(squares).all() or (squares[zeros] > 0).any() or zeros.all():
            return none
        kind = np.finfo(r.dtype)
        if squares[~zeros].min() < kind.tiny / kind.eps or squares.max() > kind.max * kind.eps:
            return none
        norms = np.sqrt(squares)[:, np.newaxis].astype(r.real.dtype)
        x = np.random.default_rng(0).standard_normal((n, _VECTORS)).astype(r.dtype, order="F")
        diagonal[zeros] = 1
        largest = 0.0
        for _ in range(_STEPS):
            x /= np.linalg.norm(x, axis=0)
            x *= norms
            trsm(r, x, lower=False, trans="C")
            trsm(r, x, lower=False)
            x *= norms
            largest = float(np.linalg.norm(x, axis=0).max())
        diagonal[zeros] = 0
    return squares * (_MOST / largest) if largest <= _WELL else none


def _column_squares(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of the squares of each column, in double precision."""
    parts = (rows.real, rows.imag) if rows.dtype.kind == "c" else (rows,)
    found: NDArray[Any] = sum(
        (np.einsum("ij,ij->j", part, part).astype(float) for part in parts), np.zeros(rows.shape[1])
    )
    return found


def _upper_panel(packed: NDArray[Any], first: int, last: int) -> NDArray[Any]:
    """Return a copy of columns of R, down to the diagonal."""
    panel = np.array(packed[:last, first + 1 : last + 1], order="F")
    panel[first:] = np.triu(panel[first:])
    return panel


def _factor_total(packed: NDArray[Any], zeros: NDArray[Any]) -> None:
    """Overwrite R by the Cholesky factor of R^H·R and the sum; columns of zeros stay."""
    n, total = len(packed), packed[:, :-1]
    for first, last in _panels(n):
        panel = _upper_panel(packed, first, last).conj()
        diagonal = np.zeros((last - first,) * 2, packed.dtype, "F")
        gemm(1.0, np.asfortranarray(panel.conj()), panel, diagonal, trans_a="T")
        lower = np.tril_indices(last - first)
        total[first:last, first:last][lower] += diagonal[lower]
        gemm(1.0, packed[:last, last + 1 :], panel, total[last:, first:last], trans_a="T")
    np.einsum("ii->i", total)[zeros] = 1
    potrf(total)
    np.einsum("ii->i", total)[zeros] = 0
    for row in range(n):
        packed[row, row + 1 :] = total[row:, row]


def _panels(n: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + _PANEL, n)) for first in range(0, n, _PANEL))
