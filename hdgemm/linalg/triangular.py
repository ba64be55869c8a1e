"""Triangular solves out of core: `solve_triangular`, and what all solves share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.linalg.run import Run, host_session
from hdgemm.linalg.storage import destination, in_memory, open_matrix, open_square
from hdgemm.linalg.triangle_solver import Triangle, TriangleSolver
from hdgemm.machine.limits import default_host_bytes
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.product.aliasing import overlaps
from hdgemm.product.arguments import result_dtype
from hdgemm.product.target import is_location, single
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback
    from hdgemm.run.session import Session


class ColumnSolver(NamedTuple):
    """Solves for right-hand sides in memory.

    Parameters
    ----------
    solve
        Overwrites B in a column-major array by X.
    copies
        Arrays of the size of X that `solve` holds, X itself among them.
    reads
        Matrices that `solve` reads; where there are any, X must overlap neither them nor B.
    """

    solve: Callable[[TriangleSolver, NDArray[Any]], None]
    copies: int = 1
    reads: tuple[StoredMatrix, ...] = ()


def solve_stored(
    n: int,
    dtype: np.dtype[Any],
    b: Any,
    out: Any,
    solver: ColumnSolver,
    run: Run,
    *,
    check_finite: bool,
) -> Any:
    """Solve for all columns of B, as many at a time as fit the memory, and return X.

    Parameters
    ----------
    n, dtype
        Of the factored matrix.
    b, out
        As in `solve_triangular`.
    """
    rhs, vector = open_rhs(b, n)
    dtype = result_dtype(dtype, rhs.dtype)
    given = single(out)
    if vector and isinstance(given, np.ndarray):
        given = given[:, np.newaxis]
    with (
        host_session(run.session, run.options) as (_, chosen),
        destination(given, b, rhs, order="F", overwrite_a=False, dtype=dtype) as target,
    ):
        for matrix in (rhs, *solver.reads) if solver.reads else ():
            if overlaps(target.stored.operand.matrix, matrix.operand.matrix):
                raise InputError("out overlaps a or b, which refinement reads until its end")
        solve_columns(
            solver, rhs, target.stored, dtype, chosen, run.watch, check_finite=check_finite
        )
    result = target.result()
    if isinstance(out, np.ndarray):
        return out
    return result[:, 0] if vector and target.location is None else result


def open_rhs(b: Any, n: int) -> tuple[StoredMatrix, bool]:
    """Open the right-hand sides of a system of order n; say whether they are one vector."""
    vector = not (is_location(b) or isinstance(b, StoredMatrix)) and np.ndim(b) == 1
    rhs = open_matrix(np.asarray(b)[:, np.newaxis] if vector else b)
    if rhs.shape[0] != n:
        raise InputError(f"b has {rhs.shape[0]} rows, the matrix {n}: they must be as many")
    return rhs, vector


def solve_columns(
    solver: ColumnSolver,
    rhs: StoredMatrix,
    target: StoredMatrix,
    dtype: np.dtype[Any],
    options: Options,
    watch: Watch,
    *,
    check_finite: bool,
) -> None:
    """Store X for all columns of B, as many at a time as fit the memory with their copies."""
    (n, count), memory = rhs.shape, options.host_bytes or default_host_bytes()
    array = in_memory(target, dtype)
    columns = count
    if array is None or solver.copies > 1:
        columns = _columns(n * solver.copies, dtype, memory, count)
    with TriangleSolver(n, dtype, memory // 4, watch) as triangles:
        for first in range(0, count, max(1, columns)):
            part = rhs[:, first : first + columns]
            x = np.empty(part.shape, dtype, "F")
            if array is not None:
                x = array[:, first : first + columns]
            part.read(x)
            if check_finite and not all(np.isfinite(column).all() for column in x.T):
                raise InputError("b must not contain infs or NaNs")
            solver.solve(triangles, x)
            if array is None:
                target[:, first : first + columns] = x


def _columns(n: int, dtype: np.dtype[Any], memory: int, most: int) -> int:
    """Return how many columns of B fit beside the stream, which has a quarter of the memory."""
    column = max(1, n * dtype.itemsize)
    room = memory - memory // 4 - BOUNCE_BYTES
    if room < column:
        requested = (column + BOUNCE_BYTES) * 4 // 3 + 1
        raise DoesNotFitError(
            f"one column of b and the stream need {requested} bytes; host_memory is {memory}: "
            f"raise it by {requested - memory} bytes",
            requested=requested, available=memory, missing=requested - memory,
        )  # fmt: skip
    return min(most, room // column)


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
    options, session, progress, observer, cancel
        As in `cholesky`.

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
    return solve_stored(
        matrix.shape[0], matrix.dtype, b, out,
        ColumnSolver(lambda solver, x: solver.solve(triangle, x)),
        Run(options, session, Watch.of(progress, observer, cancel)), check_finite=check_finite,
    )  # fmt: skip
