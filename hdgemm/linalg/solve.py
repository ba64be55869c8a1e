"""Solutions of linear systems out of core: `solve`."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hdgemm.errors import InputError
from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg.cholesky import cho_factor
from hdgemm.linalg.factored_solve import by_cholesky, by_lu, cho_solve, lu_solve
from hdgemm.linalg.lu import factor
from hdgemm.linalg.norms import norm_inf
from hdgemm.linalg.refinement import COPIES, SINGLE, NotConvergedError, Refinement
from hdgemm.linalg.run import Run, host_session
from hdgemm.linalg.scratch import scratch_file
from hdgemm.linalg.storage import open_square
from hdgemm.linalg.triangular import ColumnSolver, open_rhs, solve_stored, solve_triangular
from hdgemm.machine.limits import default_host_bytes
from hdgemm.matrices.base import Converted
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.triangles import SymmetricMatrix
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from hdgemm.matrices.base import Matrix
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback
    from hdgemm.run.session import Session

_LOG: Final = logging.getLogger(__name__)


@shows_progress
def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
    transposed: bool = False,
    *,
    refine: str | None = None,
    out: Any = None,
    options: Options | None = None,
    session: Session | None = None,
    progress: ProgressCallback | bool | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
) -> Any:
    """Solve A·X = B for a square matrix of any size.

    Where A lies in a file its factors go to a scratch file in the same folder, which needs as much
    space as A and is removed afterwards.

    Parameters
    ----------
    a, b
        As in `lu_factor` and `solve_triangular`.
    lower
        The triangle that is read for "pos".
    overwrite_a
        The factors may be stored in place of `a`.
    assume_a
        "gen", "sym" and "her": LU with partial pivoting of the whole matrix; "pos": Cholesky;
        "upper triangular", "lower triangular": no factorisation.
    transposed
        Solve with the transpose of A.
    refine
        ``"float32"``: factor in single precision, which takes half the time and half the scratch
        space, and refine X in double precision. X is as accurate as without. Where it does not
        converge, A is factored in double precision after all. It has no effect for matrices in
        single precision. `out` must not overlap A or B.
    overwrite_b, check_finite, out, options, session, progress, observer, cancel
        As in `solve_triangular`.

    Raises
    ------
    LinAlgError
        When a pivot is exactly zero, or A is not positive definite; a `SingularMatrixError`.
    InputError
        When shapes do not fit together, or elements are not finite.
    """
    run: dict[str, Any] = {
        "options": options, "session": session, "progress": progress, "observer": observer,
        "cancel": cancel,
    }  # fmt: skip
    rest: dict[str, Any] = run | {"check_finite": check_finite, "out": out}
    if assume_a in ("upper triangular", "lower triangular"):
        return solve_triangular(
            a, b, int(transposed), assume_a.startswith("lower"), overwrite_b=overwrite_b, **rest
        )
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise InputError(
            "assume_a must be 'gen', 'sym', 'her', 'pos', 'upper triangular' or 'lower "
            f"triangular', got {assume_a!r}"
        )
    source = open_square(a)
    open_rhs(b, source.shape[0])
    if assume_a == "pos" and transposed and source.dtype.kind == "c":
        raise InputError("transposed does not go with assume_a='pos' for a complex matrix")
    if refine not in (None, "float32"):
        raise InputError(f"refine must be None or 'float32', got {refine!r}")
    if refine and source.dtype.newbyteorder("=").name in SINGLE:
        how = Run(options, session, Watch.of(progress, observer, cancel))
        system = _System(source, bool(lower), assume_a, bool(transposed), check_finite)
        try:
            return _solve_refined(system, b, out, how)
        except (NotConvergedError, SingularMatrixError) as error:
            _LOG.warning("solve factors again in double precision: %s", error)
    with scratch_file(source, overwrite_a=overwrite_a) as place:
        if assume_a == "pos":
            c_and_lower = cho_factor(a, lower, overwrite_a, check_finite, out=place, **run)
            return cho_solve(c_and_lower, b, overwrite_b, **rest)
        lu, pivots, zero = factor(
            a, place, Watch.of(progress, observer, cancel), options, session,
            overwrite_a=overwrite_a, check_finite=check_finite,
        )  # fmt: skip
        if zero:
            raise SingularMatrixError(f"a is singular: pivot {zero} is exactly zero", order=zero)
        return lu_solve((lu, pivots), b, int(transposed), overwrite_b, **rest)


class _System(NamedTuple):
    """A system to be solved with factors in single precision; arguments as of `solve`."""

    a: StoredMatrix
    lower: bool
    assume_a: str
    transposed: bool
    check_finite: bool


def _solve_refined(system: _System, b: Any, out: Any, how: Run) -> Any:
    """Solve with factors in single precision.

    Raises
    ------
    NotConvergedError, SingularMatrixError
        When A must be factored in double precision.
    """
    a, trans = system.a, int(system.transposed)
    operand = a.operand
    with (
        host_session(how.session, how.options) as (session, options),
        scratch_file(a, overwrite_a=False) as place,
    ):
        factors = _single_factors(system, place, Run(options, session, how.watch))
        whole = a
        if system.assume_a == "pos":
            lower = system.lower != operand.trans
            whole = _with_matrix(a, SymmetricMatrix(operand.matrix, lower=lower, hermitian=True))
        memory = options.host_bytes or default_host_bytes()
        norm = norm_inf(whole.T if trans else whole, memory // 4)
        refinement = Refinement(
            whole, norm, trans, factors, memory // 4, options, session, how.watch
        )
        remaining = replace(options, host_memory=memory * 3 // 4)
        return solve_stored(
            a.shape[0], a.dtype, b, out, ColumnSolver(refinement, COPIES, (a,)),
            Run(remaining, session, how.watch), check_finite=system.check_finite,
        )  # fmt: skip


def _with_matrix(a: StoredMatrix, matrix: Matrix) -> StoredMatrix:
    return StoredMatrix(replace(a.operand, matrix=matrix), writable=False)


def _single_factors(system: _System, place: Path | None, run: Run) -> ColumnSolver:
    """Factor A in single precision; return what solves with its factors."""
    matrix = system.a.operand.matrix
    single = SINGLE[system.a.dtype.newbyteorder("=").name]
    a, check_finite = _with_matrix(system.a, Converted(matrix, single)), system.check_finite
    options, session, watch = run
    try:
        if system.assume_a == "pos":
            c, lower = cho_factor(
                a, system.lower, False, check_finite, out=place, options=options, session=session,
                progress=watch.progress, observer=watch.observer, cancel=watch.cancel,
            )  # fmt: skip
            return by_cholesky(open_square(c), lower=lower)
        lu, pivots, zero = factor(a, place, watch, options, session, check_finite=check_finite)
    except InputError as error:
        # An element beyond the range of single precision, or one that is not finite in double.
        raise NotConvergedError(f"in single precision {error}") from error
    if zero:
        raise SingularMatrixError(f"pivot {zero} is zero in single precision", order=zero)
    return by_lu(open_square(lu), pivots, "T" if system.transposed else "N")
