"""LINPACK's system Ax = b: HPL's random matrix, the solution and the residual."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.mpi._elimination import Elimination
from hdgemm.mpi._part import Part
from hdgemm.mpi._substitution import back_substitute, forward_substitute
from hdgemm.mpi._timeline import PhaseRecorder
from hdgemm.mpi.linpack._sequence import DominantMatrix, RandomMatrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.mpi._window import Window
    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.linpack.settings import Settings

    Vector = NDArray[Any]

#: HPL's unit of the residual: the relative machine precision, half of `np.finfo(float).eps`.
_EPSILON: Final = 2.0**-53


class System:
    """One process's part of the N×(N + 1) matrix [A|b] in a P×Q grid, of the first P·Q processes.

    A `mixed` system is the one of HPL-MxP: diagonally dominant, and factored in single precision.
    The `recorder` has the phases of the factorisation and the solution.
    """

    def __init__(self, settings: Settings, world: Communicator, *, mixed: bool = False) -> None:
        self._settings, self.recorder = settings, PhaseRecorder()
        dtype = np.float32 if mixed else np.float64
        self._part = part = Part.allocate(settings, world, settings.n + 1, dtype)
        self._pivots: dict[int, NDArray[np.int64]] = {}
        rows = part.rows.positions()
        self._random = RandomMatrix(settings.n, rows, settings.seed)
        if mixed:
            sums = part.row.total(self._absolute_sums())
            self._random = DominantMatrix(settings.n, rows, sums, settings.seed)
        for place, col in enumerate(part.cols.positions().tolist()):
            part.a[:, place] = self._random.column(col)

    def factor(self, window: Window, progress: Callable[[float], None] | None = None) -> None:
        """Factor A, and apply L⁻¹ and the interchanges to b; the threads of `window` update.

        `progress` is called with the part of the operations that is done, by each process for
        itself.
        """
        elimination = Elimination(self._settings, self._part, window, self.recorder, progress)
        elimination.run()
        self._pivots = elimination.pivots

    def solve(self) -> Vector:
        """Return x, by back substitution for the b that was factored along with A."""
        part, n = self._part, self._settings.n
        right = np.empty((part.rows.count, 1), part.a.dtype, order="F")
        owner = part.cols.owner(n)
        if owner == part.cols.process:
            right[:, 0] = part.a[:, -1]
        with self.recorder.record("solve", n):
            part.row.broadcast(right, owner)
            return self._everywhere(back_substitute(part, right))

    def correction(self, right: Vector) -> Vector:
        """Return A⁻¹ times a vector of which each process has its rows, by the factors."""
        with self.recorder.record("solve", self._settings.n):
            found = forward_substitute(self._part, right[:, np.newaxis], self._pivots)
            return self._everywhere(back_substitute(self._part, found))

    def _everywhere(self, own: Vector) -> Vector:
        """Return all elements of a vector, of which each process has its rows."""
        x = np.zeros(self._settings.n)
        x[self._part.rows.positions()] = own[:, 0]
        self._part.column.join(x)
        return x

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
        sums = self._part.row.total(self._absolute_sums())
        return self._largest(sums), self._largest(self._random.column(self._settings.n))

    def difference(self, x: Vector) -> Vector:
        """Return the local rows of b - Ax, with A and b made anew."""
        n, product = self._settings.n, np.zeros(self._part.rows.count)
        for col in self._part.cols.positions().tolist():
            if col < n:
                product += self._random.column(col) * x[col]
        found: Vector = self._random.column(n) - self._part.row.total(product)
        return found

    def _absolute_sums(self) -> Vector:
        """Return for each local row the sum of the absolute values in the local columns of A."""
        sums = np.zeros(self._part.rows.count)
        for col in self._part.cols.positions().tolist():
            if col < self._settings.n:
                sums += np.abs(self._random.column(col))
        return sums

    def _largest(self, values: Vector) -> float:
        return self._part.column.largest(float(np.max(np.abs(values), initial=0.0)))
