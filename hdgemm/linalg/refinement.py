"""Solutions in double precision from factors in single precision, by iterative refinement.

The factors have half the bytes and take half the time of double ones. Each step computes the
residual B - A·X in double precision and solves for a correction with the stored factors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import HdgemmError
from hdgemm.linalg.triangle_solver import TriangleSolver
from hdgemm.product.product import Product
from hdgemm.progress import Watch
from hdgemm.run.engine import run_product

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.linalg.recorder import Recorder
    from hdgemm.linalg.run import OpenRun
    from hdgemm.linalg.solution import ColumnSolver
    from hdgemm.matrices.stored import StoredMatrix

#: Corrections after which LAPACK's dsgesv gives up.
_MOST_STEPS: Final = 30
#: A step that reduces the residual by less than this has stopped converging.
_LEAST_GAIN: Final = 0.5
#: Arrays of the size of X, in its precision: X, B, the residual, and two in single precision.
COPIES: Final = 4
SINGLE: Final = {"float64": np.dtype("float32"), "complex128": np.dtype("complex64")}


class NotConvergedError(HdgemmError):
    """Refinement did not reach the accuracy of a factorisation in double precision."""


@dataclass(frozen=True, slots=True)
class Refinement:
    """Iterative refinement of op(A)·X = B.

    Parameters
    ----------
    a
        A in double precision.
    norm
        The infinity norm of op(A).
    trans
        0: A; 1: its transpose.
    factors
        Solve in single precision.
    memory
        Bytes for a stream of A.
    run
        The options, session and watch of the call.
    """

    a: StoredMatrix
    norm: float
    trans: int
    factors: ColumnSolver
    memory: int
    run: OpenRun

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
            n, SINGLE[x.dtype.name], doubles.block, doubles.recorder, doubles.group
        ) as solver:
            b, residual = x.copy(order="F"), x.copy(order="F")
            x[...] = 0
            worst = np.inf
            for _ in range(_MOST_STEPS + 1):
                self._correct(solver, residual, x)
                residual[...] = b
                self._subtract_product(x, residual, doubles.recorder)
                before, worst = worst, self._worst(residual, x)
                if worst <= 1:
                    return
                if not worst <= _LEAST_GAIN * before:
                    break
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
        self, x: NDArray[Any], residual: NDArray[Any], recorder: Recorder
    ) -> None:
        product = Product.of(
            self.a, x, alpha=-1.0, beta=1.0, c=residual, trans_a=self.trans, out=residual
        )
        options, session, watch = self.run
        quiet = Watch(observer=watch.observer, cancel=watch.cancel)
        options = replace(options, host_memory=self.memory, verify=False, tile=None)
        recorder.add(run_product(product, options, session, quiet), "residual")

    def _worst(self, residual: NDArray[Any], x: NDArray[Any]) -> float:
        """Return the largest residual of a column in units of its bound; NaN for NaN."""
        unit = np.sqrt(len(x)) * np.finfo(x.dtype).eps / 2 * self.norm
        with np.errstate(all="ignore"):
            size, bound = np.abs(residual).max(axis=0), unit * np.abs(x).max(axis=0)
            return float(np.where(size == 0, 0, size / bound).max())
