"""Inverses and condition numbers from LU factors: `inv`, `cond`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.linalg.factored_solve import check_pair, lu_solve, open_lu
from hdgemm.linalg.joint_plan import facts_of
from hdgemm.linalg.norms import norm_inf
from hdgemm.linalg.operands import open_square
from hdgemm.linalg.portions import Portions
from hdgemm.linalg.run import OpenRun, Run
from hdgemm.linalg.scratch import lu_factors
from hdgemm.linalg.slab_journal import Command
from hdgemm.linalg.slab_plan import SlabPlan
from hdgemm.linalg.solution import Solution, solve_stored
from hdgemm.linalg.stored_factors import LUFactors
from hdgemm.linalg.updates import host_bytes
from hdgemm.matrices.base import Matrix, Operand
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress
from hdgemm.run.session import session_for

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from hdgemm.durable.run import Checkpointing
    from hdgemm.linalg.solution import ColumnSolver
    from hdgemm.linalg.storage import Destination
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback, ReportCallback
    from hdgemm.run.session import Session

#: Steps of LAPACK's gecon at most; each solves with A and with its conjugate transpose.
_MOST_STEPS: Final = 5


@shows_progress
def inv(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    out: Any = None,
    options: Options | None = None,
    session: Session | None = None,
    progress: ProgressCallback | bool | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    report: ReportCallback | None = None,
    checkpoint: Checkpointing = False,
    restart: bool = False,
) -> Any:
    """Return the inverse of a square matrix of any size.

    A·X = I is solved for groups of columns that fit the memory; the factors stream through memory
    once for each group. To solve systems, `solve` takes a fourth of the operations.

    Parameters
    ----------
    a
        A square matrix as in `lu_factor`, or the ``(lu, piv)`` that it returned. The factors of a
        matrix in a file go to a scratch file in its folder.
    overwrite_a, check_finite
        As in `lu_factor`.
    out
        Where the inverse goes: an array, a stored matrix, the location of a file; None for a new
        array.
    options, session, progress, observer, cancel, report, checkpoint, restart
        As in `solve`.

    Raises
    ------
    LinAlgError
        When A is singular; a `SingularMatrixError`.
    InputError
        When A is not square, or not finite.

    Examples
    --------
    >>> x = hdgemm.linalg.inv("A.npy", out="X.npy")
    """
    given = open_lu(a)[0] if isinstance(a, tuple) else open_square(a)
    n, dtype = given.shape[0], given.dtype.newbyteorder("=")
    identity = StoredMatrix(Operand(_Identity(n, dtype)), writable=False)

    @contextmanager
    def prepare(run: OpenRun, target: Destination) -> Iterator[tuple[ColumnSolver, Watch]]:
        factoring = 0 if isinstance(a, tuple) else SlabPlan.of_array("lu", n, n, dtype.name).flops
        solving = flops_per_multiply_add(dtype.name) * n**3
        portions = Portions(run.watch, factoring + solving)
        with lu_factors(
            a, run._replace(watch=portions.next(factoring)), overwrite_a=overwrite_a,
            check_finite=check_finite, checkpoint=target.checkpoint,
        ) as factors:  # fmt: skip
            yield factors.solver("N"), portions.next(solving)
        portions.finish(facts_of("inv", (n, n), dtype.name, run.options))

    command = Command(
        "inv", {}, checkpoint, restart, matrices={} if overwrite_a else {"the matrix": given}
    )
    return solve_stored(
        Solution.of(identity, n, dtype), out, prepare,
        Run(options, session, Watch.of(progress, observer, cancel, report)), command,
        check_finite=False,
    )  # fmt: skip


class _Identity(Matrix):
    """The identity matrix; it takes no memory."""

    name = "identity"

    def __init__(self, n: int, dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = (n, n), dtype

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]``."""
        out[...] = 0
        rows, cols = out.shape
        first, last = max(row, col), min(row + rows, col + cols)
        index = np.arange(first, last)
        out[index - row, index - col] = 1


@shows_progress
def cond(
    a: Any,
    p: float = 1,
    *,
    factors: tuple[Any, Any] | None = None,
    options: Options | None = None,
    session: Session | None = None,
    progress: ProgressCallback | bool | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    report: ReportCallback | None = None,
) -> float:
    """Return an estimate of the condition number ||A||·||A^-1||, as LAPACK's `gecon`.

    The estimate is a lower bound, rarely more than three times too small (Higham, 1988). A is read
    once, and its factors stream through memory at most 11 times.

    Parameters
    ----------
    a
        A square matrix as in `lu_factor`.
    p
        The norm: 1, or `numpy.inf`.
    factors
        The ``(lu, piv)`` that `lu_factor` returned for `a`; None computes them, in a scratch file
        where `a` is a file.
    options, session, progress, observer, cancel
        As in `lu_factor`.
    report
        As in `lu_factor`; of the factorisation and of the solutions, whose number is not known
        beforehand.

    Returns
    -------
    float
        Inf for a singular matrix, NaN where A has NaN, 0 for an empty matrix.

    Examples
    --------
    >>> lu, piv = hdgemm.linalg.lu_factor("A.npy", out="LU.npy")
    >>> hdgemm.linalg.cond("A.npy", factors=("LU.npy", piv))
    """
    if p not in (1, np.inf):
        raise InputError(f"p must be 1 or numpy.inf, got {p!r}")
    matrix = open_square(a)
    with session_for(session, options) as (held, chosen):
        norm = norm_inf(matrix if p == np.inf else matrix.T, host_bytes(chosen) // 2)
        if matrix.shape[0] == 0 or not np.isfinite(norm):
            return norm
        n, name = matrix.shape[0], matrix.dtype.newbyteorder("=").name
        flops = SlabPlan.of_array("lu", n, n, name).flops if factors is None else 0
        portions = Portions(Watch.of(progress, observer, cancel, report), flops)
        summary = facts_of("cond", (n, n), name, chosen)
        run = Run(chosen, held, portions.next(flops))
        given = a if factors is None else check_pair(factors, "factors", LUFactors)
        with lu_factors(given, run, check_finite=False) as (lu, pivots, zero):
            if zero:
                portions.finish(summary)
                return np.inf

            def solve(x: NDArray[Any], trans: int) -> NDArray[Any]:
                result: NDArray[Any] = lu_solve(
                    (lu, pivots), x, trans, check_finite=False, options=chosen, session=held,
                    observer=observer, cancel=cancel, report=portions.add,
                )  # fmt: skip
                return result

            # The infinity norm of the inverse is the 1-norm of its conjugate transpose.
            codes = (0, 2) if p == 1 else (2, 0)
            dtype = lu.dtype.newbyteorder("=")
            with np.errstate(all="ignore"):
                estimate = norm * _norm1_of_inverse(solve, codes, n, dtype)
        portions.finish(summary)
        return estimate


def _norm1_of_inverse(
    solve: Callable[[NDArray[Any], int], NDArray[Any]],
    codes: tuple[int, int],
    n: int,
    dtype: np.dtype[Any],
) -> float:
    """Estimate the 1-norm of an inverse by Hager's and Higham's method (LAPACK's lacn2).

    Parameters
    ----------
    solve
        Solves with A, or its conjugate transpose, which `codes` name.
    """
    plain, adjoint = codes
    x = np.full(n, 1 / n, dtype)
    estimate, index = 0.0, -1
    for _ in range(_MOST_STEPS):
        y = solve(x, plain)
        size = float(np.abs(y).sum())
        if not size > estimate:
            break
        estimate = size
        magnitudes = np.abs(y)
        signs = np.divide(y, magnitudes, out=np.ones_like(y), where=magnitudes > 0)
        z = np.abs(solve(signs, adjoint))
        largest = int(np.argmax(z))
        if largest == index:
            break
        index = largest
        x = np.zeros(n, dtype)
        x[index] = 1
    # A vector that finds what cancels in the method's own ones.
    steps = np.arange(n)
    alternating = (1 + steps / max(1, n - 1)) * (-1.0) ** steps
    size = float(np.abs(solve(alternating.astype(dtype), plain)).sum())
    return max(estimate, 2 * size / (3 * n))
