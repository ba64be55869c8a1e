"""Iterative refinement over MPI: factors in single precision, residuals with the dealt A."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg.planning.solve import SINGLE
from hdgemm.linalg.solving.refinement import LEAST_GAIN, MOST_STEPS, NotConvergedError
from hdgemm.mpi._part import Part
from hdgemm.mpi._substitution import back_substitute, forward_substitute
from hdgemm.mpi.cholesky import substitute_cholesky
from hdgemm.mpi.lu import first_zero

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.mpi._run import Run


def refined_substitution(run: Run, part: Part) -> Refinement:
    """Factor a copy of A in single precision by LU; A stays in the part.

    Raises
    ------
    NotConvergedError
        On all ranks, where a pivot is exactly zero in single precision.
    """
    single = _in_single(run, part)
    elimination = run.factor(single)
    if zero := first_zero(elimination):
        raise NotConvergedError(f"pivot {zero} is exactly zero in single precision")

    def correct(residual: NDArray[Any]) -> NDArray[Any]:
        found = forward_substitute(single, residual, elimination.pivots)
        return back_substitute(single, found)

    a = part.a[:, : part.cols.below(run.variant.n)]
    sums = part.row.total(np.abs(a).sum(axis=1))
    norm = run.world.largest(float(sums.max(initial=0)))
    return Refinement(correct, partial(_product, part), norm)


def refined_cholesky(run: Run, part: Part) -> Refinement:
    """Factor a copy of A in single precision by Cholesky; the part has A's lower triangle, and
    zeros above.

    Raises
    ------
    NotConvergedError
        On all ranks, where A is not positive definite in single precision.
    """
    single = _in_single(run, part)
    try:
        run.factor_cholesky(single)
    except SingularMatrixError as error:
        raise NotConvergedError(f"in single precision, {error}") from error
    triangle = LowerTriangle.of(part)
    norm = run.world.largest(float(triangle.row_sums().max(initial=0)))
    return Refinement(partial(substitute_cholesky, single), triangle.product, norm)


def _in_single(run: Run, part: Part) -> Part:
    """Return a copy of A in single precision."""
    n = run.variant.n
    single = Part.allocate(run.variant, run.world, n, SINGLE[run.dtype.name])
    with np.errstate(over="ignore"):  # an infinite factor does not converge
        single.a[:] = part.a[:, : part.cols.below(n)]
    return single


@dataclass(frozen=True, slots=True)
class LowerTriangle:
    """The lower triangle of a Hermitian matrix in the first N columns of a part, zeros above.

    Parameters
    ----------
    part
        This process's part.
    a
        Its elements.
    diagonal
        The diagonal, whole.
    """

    part: Part
    a: NDArray[Any]
    diagonal: NDArray[Any]

    @classmethod
    def of(cls, part: Part) -> LowerTriangle:
        """Take the triangle of a part, with the real parts of its diagonal as LAPACK does."""
        n = part.rows.extent
        a = part.a[:, : part.cols.below(n)]
        cols = part.cols.positions()[: a.shape[1]]
        common, rows, own = np.intersect1d(part.rows.positions(), cols, return_indices=True)
        a[rows, own] = a[rows, own].real
        diagonal = np.zeros(n, part.a.real.dtype)
        diagonal[common] = a[rows, own].real
        part.grid.join(diagonal)
        return cls(part, a, diagonal)

    def product(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return this process's rows of A·X, the same on each process of a row of the grid."""
        return self._product(self.a, self.diagonal, x)

    def row_sums(self) -> NDArray[Any]:
        """Return the sums of the absolute values of this process's rows."""
        ones = np.ones((self.part.rows.count, 1))
        return self._product(np.abs(self.a), np.abs(self.diagonal), ones)

    def _product(self, a: NDArray[Any], diagonal: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of L·X + L^H·X - D·X."""
        part, rows = self.part, self.part.rows.positions()
        cols = part.cols.positions()[: a.shape[1]]
        with np.errstate(all="ignore"):
            below = part.row.total(a @ _whole(part, x)[cols])
            above = np.zeros((part.rows.extent, x.shape[1]), np.result_type(a, x))
            above[cols] = part.column.total(a.conj().T @ x)
            part.row.join(above)
            found: NDArray[Any] = below + above[rows] - diagonal[rows, np.newaxis] * x
        return found


@dataclass(frozen=True, slots=True)
class Refinement:
    """Substitution with factors in single precision that is refined in double precision.

    Parameters
    ----------
    correct
        Solves with the factors in single precision.
    product
        Returns this process's rows of A·X in double precision.
    norm
        The infinity norm of A.
    """

    correct: Callable[[NDArray[Any]], NDArray[Any]]
    product: Callable[[NDArray[Any]], NDArray[Any]]
    norm: float

    def __call__(self, part: Part, right: NDArray[Any]) -> NDArray[Any]:
        """Return A⁻¹·B; `part` holds A in double precision.

        Raises
        ------
        NotConvergedError
            On all ranks, where the residual stays above sqrt(n)·eps·||A||·||X||, LAPACK's bound.
        """
        x, residual, before = np.zeros_like(right), right, np.inf
        for _ in range(MOST_STEPS + 1):
            x += self._correction(part, residual)
            residual = right - self.product(x)
            worst = self._worst(part, residual, x)
            if worst <= 1:
                return x
            if not worst <= LEAST_GAIN * before:
                break
            before = worst
        raise NotConvergedError(
            f"refinement ended with a residual of {worst:.2g} times its bound", ratio=worst
        )

    def _correction(self, part: Part, residual: NDArray[Any]) -> NDArray[Any]:
        """Return the solution for a residual, scaled into the range of single precision."""
        scale = _largest(part, residual)
        scale[~(scale > 0)] = 1
        with np.errstate(over="ignore", invalid="ignore"):
            return self.correct(residual / scale) * scale

    def _worst(self, part: Part, residual: NDArray[Any], x: NDArray[Any]) -> float:
        """Return the largest residual of a column in units of its bound; NaN for NaN."""
        unit = np.sqrt(part.rows.extent) * np.finfo(x.dtype).eps / 2 * self.norm
        size, bound = _largest(part, residual), unit * _largest(part, x)
        with np.errstate(all="ignore"):
            return float(np.where(size == 0, 0, size / bound).max(initial=0))


def _product(part: Part, x: NDArray[Any]) -> NDArray[Any]:
    """Return this process's rows of A·X, the same on each process of a row of the grid."""
    n, cols = part.rows.extent, part.cols.positions()
    own = cols[cols < n]
    with np.errstate(all="ignore"):
        return part.row.total(part.a[:, : len(own)] @ _whole(part, x)[own])


def _whole(part: Part, x: NDArray[Any]) -> NDArray[Any]:
    """Return all rows of a matrix of which the processes of a column have some each."""
    found = np.zeros((part.rows.extent, x.shape[1]), x.dtype)
    found[part.rows.positions()] = x
    part.column.join(found)
    return found


def _largest(part: Part, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the largest absolute value of each column, on all processes; NaN where one is NaN."""
    found: NDArray[np.float64] = part.column.gather(np.abs(rows).max(axis=0, initial=0)).max(axis=0)
    return found
