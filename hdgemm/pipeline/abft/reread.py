"""A tile's inputs read again from where the caller keeps them, in chunks of k.

Exceptional and slow: for tiles whose sums cannot be told to be right from lower bounds, and for
tiles that are computed again. What is read fits a scratch that the run's limits leave room for.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.pipeline.abft.sums import norms, wide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from hdgemm.pipeline.plan import Plan, Rect, WorkUnit
    from hdgemm.pipeline.slots import Operands


class Source:
    """Reads op(A)'s rows and op(B)'s columns of a tile.

    Parameters
    ----------
    nbytes
        What a chunk of both takes, with what is computed of it; at least one index of k.
    """

    def __init__(self, plan: Plan, operands: Operands, nbytes: int) -> None:
        self._plan = plan
        self._operands = operands
        self._nbytes = nbytes
        self.dtype = np.dtype(plan.problem.dtype)
        #: Held while a matrix is read: load1 reads the same ones, and not every format takes two.
        self.reading = threading.Lock()

    def chunks(self, rect: Rect) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Give chunks in op-space, rows×kc and kc×cols; each is valid until the next."""
        # The chunk, its magnitudes in double precision, and what is done with them.
        each = (rect.rows + rect.cols) * (self.dtype.itemsize + 24)
        k = self._plan.problem.k
        depth = min(k, max(1, self._nbytes // each))
        for k0 in range(0, k, depth):
            kb = min(depth, k - k0)
            a = self._read("A", rect.row, k0, rect.rows, kb)
            yield a, self._read("B", k0, rect.col, kb, rect.cols)

    def _read(self, operand: Any, row: int, col: int, rows: int, cols: int) -> NDArray[Any]:
        if self._plan.problem.spec(operand).trans:
            stored = np.empty((cols, rows), self.dtype)
            row, col = col, row
        else:
            stored = np.empty((rows, cols), self.dtype)
        with self.reading:
            self._operands.matrix(operand).read(row, col, stored)
        if self._operands.conj(operand):
            np.conjugate(stored, out=stored)
        return stored.T if self._plan.problem.spec(operand).trans else stored


@dataclass(frozen=True, slots=True)
class Reread:
    """What a tile's inputs say of it.

    Parameters
    ----------
    rows, cols
        Σ A·(B·x) and Σ (y'·A)·B, leaving out bad rows of A and bad columns of B.
    row_sizes, col_sizes
        F_i and G_j.
    bad_rows, bad_cols
        Rows of A and columns of B that hold NaN or Inf: there C must hold nothing else.
    largest_a, largest_b
        The largest norms of a column of A and of a row of B, in a chunk.
    steps
        Chunks.
    """

    rows: NDArray[Any]
    cols: NDArray[Any]
    row_sizes: NDArray[np.float64]
    col_sizes: NDArray[np.float64]
    bad_rows: NDArray[np.bool_]
    bad_cols: NDArray[np.bool_]
    largest_a: float
    largest_b: float
    steps: int

    @property
    def holds_bad(self) -> bool:
        """A or B hold NaN or Inf."""
        return bool(self.bad_rows.any() or self.bad_cols.any())

    def masked(
        self,
        parts: Iterable[tuple[int, NDArray[Any]]],
        wrong: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Give panels of C with bad rows and columns as zero; mark those that hold numbers."""
        for first, part in parts:
            rows = slice(first, first + len(part))
            bad = self.bad_rows[rows, np.newaxis] | self.bad_cols
            numbers = np.isfinite(part) & bad
            wrong[0][rows] |= (numbers & self.bad_rows[rows, np.newaxis]).any(axis=1)
            wrong[1][:] |= (numbers & self.bad_cols).any(axis=0)
            yield first, np.where(bad, 0, part)


def reread(
    source: Source,
    unit: WorkUnit,
    x: NDArray[Any],
    y: NDArray[Any],
    multiply: Callable[[NDArray[Any], NDArray[Any], bool], None] | None = None,
) -> Reread:
    """Read a tile's inputs, and multiply them where that is asked for."""
    bad_rows, bad_cols = np.zeros(y.size, np.bool_), np.zeros(x.size, np.bool_)
    for number, (a, b) in enumerate(source.chunks(unit.rect)):
        bad_rows |= ~np.isfinite(a).all(axis=1)
        bad_cols |= ~np.isfinite(b).all(axis=0)
        if multiply is not None:
            multiply(a, b, number == 0)
    kind = wide(source.dtype)
    rows, cols = np.zeros(y.size, kind), np.zeros(x.size, kind)
    row_sizes, col_sizes = np.zeros(y.size), np.zeros(x.size)
    largest_a = largest_b = 0.0
    steps = 0
    for a, b in source.chunks(unit.rect):
        a[bad_rows] = 0
        b[:, bad_cols] = 0
        rows += a @ (b @ x)
        cols += (y @ a) @ b
        of_a, of_b = norms(a.T), norms(b)
        row_sizes += np.abs(a) @ of_b
        col_sizes += of_a @ np.abs(b)
        largest_a = max(largest_a, float(of_a.max()))
        largest_b = max(largest_b, float(of_b.max()))
        steps += 1
    return Reread(rows, cols, row_sizes, col_sizes, bad_rows, bad_cols, largest_a, largest_b, steps)
