"""Products of integers on the host's cores: exact sums in half of C's precision, added in C's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.host_blas import Gemm

#: Either product; `host_queue` draws blocks of both.
AnyGemm: TypeAlias = "Gemm | WidenedGemm"
#: Largest extents of a rectangle of C that a thread sums at once: its sums stay in the core's
#: cache, and BLAS needs 4 % of its time to pack A and B for it.
_ROWS: Final = 512
_COLS: Final = 1024
#: Bytes of these sums, in float32.
SUM_BYTES: Final = 4 * _ROWS * _COLS


class _Scratch(threading.local):
    """Memory of one thread for the sums of a rectangle of C."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array of undefined elements."""
        nbytes = shape[0] * shape[1] * dtype.itemsize
        if nbytes > self._memory.nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        return np.ndarray(shape, dtype, self._memory.data)


_SCRATCH: Final = _Scratch()


class WidenedGemm(NamedTuple):
    """C := A·B + beta·C, where sums of `exact_terms` products are exact in A's precision.

    `factors` is the product A·B in half of C's precision, with a C that is not used; `target` is C.
    """

    factors: Gemm
    target: NDArray[Any]
    beta: float
    exact_terms: int

    @property
    def m(self) -> int:
        """Rows of C."""
        return self.factors.m

    @property
    def n(self) -> int:
        """Columns of C."""
        return self.factors.n

    @property
    def k(self) -> int:
        """Columns of op(A)."""
        return self.factors.k

    @property
    def c(self) -> int:
        """Address of C."""
        return int(self.target.ctypes.data)

    @property
    def ldc(self) -> int:
        """Elements from one row of C to the next."""
        return self.target.strides[0] // self.target.itemsize

    @property
    def c_itemsize(self) -> int:
        """Bytes of an element of C."""
        return self.target.itemsize

    def block(self, row: int, col: int, rows: int, cols: int) -> WidenedGemm:
        """Return the product for one rectangle of C."""
        return self._replace(
            factors=self.factors.block(row, col, rows, cols),
            target=self.target[row : row + rows, col : col + cols],
        )

    def run(self) -> None:
        """Compute C rectangle by rectangle: the sums of each fit the scratch memory."""
        wide = min(self.n, _COLS)
        high = min(self.m, _ROWS * _COLS // wide)
        for row in range(0, self.m, high):
            for col in range(0, self.n, wide):
                rows, cols = min(high, self.m - row), min(wide, self.n - col)
                _run_rectangle(self.block(row, col, rows, cols))


def _run_rectangle(gemm: WidenedGemm) -> None:
    """Add the sums of one rectangle of C; with beta = 0, C is not read."""
    target, beta = gemm.target, gemm.beta
    sums = _SCRATCH.array((gemm.m, gemm.n), gemm.factors.scalars.dtype)
    into = gemm.factors._replace(c=int(sums.ctypes.data), ldc=gemm.n)
    if beta not in (0, 1):
        np.multiply(target, beta, out=target)
    for first in range(0, gemm.k, gemm.exact_terms):
        into.terms(first, min(gemm.exact_terms, gemm.k - first)).run()
        if first == 0 and beta == 0:
            np.copyto(target, sums)
        else:
            np.add(target, sums, out=target)
