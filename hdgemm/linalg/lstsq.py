"""Least squares of a tall matrix in one pass over its rows: `lstsq`."""

from __future__ import annotations

import math
from contextlib import ExitStack
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg

from hdgemm.errors import InputError
from hdgemm.linalg.input_checks import input_unchanged
from hdgemm.linalg.operands import check_tall, open_matrix
from hdgemm.linalg.row_checkpoint import durable_rows
from hdgemm.linalg.row_plan import rows_for
from hdgemm.linalg.run import Run, folder_of, open_run
from hdgemm.linalg.solution import Solution
from hdgemm.linalg.storage import destination
from hdgemm.linalg.tsqr import RowReduction, Triangle
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress

if TYPE_CHECKING:
    import threading

    from numpy.typing import NDArray

    from hdgemm.durable.run import Checkpointing
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback, ReportCallback
    from hdgemm.run.session import Session

_DRIVERS = ("gelsd", "gelsy", "gelss")


@shows_progress
def lstsq(
    a: Any,
    b: Any,
    cond: float | None = None,
    overwrite_a: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    overwrite_b: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    check_finite: bool = True,
    lapack_driver: str | None = None,
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
) -> tuple[Any, Any, int, NDArray[Any] | None]:
    """Return ``(x, residues, rank, s)`` with the x of least norm that minimises ||A·x - b||.

    A (m×n, m ≥ n) and b are read once. TSQR reduces them to the n×n triangle R and to Q^H·b, which
    SciPy's `lstsq` solves: singular values and rank are those of R, which are those of A.

    Parameters
    ----------
    a
        A matrix with at least as many rows as columns, as in `hdgemm.matmul`: an array, a stored
        matrix or a view, or the location of a file. Its n×n triangle must fit the memory, once for
        each core.
    b
        A vector, or a matrix as in `hdgemm.matmul`, with as many rows as `a`.
    cond
        Singular values below `cond` times the largest one count as zero; None for eps.
    overwrite_a, overwrite_b
        Have no effect.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    lapack_driver
        ``"gelsd"`` (default), ``"gelsy"`` or ``"gelss"``, for the triangle.
    out
        Where x goes: an array, a stored matrix, the location of a file; None for a new array.
    options
        `host_memory`, `threads`; ``tile=(mb, nb, kb)`` forces blocks of mb rows.
    session, progress, observer, cancel, report
        As in `cholesky`. In events, `unit` is the core and `step` its block of rows.
    checkpoint
        Keep a journal beside x (or at this path), and beside x the triangle of each core, so that
        the same call goes on after a crash with the same bits. At most about a twentieth of the
        time is spent on that. x must be a file; when it is complete the records are removed.
    restart
        Discard what an earlier run left, and begin again.

    Returns
    -------
    x : array
        n elements, or n×p for a matrix b; as `cholesky` returns its factor.
    residues : array or number
        The squared norm of each column of b - A·x; empty where the rank is less than n, where
        m = n, and for "gelsy", as SciPy's.
    rank : int
    s : array or None
        Singular values of A, in descending order; None for "gelsy".

    Raises
    ------
    InputError
        When A has fewer rows than columns, or shapes do not fit together, or elements are not
        finite: `row` and `col`.
    DoesNotFitError
        When R does not fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    Examples
    --------
    >>> x, residues, rank, s = hdgemm.linalg.lstsq("A.npy", b)
    """
    limit: Any = cond
    if limit is not None and (not isinstance(limit, Real) or math.isnan(limit)):
        raise InputError(f"cond must be a number or None, got {cond!r}")
    driver = "gelsd" if lapack_driver is None else lapack_driver
    if driver not in _DRIVERS:
        raise InputError(f"lapack_driver must be one of {_DRIVERS}, got {lapack_driver!r}")
    facts = {"routine": "lstsq", "cond": cond, "driver": driver}
    with ExitStack() as stack:
        source = stack.enter_context(open_matrix(a))
        check_tall(source.shape)
        (m, n), solution = source.shape, Solution.of(b, len(source), source.dtype)
        rhs, p = stack.enter_context(solution.rhs), solution.rhs.shape[1]
        if not p:
            raise InputError("b has no columns: pass at least one")
        watch = Watch.of(progress, observer, cancel, report)
        run = stack.enter_context(open_run(Run(options, session, watch)))
        durable = stack.enter_context(
            durable_rows(checkpoint, out, {"A": source, "b": rhs}, facts, restart)
        )
        target = stack.enter_context(
            destination(
                solution.place(out), a, source, order="F", overwrite_a=False,
                dtype=solution.dtype, shape=(n, p),
            )
        )  # fmt: skip
        stack.enter_context(input_unchanged(source, target.stored))
        plan = None if durable is None else durable.plan
        if plan is None:
            plan = rows_for(source.shape, p, solution.dtype, folder_of(source), run)
        if durable is not None:
            durable.begin(plan)
        found = RowReduction(
            source, rhs, plan, watch, check_finite=check_finite, checkpoint=durable
        ).run()
        x, rank, s = _solve_triangle(found, cond, driver)
        target.stored[:, :] = x
    full = (m > n or n == 0) and rank == n and driver != "gelsy"
    residues = found.residues if full else np.empty(0, solution.dtype)
    if solution.vector and residues.size:
        residues = residues[0]
    return solution.result(out, target), residues, rank, s


def _solve_triangle(
    found: Triangle, cond: float | None, driver: str
) -> tuple[NDArray[Any], int, NDArray[Any] | None]:
    """Return x, the rank and the singular values of R·x = Q^H·b."""
    solve: Any = scipy.linalg.lstsq  # typed for literal drivers only
    x, _, rank, s = solve(
        found.r, found.c, cond, overwrite_b=True, check_finite=False, lapack_driver=driver
    )
    return x, int(rank), s
