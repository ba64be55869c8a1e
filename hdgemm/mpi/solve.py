"""Solutions of linear systems over MPI: `solve`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from hdgemm.call.keywords import public_call
from hdgemm.errors import InputError
from hdgemm.linalg.planning.solve import SINGLE
from hdgemm.linalg.solve import check_refine
from hdgemm.linalg.solving.refinement import NotConvergedError
from hdgemm.mpi._refinement import refined_cholesky, refined_substitution
from hdgemm.mpi._results import stored_solution, target_of
from hdgemm.mpi._run import (
    MpiCall,
    MpiKeywords,
    Request,
    check_assumed,
    check_pivoting,
    refuse_zero,
    started,
)
from hdgemm.mpi._substitution import back_substitute
from hdgemm.mpi.cholesky import (
    cholesky_flops,
    substitute_cholesky,
    triangle_part,
    zero_above,
)
from hdgemm.mpi.lu import factor_flops, first_zero, solve_flops
from hdgemm.mpi.processes import together
from hdgemm.mpi.slabs.checkpoint import by_slabs
from hdgemm.mpi.slabs.plan import BySlabs
from hdgemm.mpi.slabs.solve import factors_beside, solve_by_slabs, solve_positive_by_slabs

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from hdgemm.mpi._part import Part
    from hdgemm.mpi._refinement import Refinement
    from hdgemm.mpi._run import Opened, Run

_LOG: Final = logging.getLogger(__name__)


@public_call(MpiKeywords)
def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
    *,
    out: Any = None,
    refine: str | None = None,
    pivoting: str = "partial",
    restart: bool = False,
    **keywords: Unpack[MpiKeywords],
) -> Any:
    """Solve A·X = B for a square matrix in the memory of all machines, over MPI.

    A is factored by LU with partial pivoting, and L⁻¹ applied to B on the way (HPL). Every process
    makes the same call. With matrices in storage and `out`, A may be larger than the memory of all
    processes: it is factored by slabs as by `lu_factor`, into a file beside `out` that is removed
    at the end.

    Parameters
    ----------
    a
        A matrix that every rank can open: the location of a file in shared storage, or the same
        array on each; or a `BlockCyclicArray`. A and B of different dtypes are promoted.
    b
        The same: one vector, or a matrix of any number of columns.
    lower
        The triangle that is read for "pos".
    check_finite
        Raise `NotFiniteError` at a NaN or Inf.
    assume_a
        "gen": LU; "pos": Cholesky.
    out
        The location of a new file in shared storage, or of an array of a Zarr store, which appears
        when it is complete: .npy (column-major), raw, a new HDF5 file, Zarr. None for an array on
        every rank, or for X dealt as a `BlockCyclicArray` `b` is.
    refine
        "float32": factor a copy of A in single precision and refine X in double precision. X is as
        accurate as without. Where refinement does not converge, A is factored in double precision.
        A rank needs half of its part more.
    pivoting
        As in `lu_factor`; for "gen".
    restart
        Discard the slabs of an interrupted call.
    **keywords
        Keywords of every distributed call, from `comm` to `report`.

    Returns
    -------
    array
        X, the same on every rank; a .npy file as a read-only memmap. None on ranks outside the
        grid.

    Raises
    ------
    LinAlgError
        When a pivot is exactly zero, or A is not positive definite; a `SingularMatrixError`.
    InputError
        When shapes do not fit together, ranks have different arguments or versions, or see
        different matrices.
    DoesNotFitError
        When a machine lacks memory for its part: `missing` in bytes.

    See Also
    --------
    lu_factor, lu_solve : Keep the factors.
    hdgemm.linalg.solve : On one machine.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, chapter 9 (LU factors).

    Examples
    --------
    >>> x = hdgemm.mpi.solve("A.npy", "B.npy", out="X.npy")
    """
    call = MpiCall.begin("solve", a, out, keywords, refine)
    with together(call.world):
        if b is None:
            raise InputError("b must be a matrix, got None")
        check_assumed(assume_a)
        check_refine(refine)
        check_pivoting(pivoting)
        if pivoting != "partial" and assume_a == "pos":
            raise InputError("assume_a='pos' takes no pivots: leave pivoting out")
    place = None if out is None else target_of(call.world, out, a, b)
    slabs = BySlabs.NEVER
    if place is not None and refine is None:
        slabs = by_slabs(call.world, factors_beside(place))
    arguments = {
        "out": str(place),
        "lower": bool(lower),
        "assume_a": assume_a,
        "refine": refine,
        "restart": bool(restart),
    }
    refines = refine is not None
    request = Request(
        "solve", a, b, arguments, check_finite, refines=refines, slabs=slabs, pivoting=pivoting
    )
    with started(request, call) as opened:
        if opened is None:
            return None
        if opened.slabs is not None and place is not None:
            if assume_a == "pos":
                found, flops = solve_positive_by_slabs(
                    opened, place, lower=bool(lower), restart=bool(restart)
                )
            else:
                found, flops = solve_by_slabs(opened, place, restart=bool(restart))
            opened.run.finish(call, flops + solve_flops(opened.run))
            return found
        run, n = opened.run, opened.a.shape[0]
        if assume_a == "pos":
            part = triangle_part(run, opened.a, lower=bool(lower))
            zero_above(part)
            run.load(part, opened.columns, "b", n)
            if not (
                refines and run.dtype.name in SINGLE and _refined(opened, part, refined_cholesky)
            ):
                run.factor_cholesky(part)
                run.substitute(part, substitute_cholesky)
            flops = cholesky_flops(run)
        else:
            part = run.part()
            run.load(part, opened.a, "a")
            run.load(part, opened.columns, "b", n)
            how = refined_substitution
            if not (refines and run.dtype.name in SINGLE and _refined(opened, part, how)):
                refuse_zero(run, first_zero(run.factor(part)))
                run.substitute(part, back_substitute)
            flops = factor_flops(run)
        found = stored_solution(opened, place, part)
        run.finish(call, flops + solve_flops(run))
    return found


def _refined(opened: Opened, part: Part, factored: Callable[[Run, Part], Refinement]) -> bool:
    """Replace B by X, refined; where it does not converge, leave [A|B] and return False."""
    run = opened.run
    try:
        refinement = factored(run, part)
        run.substitute(part, refinement)
    except NotConvergedError as error:
        if run.world.rank == 0:
            _LOG.warning("solve factors again in double precision: %s", str(error))
        run.load(part, opened.columns, "b", run.variant.n)
        return False
    return True
