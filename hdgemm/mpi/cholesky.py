"""Cholesky over MPI: `cholesky`, `cho_solve`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.call.keywords import public_call
from hdgemm.dtypes import ELEMENT_TYPES
from hdgemm.fortran import cholesky_pairs
from hdgemm.linalg.factored_solve import check_pair
from hdgemm.linalg.stored_factors import CholeskyFactor, open as open_factors
from hdgemm.mpi._block_cyclic import BlockCyclicArray
from hdgemm.mpi._results import new_target, stored_solution, target_of
from hdgemm.mpi._run import MpiCall, MpiKeywords, Request, refuse_zero, started
from hdgemm.mpi._substitution import back_substitute_adjoint, forward_substitute
from hdgemm.mpi.lu import solve_flops, zero_on_diagonal
from hdgemm.mpi.processes import together
from hdgemm.mpi.slabs.checkpoint import by_slabs
from hdgemm.mpi.slabs.cholesky import cholesky_by_slabs
from hdgemm.mpi.slabs.plan import BySlabs
from hdgemm.mpi.slabs.solve import cho_solve_by_slabs
from hdgemm.product.target import is_location

if TYPE_CHECKING:
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.mpi._part import Part
    from hdgemm.mpi._run import Run
    from hdgemm.mpi._strips import Rectangle, Triangle


@public_call(MpiKeywords)
def cholesky(
    a: Any,
    lower: bool = False,
    check_finite: bool = True,
    *,
    out: Any = None,
    restart: bool = False,
    **keywords: Unpack[MpiKeywords],
) -> Any:
    """Return the Cholesky factor of a Hermitian positive definite matrix, over MPI.

    A = L·L^H for ``lower=True``, A = U^H·U otherwise. One triangle of A is read and updated. A
    matrix in storage that is larger than the memory of all processes is factored by slabs, as by
    `lu_factor`.

    Parameters
    ----------
    a
        As in `lu_factor`; only the triangle that `lower` names is read, of a `BlockCyclicArray` the
        lower one.
    lower
        Read the lower triangle and compute L; otherwise the upper one and U.
    check_finite
        Raise `NotFiniteError` at a NaN or Inf of the triangle.
    out
        As in `lu_factor`; the other triangle is zero.
    restart
        Discard the slabs of an interrupted call.
    **keywords
        Keywords of every distributed call, from `comm` to `report`.

    Returns
    -------
    array
        The factor, on every rank; a .npy file as a read-only memmap. None outside the grid.

    Raises
    ------
    LinAlgError
        When A is not positive definite: `order` of the leading minor. It is a
        `SingularMatrixError`.
    InputError, DoesNotFitError
        As `lu_factor`.

    See Also
    --------
    cho_solve : Solve with the factor.
    hdgemm.linalg.cholesky : On one machine.

    References
    ----------
    E. D'Azevedo, J. Dongarra: The design and implementation of the parallel out-of-core
    ScaLAPACK LU, QR, and Cholesky factorization routines, 2000 (left-looking slabs).

    Examples
    --------
    >>> hdgemm.mpi.cholesky("A.npy", lower=True, out="L.npy")
    """
    call, lower = MpiCall.begin("cholesky", a, out, keywords), bool(lower)
    dealt = out is None and isinstance(a, BlockCyclicArray)
    place = None if dealt else target_of(call.world, out, a, factor=True)
    slabs = BySlabs.NEVER if place is None else by_slabs(call.world, place)
    arguments = {"out": str(place), "lower": lower, "restart": bool(restart)}
    request = Request("cholesky", a, None, arguments, check_finite, slabs=slabs)
    with started(request, call) as opened:
        if opened is None:
            return None
        if opened.slabs is not None and place is not None:
            factored = cholesky_by_slabs(opened, place, lower=lower, restart=bool(restart))
            opened.run.finish(call, factored.flops)
            return factored.factor
        run = opened.run
        part = triangle_part(run, opened.a, lower=lower)
        run.factor_cholesky(part)
        if place is None:
            zero_above(part)
            run.finish(call, cholesky_flops(run))
            return a.like(part, 0)
        factor = ("cholesky", opened.a)
        with (
            run.recorder.record("write", 0),
            new_target(run.world, place, opened.a.shape, run.dtype, factor=factor) as target,
        ):
            target.store(part, finish=partial(_zero_triangle, lower), flipped=not lower)
            target.save_beside("cholesky", {}, lower=lower)
            opened.check_unchanged()
            target.publish()
        found = target.result()
        run.finish(call, cholesky_flops(run))
    return found


@public_call(MpiKeywords)
def cho_solve(
    c_and_lower: Any,
    b: Any,
    check_finite: bool = True,
    *,
    out: Any = None,
    **keywords: Unpack[MpiKeywords],
) -> Any:
    """Solve A·X = B with the Cholesky factor of A, over MPI.

    With `out`, a factor in storage may be larger than the memory of all processes: X is solved for
    in groups of columns, for each of which the factor is read twice.

    Parameters
    ----------
    c_and_lower
        The factor, or its location, and whether it is the lower one; or the location of a factor
        that `cholesky` has stored, here or in `hdgemm.linalg`.
    b, check_finite, out
        As in `lu_solve`.
    **keywords
        Keywords of every distributed call, from `comm` to `report`.

    Returns
    -------
    array
        As `solve`.

    Raises
    ------
    LinAlgError
        When a diagonal element is exactly zero; a `SingularMatrixError`.
    InputError, DoesNotFitError
        As `lu_factor`.

    See Also
    --------
    cholesky : The factor.
    hdgemm.linalg.cho_solve : On one machine.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, chapter 10 (Cholesky
    factors).

    Examples
    --------
    >>> x = hdgemm.mpi.cho_solve("L.npy", "B.npy", out="X.npy")
    """
    call = MpiCall.begin("cho_solve", None, out, keywords)
    place = None if out is None else target_of(call.world, out, c_and_lower, b)
    with together(call.world):
        given = open_factors(c_and_lower) if is_location(c_and_lower) else c_and_lower
        c, lower = check_pair(given, "c_and_lower", CholeskyFactor)
    arguments = {"out": str(place), "lower": bool(lower)}
    slabs = BySlabs.NEVER if place is None else BySlabs.WHERE_LARGER
    with started(Request("cho_solve", c, b, arguments, check_finite, slabs=slabs), call) as opened:
        if opened is None:
            return None
        run = opened.run
        if opened.slabs is not None and place is not None:
            found = cho_solve_by_slabs(opened, place, lower=bool(lower))
            run.finish(call, solve_flops(run))
            return found
        part = run.part()
        run.load(part, opened.a, "c", triangle=_named(lower=bool(lower)))
        run.load(part, opened.columns, "b", run.variant.n)
        refuse_zero(run, zero_on_diagonal(run, part))
        run.substitute(part, substitute_cholesky)
        found = stored_solution(opened, place, part)
        run.finish(call, solve_flops(run))
    return found


def triangle_part(run: Run, a: Any, *, lower: bool) -> Part:
    """Return the lower triangle of a matrix of which one triangle is read."""
    part = run.part()
    part.a[:] = 0  # updates compute with elements above the diagonal, too
    run.load(part, a, "a", triangle=_named(lower=lower))
    return part


def substitute_cholesky(part: Part, right: NDArray[Any]) -> NDArray[Any]:
    """Return L^-H·L⁻¹·B."""
    found = forward_substitute(part, right, None, unit=False)
    return back_substitute_adjoint(part, found)


def cholesky_flops(run: Run) -> float:
    """Return the operations of the factorisation."""
    n = run.variant.n
    return ELEMENT_TYPES[run.dtype.name].flops * cholesky_pairs(n, n)


def zero_above(part: Part) -> None:
    """Set the elements above the diagonal to zero."""
    for at, col in enumerate(part.cols.positions()):
        part.a[: part.rows.below(int(col)), at] = 0


def _named(*, lower: bool) -> Triangle:
    return "lower" if lower else "upper"


def _zero_triangle(lower: bool, strip: Rectangle, array: NDArray[Any]) -> None:
    """Finish a strip of the factor's columns: zeros in the other triangle, U as L's adjoint."""
    cut = np.triu if lower else np.tril  # stored rows are the file's columns
    array[:] = cut(array, strip.row - strip.col)
    if not lower and array.dtype.kind == "c":
        np.conj(array, out=array)
