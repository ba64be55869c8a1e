"""A tile's inputs, read again from where the caller keeps them, in chunks of k.

Only for tiles whose checksums exceed the lower bounds of their rounding, and for tiles that are
computed again. The chunks fit a scratch that the run's limits leave room for.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.pipeline.abft._checksums import wide
from hdgemm.pipeline.abft.bounds import row_norms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from hdgemm.pipeline.plan import Operand, Plan
    from hdgemm.pipeline.slots import Operands
    from hdgemm.pipeline.tiles import Rect


class InputReader:
    """Reads the rows of op(A) and the columns of op(B) that a tile of C is computed from.

    A chunk of both, and what is computed from it, takes `nbytes`; it has at least one index.
    """

    def __init__(self, plan: Plan, operands: Operands, nbytes: int) -> None:
        self._plan = plan
        self._operands = operands
        self._nbytes = nbytes
        self.dtype = np.dtype(plan.problem.dtype)
        #: Held during each read: load1 reads the same matrices, which not every format allows.
        self.reading = threading.Lock()

    def chunks(self, rect: Rect) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yield chunks in op-space, rows×kc and kc×cols."""
        # The chunk, its magnitudes in float64, and their products.
        each = (rect.rows + rect.cols) * (self.dtype.itemsize + 24)
        k = self._plan.problem.k
        depth = min(k, max(1, self._nbytes // each))
        for k0 in range(0, k, depth):
            kb = min(depth, k - k0)
            a = self._read("A", rect.row, k0, rect.rows, kb)
            yield a, self._read("B", k0, rect.col, kb, rect.cols)

    def _read(self, operand: Operand, row: int, col: int, rows: int, cols: int) -> NDArray[Any]:
        trans = self._plan.problem.spec(operand).trans
        stored = np.empty((cols, rows) if trans else (rows, cols), self.dtype)
        with self.reading:
            self._operands.matrix(operand).read(*((col, row) if trans else (row, col)), stored)
        if self._operands.conj(operand):
            np.conjugate(stored, out=stored)
        return stored.T if trans else stored


@dataclass(frozen=True, slots=True)
class InputSums:
    """Checksums and sizes of a tile, from its inputs.

    `sums` are Σ A·(B·x) and Σ (y'·A)·B without the `bad` rows of A and columns of B: they hold NaN
    or Inf, and there C must not hold finite elements. `sizes` are F_i and G_j; `largest` is the
    largest norm of a row of B, and of a column of A, in a chunk.
    """

    sums: tuple[NDArray[Any], NDArray[Any]]
    sizes: tuple[NDArray[np.float64], NDArray[np.float64]]
    bad: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    largest: tuple[float, float]

    @classmethod
    def of(cls, reader: InputReader, rect: Rect, x: NDArray[Any], y: NDArray[Any]) -> InputSums:
        """Read a tile's inputs twice: for NaN and Inf, and for the sums without them."""
        bad_rows, bad_cols = np.zeros(y.size, np.bool_), np.zeros(x.size, np.bool_)
        for a, b in reader.chunks(rect):
            bad_rows |= ~np.isfinite(a).all(axis=1)
            bad_cols |= ~np.isfinite(b).all(axis=0)
        kind = wide(reader.dtype)
        rows, cols = np.zeros(y.size, kind), np.zeros(x.size, kind)
        row_sizes, col_sizes = np.zeros(y.size), np.zeros(x.size)
        largest_a = largest_b = 0.0
        for a, b in reader.chunks(rect):
            a[bad_rows] = 0
            b[:, bad_cols] = 0
            rows += a @ (b @ x)
            cols += (y @ a) @ b
            of_a, of_b = row_norms(a.T), row_norms(b)
            row_sizes += np.abs(a) @ of_b
            col_sizes += of_a @ np.abs(b)
            largest_a = max(largest_a, float(of_a.max()))
            largest_b = max(largest_b, float(of_b.max()))
        return cls(
            (rows, cols), (row_sizes, col_sizes), (bad_rows, bad_cols), (largest_b, largest_a)
        )

    @property
    def holds_bad(self) -> bool:
        """A or B hold NaN or Inf."""
        return bool(self.bad[0].any() or self.bad[1].any())

    def masked(
        self,
        parts: Iterable[tuple[int, NDArray[Any]]],
        wrong: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield panels of C with bad rows and columns set to 0; mark finite elements in them."""
        bad_rows, bad_cols = self.bad
        for first, part in parts:
            rows = slice(first, first + len(part))
            bad = bad_rows[rows, np.newaxis] | bad_cols
            finite = np.isfinite(part) & bad
            wrong[0][rows] |= (finite & bad_rows[rows, np.newaxis]).any(axis=1)
            wrong[1][:] |= (finite & bad_cols).any(axis=0)
            yield first, np.where(bad, 0, part)
