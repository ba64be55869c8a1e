"""Iterative refinement over MPI: factors in single precision, residuals with the dealt A."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.linalg.planning.solve import SINGLE
from hdgemm.linalg.solving.refinement import LEAST_GAIN, MOST_STEPS, NotConvergedError
from hdgemm.mpi.lu import first_zero
from hdgemm.mpi.part import Part
from hdgemm.mpi.substitution import back_substitute, forward_substitute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hdgemm.mpi.run import Run


def refined_substitution(run: Run, part: Part) -> Refinement:
    """Factor a copy of A in single precision; A stays in the part.

    Raises
    ------
    NotConvergedError
        On all ranks, where a pivot is exactly zero in single precision.
    """
    n = run.variant.n
    single = Part.allocate(run.variant, run.world, n, SINGLE[run.dtype.name])
    a = part.a[:, : part.cols.below(n)]
    with np.errstate(over="ignore"):  # an infinite factor does not converge
        single.a[:] = a
    elimination = run.factor(single)
    if zero := first_zero(elimination):
        raise NotConvergedError(f"pivot {zero} is exactly zero in single precision")
    sums = part.row.total(np.abs(a).sum(axis=1))
    norm = run.world.largest(float(sums.max(initial=0)))
    return Refinement(single, elimination.pivots, norm)


@dataclass(frozen=True, slots=True)
class Refinement:
    """Substitution with factors in single precision that is refined in double precision.

    Parameters
    ----------
    factors
        L and U in single precision.
    pivots
        Interchanges of each panel.
    norm
        The infinity norm of A.
    """

    factors: Part
    pivots: Mapping[int, NDArray[np.int64]]
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
            residual = right - _product(part, x)
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
            found = forward_substitute(self.factors, residual / scale, self.pivots)
            found = back_substitute(self.factors, found)
            return found * scale

    def _worst(self, part: Part, residual: NDArray[Any], x: NDArray[Any]) -> float:
        """Return the largest residual of a column in units of its bound; NaN for NaN."""
        unit = np.sqrt(part.rows.extent) * np.finfo(x.dtype).eps / 2 * self.norm
        size, bound = _largest(part, residual), unit * _largest(part, x)
        with np.errstate(all="ignore"):
            return float(np.where(size == 0, 0, size / bound).max(initial=0))


def _product(part: Part, x: NDArray[Any]) -> NDArray[Any]:
    """Return this process's rows of A·X, the same on each process of a row of the grid."""
    n, cols = part.rows.extent, part.cols.positions()
    whole = np.zeros((n, x.shape[1]), x.dtype)
    whole[part.rows.positions()] = x
    part.column.join(whole)
    own = cols[cols < n]
    with np.errstate(all="ignore"):
        return part.row.total(part.a[:, : len(own)] @ whole[own])


def _largest(part: Part, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the largest absolute value of each column, on all processes; NaN where one is NaN."""
    found: NDArray[np.float64] = part.column.gather(np.abs(rows).max(axis=0, initial=0)).max(axis=0)
    return found
