"""Solutions of linear systems out of core: `solve`."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg.factored_solve import solve_triangular
from hdgemm.linalg.operands import absolute, open_square
from hdgemm.linalg.refinement import SINGLE, NotConvergedError
from hdgemm.linalg.run import Run
from hdgemm.linalg.slab_journal import Command
from hdgemm.linalg.solution import Solution
from hdgemm.linalg.system import (
    MIRRORED,
    System,
    check_refine,
    check_transposed,
    factored,
    refined,
    structure_of,
)
from hdgemm.product.arguments import flag
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress

if TYPE_CHECKING:
    import threading

    from hdgemm.durable.run import Checkpointing
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback, ReportCallback
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
    assume_a: str | None = "gen",
    transposed: bool = False,
    *,
    refine: str | None = None,
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
    """Solve A·X = B for a square matrix of any size.

    LU factors of a matrix in a file stay in memory where they fit. Others go to a scratch file in
    its folder, or beside X with `checkpoint`; it needs as much space as A, and is removed at the
    end. A and B of different dtypes are promoted before A is factored, as in SciPy.

    Parameters
    ----------
    a, b
        As in `lu_factor` and `solve_triangular`.
    lower
        The triangle that is read for "pos", "sym" and "her".
    overwrite_a
        The factors may be stored in place of `a`; not with both `refine` and `checkpoint`, and not
        for "sym" and "her".
    assume_a
        "gen": LU with partial pivoting; "sym" and "her": the same of the symmetric or Hermitian
        matrix whose triangle `lower` names, the other one is not read; "pos": Cholesky; "upper
        triangular", "lower triangular": no factorisation. SciPy's long names "general",
        "symmetric", "hermitian" and "positive definite" mean the same; None means "gen".
    transposed
        Solve with the transpose of A.
    refine
        ``"float32"``: factor in single precision, which takes half the time and half the scratch
        space, and refine X in double precision. X is as accurate as without. Where it does not
        converge, A is factored in double precision after all. It has no effect for matrices in
        single precision. `out` must not overlap A or B.
    overwrite_b, check_finite, out, session, progress, observer, cancel, report
        As in `solve_triangular`. The report is of the factorisation and of the solution together;
        ``plan["parts"]`` has the plan of each.
    options
        As in `lu_factor`, and for the solution as in `solve_triangular`.
    checkpoint
        Keep a journal beside X (or at this path), so that the same call goes on after a crash; at
        most one slab of the factorisation, or one group of columns of X, is computed again. X must
        be a file.
    restart
        Discard what an earlier run left, and begin again.

    Raises
    ------
    LinAlgError
        When a pivot is exactly zero, or A is not positive definite; a `SingularMatrixError`.
    InputError
        When shapes do not fit together, or elements are not finite.
    """
    a, out = absolute(a), absolute(out)
    rest: dict[str, Any] = {
        "check_finite": check_finite, "out": out, "options": options, "session": session,
        "progress": progress, "observer": observer, "cancel": cancel, "report": report,
        "checkpoint": checkpoint, "restart": restart,
    }  # fmt: skip
    assume_a = structure_of(assume_a)
    if assume_a in ("upper triangular", "lower triangular"):
        return solve_triangular(
            a, b, int(transposed), assume_a.startswith("lower"), overwrite_b=overwrite_b, **rest
        )
    check_refine(refine)
    lower = flag(lower, "lower")
    arguments = {"assume_a": assume_a, "lower": lower, "transposed": bool(transposed),
                 "refine": refine}  # fmt: skip
    run = Run(options, session, Watch.of(progress, observer, cancel, report))
    with ExitStack() as stack:
        source = stack.enter_context(open_square(a))
        check_transposed(assume_a, source.dtype, transposed=bool(transposed))
        solution = Solution.of(b, source.shape[0], source.dtype)
        stack.enter_context(solution.rhs)
        refines = refine is not None and solution.dtype.name in SINGLE
        # A durable run that refines may need A again after it was factored in double precision,
        # and a triangle is read for columns on both sides of the diagonal.
        reread = assume_a in MIRRORED or (refines and checkpoint is not False)
        overwrites = bool(overwrite_a) and not reread
        system = System(
            a, source, solution, assume_a, lower=lower, transposed=bool(transposed),
            check_finite=bool(check_finite), overwrite_a=overwrites,
        )  # fmt: skip
        command = Command("solve", arguments, checkpoint, restart, matrices=system.kept)
        if refines:
            try:
                return system.solve(out, refined, run, command)
            except (NotConvergedError, SingularMatrixError) as error:
                _LOG.warning("solve factors again in double precision: %s", str(error))
                command = replace(command, restart=False)
        return system.solve(out, factored, run, command)
