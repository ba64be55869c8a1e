"""Solutions of linear systems over MPI: `solve`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from hdgemm.call.keywords import public_call
from hdgemm.errors import InputError
from hdgemm.linalg.planning.solve import SINGLE
from hdgemm.linalg.solve import check_refine
from hdgemm.linalg.solving.refinement import NotConvergedError
from hdgemm.mpi.cholesky import cholesky_flops, factored_part, substitute_cholesky
from hdgemm.mpi.lu import factor_flops, first_zero, refuse_zero, solve_flops
from hdgemm.mpi.processes import together
from hdgemm.mpi.refinement import refined_substitution
from hdgemm.mpi.results import stored_solution, target_of
from hdgemm.mpi.run import MpiCall, MpiKeywords, Request, started
from hdgemm.mpi.substitution import back_substitute

if TYPE_CHECKING:
    from typing import Unpack

    from hdgemm.mpi.part import Part
    from hdgemm.mpi.run import Opened

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
    **keywords: Unpack[MpiKeywords],
) -> Any:
    """Solve A·X = B for a square matrix in the memory of all machines, over MPI.

    A is factored by LU with partial pivoting, and L⁻¹ applied to B on the way (HPL). Every process
    makes the same call.

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
        "float32": factor a copy of A in single precision and refine X in double precision; for
        "gen". X is as accurate as without. Where refinement does not converge, A is factored in
        double precision. A rank needs half of its part more.
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

    Examples
    --------
    >>> x = hdgemm.mpi.solve("A.npy", "B.npy", out="X.npy")
    """
    call = MpiCall(**keywords)
    with together(call.world):
        if b is None:
            raise InputError("b must be a matrix, got None")
        if assume_a not in ("gen", "pos"):
            raise InputError(f"over MPI, assume_a must be 'gen' or 'pos', got {assume_a!r}")
        check_refine(refine)
        if refine is not None and assume_a != "gen":
            raise InputError("over MPI, refine goes with assume_a='gen' only")
    place = None if out is None else target_of(call.world, out)
    arguments = {"out": str(place), "lower": bool(lower), "assume_a": assume_a, "refine": refine}
    request = Request("solve", a, b, arguments, check_finite, refines=refine is not None)
    with started(request, call) as opened:
        if opened is None:
            return None
        run, n = opened.run, opened.a.shape[0]
        if assume_a == "pos":
            part = factored_part(run, opened.a, lower=bool(lower))
            run.load(part, opened.columns, "b", n)
            run.substitute(part, substitute_cholesky)
            flops = cholesky_flops(run)
        else:
            part = run.part()
            run.load(part, opened.a, "a")
            run.load(part, opened.columns, "b", n)
            if not (request.refines and run.dtype.name in SINGLE and _refined(opened, part)):
                refuse_zero(run, first_zero(run.factor(part)))
                run.substitute(part, back_substitute)
            flops = factor_flops(run)
        found = stored_solution(opened, place, part)
        run.finish(call, flops + solve_flops(run))
    return found


def _refined(opened: Opened, part: Part) -> bool:
    """Replace B by X, refined; where it does not converge, leave [A|B] and return False."""
    run = opened.run
    try:
        run.substitute(part, refined_substitution(run, part))
    except NotConvergedError as error:
        if run.world.rank == 0:
            _LOG.warning("solve factors again in double precision: %s", str(error))
        run.load(part, opened.columns, "b", run.variant.n)
        return False
    return True
