"""LU over MPI: `lu_factor`, `lu_solve`, `slogdet`."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import LinAlgWarning

from hdgemm.call.keywords import public_call
from hdgemm.dtypes import ELEMENT_TYPES
from hdgemm.errors import InputError
from hdgemm.fortran import elimination_pairs
from hdgemm.linalg.determinant import SlogdetResult, scaled_product
from hdgemm.linalg.factored_solve import check_pair, check_pivots
from hdgemm.linalg.stored_factors import LUFactors, open as open_factors
from hdgemm.mpi._block_cyclic import BlockCyclicArray
from hdgemm.mpi._results import new_target, stored_solution, target_of
from hdgemm.mpi._run import (
    MpiCall,
    MpiKeywords,
    Request,
    check_pivoting,
    refuse_zero,
    started,
)
from hdgemm.mpi._substitution import (
    back_substitute,
    forward_substitute,
    interchange,
    interchange_left,
    interchange_strip,
)
from hdgemm.mpi.processes import together
from hdgemm.mpi.slabs.checkpoint import by_slabs
from hdgemm.mpi.slabs.lu import factor_by_slabs
from hdgemm.mpi.slabs.plan import BySlabs
from hdgemm.mpi.slabs.solve import lu_solve_by_slabs
from hdgemm.product.target import is_location

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.mpi._elimination import Elimination
    from hdgemm.mpi._run import Run


@public_call(MpiKeywords)
def lu_factor(
    a: Any,
    check_finite: bool = True,
    *,
    out: Any = None,
    pivoting: str = "partial",
    restart: bool = False,
    **keywords: Unpack[MpiKeywords],
) -> LUFactors | None:
    """Return ``(lu, piv)``, the LU factorisation P·A = L·U of a square matrix, over MPI.

    A lies in the memory of all machines, dealt block-cyclically to a grid of processes. Every
    process makes the same call. Pivots are chosen as by LAPACK by default. A matrix in storage that
    is larger than the memory of all processes is factored by slabs of columns; each is durable when
    it is finished, and the same call goes on after an interruption.

    Parameters
    ----------
    a
        A matrix that every rank can open: the location of a file in shared storage, or the same
        array on each. Or a `BlockCyclicArray`.
    check_finite
        Raise `NotFiniteError` at a NaN or Inf.
    out
        The location of a new .npy or raw file in shared storage, in LAPACK's layout, with its
        pivots beside it; `hdgemm.linalg.open` and `hdgemm.linalg.lu_solve` take it on one machine.
        It appears when it is complete. None for factors dealt as a `BlockCyclicArray` `a` is.
    pivoting
        "partial", or "tournament": each rank of a column of the grid proposes rows of a panel, and
        one message has all proposals (CALU), where partial pivoting exchanges one for each column.
        Elements of L may then be larger than 1.
    restart
        Discard the slabs of an interrupted call.
    **keywords
        Keywords of every distributed call, from `comm` to `report`.

    Returns
    -------
    lu, piv
        The same on every rank; None on ranks outside the grid.

    Warns
    -----
    LinAlgWarning
        When a pivot is exactly zero.

    Raises
    ------
    InputError
        When ranks have different arguments or versions, or see different matrices.
    DoesNotFitError
        When a machine lacks memory for its part: `missing` in bytes.

    See Also
    --------
    lu_solve : Solve with the factors.
    hdgemm.linalg.lu_factor : On one machine.

    References
    ----------
    E. D'Azevedo, J. Dongarra: The design and implementation of the parallel out-of-core
    ScaLAPACK LU, QR, and Cholesky factorization routines, 2000 (left-looking slabs).

    Examples
    --------
    >>> lu, piv = hdgemm.mpi.lu_factor("A.npy", out="LU.npy")
    """
    call = MpiCall.begin("lu_factor", a, out, keywords)
    with together(call.world):
        check_pivoting(pivoting)
    dealt = out is None and isinstance(a, BlockCyclicArray)
    place = None if dealt else target_of(call.world, out, a, factor=True)
    slabs = BySlabs.NEVER if place is None else by_slabs(call.world, place)
    arguments = {"out": str(place), "restart": bool(restart)}
    request = Request("lu_factor", a, None, arguments, check_finite, slabs=slabs, pivoting=pivoting)
    with started(request, call) as opened:
        if opened is None:
            return None
        if opened.slabs is not None and place is not None:
            found = factor_by_slabs(opened, place, restart=bool(restart))
            opened.run.finish(call, found.flops)
            _warn_of(found.zero)
            return LUFactors(found.lu, found.pivots)
        run, shape = opened.run, opened.a.shape
        part = run.part()
        if place is None:
            run.load(part, opened.a, "a")
            elimination = run.factor(part)
            pivots = _whole(elimination.pivots)
            interchange_left(part, elimination.pivots)
            lu = a.like(part, 0)
        else:
            with new_target(run.world, place, shape, run.dtype, factor=("lu", opened.a)) as target:
                run.load(part, opened.a, "a")
                elimination = run.factor(part)
                pivots = _whole(elimination.pivots)
                with run.recorder.record("write", 0):
                    target.store(part, finish=partial(interchange_strip, pivots, run.variant.nb))
                    target.save_beside("lu", {"piv": pivots})
                    opened.check_unchanged()
                    target.publish()
            lu = target.result()
        run.finish(call, factor_flops(run))
    _warn_of(first_zero(elimination))
    return LUFactors(lu, pivots)


@public_call(MpiKeywords)
def lu_solve(
    lu_and_piv: Any,
    b: Any,
    check_finite: bool = True,
    *,
    out: Any = None,
    **keywords: Unpack[MpiKeywords],
) -> Any:
    """Solve A·X = B with LU factors, over MPI.

    Parameters
    ----------
    lu_and_piv
        What `lu_factor` returned, here or in `hdgemm.linalg`; or the location of the factors.
    b
        As `a`: one vector or a matrix.
    check_finite
        Raise `NotFiniteError` at a NaN or Inf of B or the factors.
    out
        As in `solve`.
    **keywords
        Keywords of every distributed call, from `comm` to `report`.

    Returns
    -------
    array
        As `solve`.

    Raises
    ------
    LinAlgError
        When a pivot is exactly zero; a `SingularMatrixError`.
    InputError, DoesNotFitError
        As `lu_factor`.

    See Also
    --------
    lu_factor : The factors.
    hdgemm.linalg.lu_solve : On one machine.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, chapter 9 (LU factors).

    Examples
    --------
    >>> x = hdgemm.mpi.lu_solve("LU.npy", "B.npy", out="X.npy")
    """
    call = MpiCall.begin("lu_solve", None, out, keywords)
    place = None if out is None else target_of(call.world, out, lu_and_piv, b)
    with together(call.world):
        given = open_factors(lu_and_piv) if is_location(lu_and_piv) else lu_and_piv
        lu, piv = check_pair(given, "lu_and_piv", LUFactors)
    slabs = BySlabs.NEVER if place is None else BySlabs.WHERE_LARGER
    request = Request("lu_solve", lu, b, {"out": str(place)}, check_finite, slabs=slabs)
    with started(request, call) as opened:
        if opened is None:
            return None
        run, n = opened.run, opened.a.shape[0]
        with together(run.world):
            pivots = _by_panel(_checked(piv, opened.a.shape), run.variant.nb)
        if opened.slabs is not None and place is not None:
            found = lu_solve_by_slabs(opened, place, pivots)
            run.finish(call, solve_flops(run))
            return found
        part = run.part()
        run.load(part, opened.a, "lu")
        run.load(part, opened.columns, "b", n)
        refuse_zero(run, zero_on_diagonal(run, part))
        run.substitute(part, partial(_solve_stored, pivots))
        found = stored_solution(opened, place, part)
        run.finish(call, solve_flops(run))
    return found


@public_call(MpiKeywords)
def slogdet(
    a: Any, check_finite: bool = True, **keywords: Unpack[MpiKeywords]
) -> SlogdetResult | None:
    """Return sign and logarithm of the determinant, over MPI.

    Parameters
    ----------
    a, check_finite
        As in `lu_factor`.
    **keywords
        Keywords of every distributed call, from `comm` to `report`.

    Returns
    -------
    sign, logabsdet
        0 and -Inf for a singular matrix; the same on every rank, None outside the grid.

    Raises
    ------
    InputError, DoesNotFitError
        As `lu_factor`.

    See Also
    --------
    lu_factor, cholesky : The factors.
    hdgemm.linalg.slogdet : On one machine.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, section 14.6
    (determinants).

    Examples
    --------
    >>> sign, logabsdet = hdgemm.mpi.slogdet("A.npy")
    """
    call = MpiCall.begin("slogdet", a, None, keywords)
    with started(Request("slogdet", a, None, {}, check_finite), call) as opened:
        if opened is None:
            return None
        run = opened.run
        part = run.part()
        run.load(part, opened.a, "a")
        elimination = run.factor(part)
        opened.check_unchanged()
        run.finish(call, factor_flops(run))
    return _determinant(elimination)


def factor_flops(run: Run) -> float:
    """Return the operations of the factorisation."""
    n = run.variant.n
    return ELEMENT_TYPES[run.dtype.name].flops * elimination_pairs(n, n)


def solve_flops(run: Run) -> float:
    """Return the operations of both substitutions."""
    return ELEMENT_TYPES[run.dtype.name].flops * float(run.variant.n) ** 2 * run.columns


def first_zero(elimination: Elimination) -> int:
    """Return the 1-based index of the first pivot that is exactly zero, 0 without one."""
    zeros = np.flatnonzero(elimination.diagonal == 0)
    return int(zeros[0]) + 1 if zeros.size else 0


def zero_on_diagonal(run: Run, part: Any) -> int:
    """Return the 1-based index of the first zero on the diagonal of distributed factors."""
    rows, cols = part.rows.positions(), part.cols.positions()
    common, own_rows, own_cols = np.intersect1d(rows, cols, return_indices=True)
    zeros = common[part.a[own_rows, own_cols] == 0]
    n = run.variant.n
    first = -run.world.largest(-float(zeros[0]) if zeros.size else -float(n))
    return int(first) + 1 if first < n else 0


def _warn_of(zero: int) -> None:
    """Warn of the 1-based index of a zero pivot; 0: none."""
    if zero:
        warnings.warn(
            f"Diagonal number {zero} is exactly zero. Singular matrix.", LinAlgWarning, stacklevel=5
        )


def _determinant(elimination: Elimination) -> SlogdetResult:
    found, pivots = elimination.diagonal, _whole(elimination.pivots)
    if first_zero(elimination):
        zero = np.result_type(found.dtype, np.float64).type(0).item()
        return SlogdetResult(zero, -np.inf)
    sign, mantissa, exponent = scaled_product(found)
    interchanges = int(np.count_nonzero(pivots != np.arange(len(pivots))))
    return SlogdetResult(
        (sign * (-1) ** (interchanges % 2)).item(),
        float(np.log(mantissa) + exponent * np.log(2.0)),
    )


def _whole(pivots: Mapping[int, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the interchanges of all panels, one after the other."""
    return np.concatenate([pivots[first] for first in sorted(pivots)])


def _by_panel(pivots: NDArray[np.int64], nb: int) -> dict[int, NDArray[np.int64]]:
    return {first: pivots[first : first + nb] for first in range(0, len(pivots), nb)}


def _checked(piv: Any, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Return pivots; each one is the diagonal's row or a row below it."""
    pivots = check_pivots(piv, shape)
    if (wrong := np.flatnonzero(pivots < np.arange(len(pivots)))).size:
        row = int(wrong[0])
        raise InputError(f"piv[{row}] is {pivots[row]}: a pivot lies at or below the diagonal")
    return pivots


def _solve_stored(
    pivots: Mapping[int, NDArray[np.int64]], part: Any, right: NDArray[Any]
) -> NDArray[Any]:
    """Solve with factors whose rows all interchanges were applied to."""
    found = forward_substitute(part, interchange(part, right, pivots), None)
    return back_substitute(part, found)
