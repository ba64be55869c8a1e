"""Solutions of linear systems out of core: `solve`."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, overload

from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import absolute, open_square
from hdgemm.call.prepared import Prepared
from hdgemm.errors import InputError
from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg._checkpoint import Command
from hdgemm.linalg.factored_solve import prepare_triangular
from hdgemm.linalg.planning.solve import SINGLE
from hdgemm.linalg.solving.columns import RightHandSides
from hdgemm.linalg.solving.refinement import NotConvergedError
from hdgemm.linalg.solving.system import MIRRORED, Solved, System, prepare_system, structure_of
from hdgemm.product.arguments import flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Element, Out, Source, Stored, Where

_LOG: Final = logging.getLogger(__name__)


@overload
def solve(
    a: NDArray[Element],
    b: NDArray[Element],
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: str | None = None,
    transposed: bool = False,
    *,
    refine: str | None = None,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Element]: ...
@overload
def solve(
    a: Source,
    b: Source,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: str | None = None,
    transposed: bool = False,
    *,
    refine: str | None = None,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: str | None = None,
    transposed: bool = False,
    *,
    refine: str | None = None,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@overload
def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: str | None = None,
    transposed: bool = False,
    *,
    refine: str | None = None,
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> Out: ...
@overload
def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: str | None = None,
    transposed: bool = False,
    *,
    refine: str | None = None,
    out: Where,
    **keywords: Unpack[DurableKeywords],
) -> Stored: ...
@public_call(DurableKeywords, callers_arrays=True)
def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    check_finite: bool = True,
    assume_a: str | None = None,
    transposed: bool = False,
    *,
    refine: str | None = None,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
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
        "symmetric", "hermitian" and "positive definite" mean the same; None, "diagonal",
        "tridiagonal" and "banded" mean "gen": bands are not exploited.
    transposed
        Solve with the transpose of A.
    refine
        ``"float32"``: factor in single precision, which takes half the time and half the scratch
        space, and refine X in double precision. X is as accurate as without. Where it does not
        converge, A is factored in double precision after all. It has no effect for matrices in
        single precision. `out` must not overlap A or B.
    overwrite_b, check_finite, out
        As in `solve_triangular`.
    report
        Called with the report of the factorisation and of the solution together;
        ``plan["parts"]`` has the plan of each.
    options
        As in `lu_factor`, and for the solution as in `solve_triangular`.
    checkpoint
        Keep a journal beside X (or at this path), so that the same call goes on after a crash; at
        most one slab of the factorisation, or one group of columns of X, is computed again. X must
        be a file.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        X, a vector where `b` is one; `out` where that is an array or a matrix, a read-only memmap
        for the location of a .npy file.

    Warns
    -----
    LinAlgWarning
        When A is singular to working precision, by LAPACK's estimate of its reciprocal condition
        number, as SciPy. The estimate is made where the factors are in an array of the host: of
        factors in a file or on devices it would take about as long as a solution; see `cond`.

    Raises
    ------
    LinAlgError
        When a pivot is exactly zero, or A is not positive definite; a `SingularMatrixError`.
    InputError
        When shapes do not fit together, or elements are not finite.

    See Also
    --------
    lu_factor, lu_solve : Keep the factors for further systems.
    lstsq : More equations than unknowns.
    hdgemm.mpi.solve : In the memory of several machines.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, chapters 9 (LU factors) and
    12 (refinement).

    Examples
    --------
    >>> x = hdgemm.linalg.solve("A.npy", "B.npy", out="X.npy")
    """
    with prepare(
        a,
        b,
        out,
        Call.of(**keywords),
        lower=lower,
        overwrite_a=overwrite_a,
        check_finite=check_finite,
        assume_a=assume_a,
        transposed=transposed,
        refine=refine,
    ) as prepared:
        return prepared.run().warn()


@contextmanager
def prepare(
    a: Any,
    b: Any,
    out: Any,
    call: Call,
    *,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    assume_a: str | None = None,
    transposed: bool = False,
    refine: str | None = None,
) -> Iterator[Prepared[Solved]]:
    """Yield one solution, planned."""
    a, out = absolute(a), absolute(out)
    structure, transposed, lower = structure_of(assume_a), bool(transposed), flag(lower, "lower")
    check_refine(refine)
    if "triangular" in structure:
        lower = structure.startswith("lower")
        with prepare_triangular(
            a, b, out, call, trans=int(transposed), lower=lower, check_finite=check_finite
        ) as triangular:
            yield Prepared(
                triangular.plan, lambda: Solved(triangular.compute(), 1.0), triangular.session
            )
        return
    with open_square(a) as source:
        rhs = RightHandSides.of(b, source.shape[0], source.dtype)
        refines = refine is not None and rhs.dtype.name in SINGLE
        # A durable run that refines may need A again after it was factored in double precision,
        # and a triangle is read for columns on both sides of the diagonal.
        reread = structure in MIRRORED or (refines and call.checkpoint is not False)
        system = System(
            a,
            source,
            rhs,
            structure,
            lower=lower,
            transposed=transposed,
            check_finite=bool(check_finite),
            overwrite_a=bool(overwrite_a) and not reread,
        )
        arguments = {
            "assume_a": structure,
            "lower": lower,
            "transposed": transposed,
            "refine": refine,
        }
        command = Command("solve", arguments, call.checkpoint, call.restart, matrices=system.kept)
        with rhs.matrix, ExitStack() as first:
            prepared = first.enter_context(
                prepare_system("solve", system, out, call, command, name="factors", refines=refines)
            )
            if refines:
                again = partial(_in_double, system, out, call, command)
                refined = partial(_refined, prepared.compute, first, again)
                yield Prepared(prepared.plan, refined, prepared.session)
            else:
                yield prepared


def _refined(
    refined: Callable[[], Solved], factors: ExitStack, again: Callable[[], Solved]
) -> Solved:
    """Return X from factors in single precision; where it does not converge, discard them first."""
    try:
        return refined()
    except (NotConvergedError, SingularMatrixError) as error:
        _LOG.warning("solve factors again in double precision: %s", str(error))
    factors.close()
    return again()


def _in_double(system: System, out: Any, call: Call, command: Command) -> Solved:
    call, command = replace(call, restart=False), replace(command, restart=False)
    with prepare_system("solve", system, out, call, command, name="factors") as prepared:
        return prepared.run()


def check_refine(refine: str | None) -> None:
    """Raise `InputError` where X cannot be refined in this way."""
    if refine not in (None, "float32"):
        raise InputError(f"refine must be None or 'float32', got {refine!r}")
