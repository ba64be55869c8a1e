"""Triangular solves out of core: `solve_triangular`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hdgemm.errors import InputError
from hdgemm.linalg.run import Run
from hdgemm.linalg.slab_journal import Command
from hdgemm.linalg.solution import ColumnSolver, Solution, ready, solve_stored
from hdgemm.linalg.storage import open_square
from hdgemm.linalg.triangle_solver import Triangle
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress

if TYPE_CHECKING:
    import threading

    from hdgemm.durable.run import Checkpointing
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback, ReportCallback
    from hdgemm.run.session import Session


@shows_progress
def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
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
    """Solve op(A)·X = B for a triangular matrix of any size, which streams through memory once.

    Parameters
    ----------
    a
        A square matrix as in `hdgemm.matmul`; only one triangle is read.
    b
        Right-hand sides: a vector, or a matrix as in `hdgemm.matmul`. One that does not fit the
        memory is solved by groups of columns, for each of which A streams again; `out` must be
        a file then.
    trans
        0 or "N": A; 1 or "T": its transpose; 2 or "C": its conjugate transpose.
    lower
        Read the lower triangle.
    unit_diagonal
        The diagonal is not read; ones are in its place.
    overwrite_b
        Has no effect.
    check_finite
        Raise `InputError` for NaN and Inf in the triangle or in B.
    out
        Where X goes: an array, a stored matrix, the location of a file; None for a new array.
    options
        `host_memory`, `threads`; ``tile=(mb, nb, kb)`` forces groups of nb columns of B and stream
        blocks of kb columns.
    session, progress, observer, cancel, report, restart
        As in `cholesky`. In events `unit` is the group of columns, `step` the stream block.
    checkpoint
        Keep a journal beside X (or at this path), so that the same call goes on after a crash; at
        most one group of columns is computed again. X must be a file.

    Raises
    ------
    LinAlgError
        When an element of the diagonal is exactly zero; it is a `SingularMatrixError`.
    InputError
        When shapes do not fit together, or elements are not finite.
    DoesNotFitError
        When not one column of B fits the memory.
    """
    matrix = open_square(a)
    codes = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}
    if trans not in codes:
        raise InputError(f"trans must be 0, 1, 2, 'N', 'T' or 'C', got {trans!r}")
    triangle = Triangle(matrix, bool(lower), codes[trans], bool(unit_diagonal), check_finite)
    solver = ColumnSolver(lambda solver, x: solver.solve(triangle, x), (triangle,))
    command = Command(
        "solve_triangular",
        {"trans": triangle.trans, "lower": triangle.lower, "unit": triangle.unit},
        checkpoint, restart, matrices={"the triangular matrix": matrix},
    )  # fmt: skip
    return solve_stored(
        Solution.of(b, matrix.shape[0], matrix.dtype), out, ready(solver),
        Run(options, session, Watch.of(progress, observer, cancel, report)), command,
        check_finite=check_finite,
    )  # fmt: skip
