"""Solutions in double precision from factors in single precision, by iterative refinement.

The factors have half the bytes and take half the time of double ones. Each step computes the
residual B - A·X in double precision and solves for a correction with the stored factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import HdgemmError
from hdgemm.fortran import gemm
from hdgemm.linalg.planning.solve import SINGLE
from hdgemm.linalg.solving.norms import RowSums, line_blocks
from hdgemm.linalg.solving.triangles import TriangleSolver, few_threads
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.linalg.solving.columns import ColumnSolver
    from hdgemm.matrices.stored import StoredMatrix

#: Corrections after which LAPACK's dsgesv gives up.
MOST_STEPS: Final = 30
#: A step that reduces the residual by less than this has stopped converging.
LEAST_GAIN: Final = 0.5
#: Part of the bound below which the residual that a correction will leave is expected, so that it
#: is not computed: it would have to be so many times larger than that to exceed the bound.
_EXPECTED: Final = 1e-3


class NotConvergedError(HdgemmError):
    """Refinement did not reach the accuracy of a factorisation in double precision."""


@dataclass(frozen=True, slots=True)
class Refinement:
    """Iterative refinement of op(A)·X = B.

    Parameters
    ----------
    a
        op(A) in double precision.
    factors
        Solve in single precision.
    memory
        Bytes for a stream of A.
    """

    a: StoredMatrix
    factors: ColumnSolver
    memory: int

    def __call__(self, doubles: TriangleSolver, x: NDArray[Any]) -> None:
        """Overwrite B, given in `x`, by X.

        Raises
        ------
        NotConvergedError
            When the residual stays above sqrt(n)·eps·||A||·||X||, the bound of LAPACK's dsgesv.
        """
        n = len(x)
        if not x.size:
            return
        with TriangleSolver(
            n,
            SINGLE[x.dtype.name],
            doubles.block,
            doubles.recorder,
            doubles.group,
            doubles.kept_bytes,
        ) as solver:
            b, residual = x.copy(order="F"), x.copy(order="F")
            x[...] = 0
            norm = worst = 0.0
            ratios = np.full(x.shape[1], np.inf)
            for step in range(MOST_STEPS + 1):
                self._correct(solver, residual, x)
                residual[...] = b
                sums = None if step else RowSums(self.a)
                self._subtract_product(x, residual, doubles, sums)
                norm = sums.norm if sums else norm
                before, ratios = ratios, _ratios(residual, x, norm)
                worst = float(ratios.max())
                if worst <= 1:
                    return
                if not worst <= LEAST_GAIN * before.max():
                    break
                # Each correction reduces the residual of a column by about the same factor.
                done = (ratios <= 1) | (ratios * ratios <= _EXPECTED * before)
                if step and done.all():
                    self._correct(solver, residual, x)
                    return
        raise NotConvergedError(
            f"refinement ended with a residual of {worst:.2g} times its bound", ratio=worst
        )

    def _correct(self, solver: TriangleSolver, residual: NDArray[Any], x: NDArray[Any]) -> None:
        """Add the solution for the residual, scaled into the range of single precision."""
        scale = np.abs(residual).max(axis=0)
        scale[~(scale > 0)] = 1
        residual /= scale
        with np.errstate(over="ignore", invalid="ignore"):
            correction = residual.astype(SINGLE[x.dtype.name])
            self.factors.solve(solver, correction)
            np.multiply(correction, scale, out=residual)
            x += residual

    def _subtract_product(
        self, x: NDArray[Any], residual: NDArray[Any], doubles: TriangleSolver, sums: RowSums | None
    ) -> None:
        """Subtract A·X from the residual, in one stream of A of which `sums` is told, too."""
        recorder, group = doubles.recorder, doubles.group
        by_columns = self.a.order == "F"
        pair = flops_per_multiply_add(x.dtype.name) * x.shape[1]
        recorder.phase = "residual"
        blocks = line_blocks(self.a, self.memory, recorder, group)
        for number, (first, block) in enumerate(blocks, 1):
            if sums is not None:
                sums.add(first, block)
            lines = slice(first, first + len(block))
            with (
                recorder.operation("mult1", group, flops=pair * block.size, block=number),
                few_threads(x),
            ):
                if by_columns:
                    gemm(-1.0, block.T, x[lines], residual)
                else:
                    gemm(-1.0, block.T, x, residual[lines], trans_a="T")
        recorder.phase = None


def _ratios(residual: NDArray[Any], x: NDArray[Any], norm: float) -> NDArray[np.float64]:
    """Return the residual of each column in units of its bound; NaN for NaN."""
    unit = np.sqrt(len(x)) * np.finfo(x.dtype).eps / 2 * norm
    with np.errstate(all="ignore"):
        size, bound = np.abs(residual).max(axis=0), unit * np.abs(x).max(axis=0)
        found: NDArray[np.float64] = np.where(size == 0, 0, size / bound)
        return found
