"""The distributed system Ax = b: factorisation, solution and residual, as HPL does them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from hdgemm.fortran import trsm
from hdgemm.hpl.distribution import Axis
from hdgemm.hpl.elimination import Elimination, Part
from hdgemm.hpl.interchange import RowExchange
from hdgemm.hpl.sequence import DominantMatrix, RandomMatrix
from hdgemm.hpl.timeline import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.hpl.communicator import Communicator
    from hdgemm.hpl.settings import Settings
    from hdgemm.hpl.window import Window

    Vector = NDArray[np.floating]
    Columns = NDArray[np.floating]

#: HPL's unit of the residual: the relative machine precision, half of `np.finfo(float).eps`.
_EPSILON: Final = 2.0**-53
#: Bytes of a cache line.
_CACHE_LINE: Final = 64


class System:
    """One process's part of the N×(N + 1) matrix [A|b] in a P×Q grid, of the first P·Q processes.

    Blocks of NB×NB are dealt to the grid in turn, in both directions (Jo et al., section 2.1). A
    `mixed` system follows HPL-MxP: diagonally dominant, and factored in single precision. The
    `recorder` has the phases of the factorisation and the solution.
    """

    def __init__(self, settings: Settings, world: Communicator, *, mixed: bool = False) -> None:
        p, q = settings.grid
        self._settings, self.recorder = settings, Recorder()
        my_row, my_col = settings.place(world.rank)
        self._grid = world.split(0, my_row * q + my_col)
        self._row, self._column = world.split(my_row, my_col), world.split(p + my_col, my_row)
        self._rows = Axis(settings.n, settings.nb, p, my_row)
        self._cols = Axis(settings.n + 1, settings.nb, q, my_col)
        self._pivots: dict[int, NDArray[np.int64]] = {}
        self._random = RandomMatrix(settings.n, self._rows.positions(), settings.seed)
        if mixed:
            sums = self._row.total(self._absolute_sums())
            self._random = DominantMatrix(settings.n, self._rows.positions(), sums, settings.seed)
        dtype = np.float32 if mixed else np.float64
        # Columns an odd number of cache lines apart: their elements of a row lie in all cache sets.
        line = _CACHE_LINE // np.dtype(dtype).itemsize
        lead = (-(-self._rows.count // line) | 1) * line
        self._a: Columns = np.empty((lead, self._cols.count), dtype, "F")[: self._rows.count]
        for place, col in enumerate(self._cols.positions().tolist()):
            self._a[:, place] = self._random.column(col)

    def factor(self, window: Window, progress: Callable[[float], None] | None = None) -> None:
        """Factor A, and apply L⁻¹ and the interchanges to b; the threads of `window` update.

        `progress` is called with the part of the operations that is done, by each process for
        itself.
        """
        part = Part(self._a, self._rows, self._cols, self._row, self._column, self._grid)
        elimination = Elimination(self._settings, part, window, self.recorder, progress)
        elimination.run()
        self._pivots = elimination.pivots

    def solve(self) -> Vector:
        """Return x, by back substitution for the b that was factored along with A."""
        right = np.empty(self._rows.count, self._a.dtype)
        owner = self._cols.owner(self._settings.n)
        if owner == self._cols.process:
            right[:] = self._a[:, -1]
        with self.recorder.record("solve", self._settings.n):
            self._row.broadcast(right, owner)
            return self._back_substitute(right)

    def correction(self, right: Vector) -> Vector:
        """Return A⁻¹ times a vector of which each process has its rows, by the factors."""
        with self.recorder.record("solve", self._settings.n):
            return self._back_substitute(self._eliminate(right.astype(self._a.dtype)))

    def _eliminate(self, right: Vector) -> Vector:
        """Apply all interchanges and L⁻¹, panel by panel, as the factorisation did to b.

        The rows of L are stored in the order in which their panel was factored.
        """
        vector = right.reshape(-1, 1, order="F")
        for first, pivots in self._pivots.items():
            owner, end = self._cols.owner(first), first + len(pivots)
            if owner == self._cols.process:
                exchange = RowExchange(first, pivots, self._rows, self._column)
                u = exchange.apply(vector).copy(order="F")
                columns = self._columns(first, len(pivots))
                block = self._block(first, len(pivots))
                if self._rows.owner(first) == self._rows.process:
                    trsm(columns[block], u, unit=True)
                self._column.broadcast(u, self._rows.owner(first))
                if self._rows.owner(first) == self._rows.process:
                    vector[block] = u
                vector[self._rows.below(end) :] -= columns[self._rows.below(end) :] @ u
            self._row.broadcast(right, owner)
        return right

    def _back_substitute(self, right: Vector) -> Vector:
        """Return U⁻¹ times a vector, the same on every process, in double precision."""
        n, nb = self._settings.n, self._settings.nb
        done = np.zeros(self._rows.count)
        x = np.zeros(n)
        for first in range((n - 1) // nb * nb, -1, -nb):
            width = min(nb, n - first)
            here = self._rows.owner(first) == self._rows.process
            block = self._block(first, width)
            solution = np.empty(width, self._a.dtype)
            if here:
                solution[:] = right[block] - self._row.total(done[block])
            if self._cols.owner(first) != self._cols.process:
                continue
            columns = self._columns(first, width)
            if here:
                trsm(columns[block], solution.reshape(-1, 1, order="F"), lower=False)
            self._column.broadcast(solution, self._rows.owner(first))
            x[first : first + width] = solution
            done[: block.start] += columns[: block.start] @ solution
        return self._row.total(x)

    def _columns(self, first: int, width: int) -> Columns:
        """Return the local columns of a panel, all rows."""
        return self._a[:, self._cols.below(first) :][:, :width]

    def _block(self, first: int, width: int) -> slice:
        """Return the local rows of a panel's diagonal block, on the processes that hold it."""
        place = self._rows.below(first)
        return slice(place, place + width)

    def residual(self, x: Vector) -> float:
        """Return ‖Ax - b‖∞ / (ε(‖A‖∞‖x‖∞ + ‖b‖∞)N) with A and b made anew; NaN is no success."""
        return self.scaled(self.difference(x), x)

    def scaled(self, difference: Vector, x: Vector) -> float:
        """Return the residual of x from the local rows of b - Ax."""
        norm, norm_b = self._norms
        size = norm * float(np.max(np.abs(x))) + norm_b
        return self._largest(difference) / (_EPSILON * size * self._settings.n)

    @cached_property
    def _norms(self) -> tuple[float, float]:
        """‖A‖∞ and ‖b‖∞, for which the matrix is made anew once."""
        sums = self._row.total(self._absolute_sums())
        return self._largest(sums), self._largest(self._random.column(self._settings.n))

    def difference(self, x: Vector) -> Vector:
        """Return the local rows of b - Ax, with A and b made anew."""
        n, product = self._settings.n, np.zeros(self._rows.count)
        for col in self._cols.positions().tolist():
            if col < n:
                product += self._random.column(col) * x[col]
        found: Vector = self._random.column(n) - self._row.total(product)
        return found

    def _absolute_sums(self) -> Vector:
        """Return for each local row the sum of the absolute values in the local columns of A."""
        sums = np.zeros(self._rows.count)
        for col in self._cols.positions().tolist():
            if col < self._settings.n:
                sums += np.abs(self._random.column(col))
        return sums

    def _largest(self, values: Vector) -> float:
        return self._column.largest(float(np.max(np.abs(values), initial=0.0)))
