"""Solutions with stored triangles and factors: `solve_triangular`, `lu_solve`, `cho_solve`."""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import open_square
from hdgemm.errors import InputError
from hdgemm.fortran import laswp
from hdgemm.linalg._checkpoint import Command
from hdgemm.linalg.solving.columns import ColumnSolver, RightHandSides, prepare_solution
from hdgemm.linalg.solving.triangles import Triangle
from hdgemm.linalg.stored_factors import CholeskyFactor, Factorisation, LUFactors, QRFactors
from hdgemm.product.arguments import flag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Element, Out, Source, Stored, Where
    from hdgemm.call.prepared import Prepared
    from hdgemm.linalg.solving.triangles import TriangleSolver
    from hdgemm.matrices.stored import StoredMatrix

#: What returns factors of each kind.
_MAKERS: Final[Mapping[type[Factorisation], str]] = {
    LUFactors: "lu_factor",
    CholeskyFactor: "cho_factor",
    QRFactors: "qr",
}


@overload
def solve_triangular(
    a: NDArray[Element],
    b: NDArray[Element],
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Element]: ...
@overload
def solve_triangular(
    a: Source,
    b: Source,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@overload
def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> Out: ...
@overload
def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: Where,
    **keywords: Unpack[DurableKeywords],
) -> Stored: ...
@public_call(DurableKeywords, callers_arrays=True)
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
    **keywords: Unpack[DurableKeywords],
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
    observer
        Called with each event; `unit` is the group of columns, `step` the stream block.
    checkpoint
        Keep a journal beside X (or at this path), so that the same call goes on after a crash; at
        most one group of columns is computed again. X must be a file.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        X, a vector where `b` is one; `out` where that is an array or a matrix, a read-only memmap
        for the location of a .npy file.

    Raises
    ------
    LinAlgError
        When an element of the diagonal is exactly zero; it is a `SingularMatrixError`.
    InputError
        When shapes do not fit together, or elements are not finite.
    DoesNotFitError
        When not one column of B fits the memory.

    See Also
    --------
    hdgemm.trsm : BLAS's routine, which divides by zeros.
    cho_solve, lu_solve : Both triangles.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, chapter 8 (triangular
    systems).

    Examples
    --------
    >>> x = hdgemm.linalg.solve_triangular("L.npy", "B.npy", lower=True)
    """
    with prepare_triangular(
        a,
        b,
        out,
        Call.of(**keywords),
        trans=trans,
        lower=lower,
        unit_diagonal=unit_diagonal,
        check_finite=check_finite,
    ) as prepared:
        return prepared.run()


@contextmanager
def prepare_triangular(
    a: Any,
    b: Any,
    out: Any,
    call: Call,
    *,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    check_finite: bool = True,
) -> Iterator[Prepared[Any]]:
    """Yield the solution of one triangular system, planned."""
    codes = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}
    if trans not in codes:
        raise InputError(f"trans must be 0, 1, 2, 'N', 'T' or 'C', got {trans!r}")
    with open_square(a) as matrix:
        triangle = Triangle(
            matrix, flag(lower, "lower"), codes[trans], bool(unit_diagonal), check_finite
        )
        solver = ColumnSolver(lambda solver, x: solver.solve(triangle, x), (triangle,))
        command = Command(
            "solve_triangular",
            {"trans": triangle.trans, "lower": triangle.lower, "unit": triangle.unit},
            call.checkpoint,
            call.restart,
            matrices={"the triangular matrix": matrix},
        )
        rhs = RightHandSides.of(b, matrix.shape[0], matrix.dtype)
        with prepare_solution(
            solver, rhs, out, call, command, check_finite=check_finite
        ) as prepared:
            yield prepared


@overload
def cho_solve(
    c_and_lower: tuple[Any, bool],
    b: Source,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def cho_solve(
    c_and_lower: tuple[Any, bool],
    b: Any,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@overload
def cho_solve(
    c_and_lower: tuple[Any, bool],
    b: Any,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> Out: ...
@overload
def cho_solve(
    c_and_lower: tuple[Any, bool],
    b: Any,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: Where,
    **keywords: Unpack[DurableKeywords],
) -> Stored: ...
@public_call(DurableKeywords, callers_arrays=True)
def cho_solve(
    c_and_lower: tuple[Any, bool],
    b: Any,
    overwrite_b: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    check_finite: bool = True,
    *,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any:
    """Solve A·X = B with the Cholesky factor of A, which streams through memory twice.

    Parameters
    ----------
    c_and_lower
        What `cho_factor` returned; the factor may be a location.
    b, overwrite_b, check_finite, out, options
        As in `solve_triangular`; `check_finite` concerns B.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        X, a vector where `b` is one; `out` where that is an array or a matrix, a read-only memmap
        for the location of a .npy file.

    Raises
    ------
    InputError
        When shapes do not fit together, or B is not finite.
    DoesNotFitError
        When not one column of B fits the memory.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    cho_factor : The factor.
    solve : Factor and solve in one call, with ``assume_a="pos"``.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, chapter 10 (Cholesky
    factors).

    Examples
    --------
    >>> factor = hdgemm.linalg.cho_factor("S.npy", lower=True, out="L.npy")
    >>> x = hdgemm.linalg.cho_solve(factor, "B.npy")
    """
    call = Call.of(**keywords)
    matrix, lower = open_cholesky(c_and_lower)
    with matrix:
        command = Command(
            "cho_solve",
            {"lower": lower},
            call.checkpoint,
            call.restart,
            matrices={"the factor": matrix},
        )
        solver = by_cholesky(matrix, lower=lower)
        return _solved(solver, b, out, call, command, check_finite=check_finite)


def open_cholesky(c_and_lower: Any) -> tuple[StoredMatrix, bool]:
    """Open a Cholesky factor, given as the pair that `cho_factor` returns."""
    c, lower = check_pair(c_and_lower, "c_and_lower", CholeskyFactor)
    if np.ndim(lower):
        raise InputError(f"c_and_lower must be (c, lower), lower has shape {np.shape(lower)}")
    return open_square(c, "c"), bool(lower)


def _solved(
    solver: ColumnSolver, b: Any, out: Any, call: Call, command: Command, *, check_finite: bool
) -> Any:
    """Return X for factors that are stored."""
    matrix = solver.triangles[0].matrix
    rhs = RightHandSides.of(b, matrix.shape[0], matrix.dtype)
    with prepare_solution(solver, rhs, out, call, command, check_finite=check_finite) as prepared:
        return prepared.run()


def by_cholesky(factor: StoredMatrix, *, lower: bool) -> ColumnSolver:
    """Return what solves with a stored Cholesky factor."""
    first, second = (
        Triangle(factor, bool(lower), trans) for trans in (("N", "C") if lower else ("C", "N"))
    )

    def solve_in_memory(solver: TriangleSolver, x: NDArray[Any]) -> None:
        solver.solve(first, x, second)
        solver.solve(second, x)

    return ColumnSolver(solve_in_memory, (first, second))


@overload
def lu_solve(
    lu_and_piv: tuple[Any, Any],
    b: Source,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def lu_solve(
    lu_and_piv: tuple[Any, Any],
    b: Any,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@overload
def lu_solve(
    lu_and_piv: tuple[Any, Any],
    b: Any,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> Out: ...
@overload
def lu_solve(
    lu_and_piv: tuple[Any, Any],
    b: Any,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: Where,
    **keywords: Unpack[DurableKeywords],
) -> Stored: ...
@public_call(DurableKeywords, callers_arrays=True)
def lu_solve(
    lu_and_piv: tuple[Any, Any],
    b: Any,
    trans: int = 0,
    overwrite_b: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    check_finite: bool = True,
    *,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any:
    """Solve op(A)·X = B with the LU factors of A, each of which streams through memory once.

    Parameters
    ----------
    lu_and_piv
        What `lu_factor`, or SciPy's, returned; the factors may be a location.
    trans
        0: A; 1: its transpose; 2: its conjugate transpose.
    b, overwrite_b, check_finite, out, options
        As in `solve_triangular`; `check_finite` concerns B.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        X, a vector where `b` is one; `out` where that is an array or a matrix, a read-only memmap
        for the location of a .npy file.

    Raises
    ------
    InputError
        When shapes do not fit together, or B is not finite.
    DoesNotFitError
        When not one column of B fits the memory.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    lu_factor : The factors.
    solve : Factor and solve in one call.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, chapter 9 (LU factors).

    Examples
    --------
    >>> factors = hdgemm.linalg.lu_factor("A.npy", out="LU.npy")
    >>> x = hdgemm.linalg.lu_solve(factors, "B.npy")
    """
    call = Call.of(**keywords)
    matrix, pivots = open_lu(lu_and_piv)
    if trans not in (0, 1, 2):
        raise InputError(f"trans must be 0, 1 or 2, got {trans!r}")
    with matrix:
        command = Command(
            "lu_solve",
            {"trans": int(trans), "pivots": zlib.crc32(pivots.tobytes())},
            call.checkpoint,
            call.restart,
            matrices={"the factors": matrix},
        )
        solver = by_lu(matrix, pivots, "NTC"[trans])
        return _solved(solver, b, out, call, command, check_finite=check_finite)


def open_lu(lu_and_piv: Any) -> tuple[StoredMatrix, NDArray[np.int64]]:
    """Open LU factors of a square matrix, given as the pair that `lu_factor` returns."""
    lu, piv = check_pair(lu_and_piv, "lu_and_piv", LUFactors)
    matrix = open_square(lu, "lu")
    return matrix, check_pivots(piv, matrix.shape)


def check_pivots(piv: Any, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Return the pivots of LU factors of this shape.

    Raises
    ------
    InputError
        When a pivot is missing or is no row: LAPACK would interchange rows beyond the matrix.
    """
    pivots = np.asarray(piv)
    if pivots.shape != (min(shape),):
        raise InputError(f"piv has shape {pivots.shape}, lu {shape}")
    whole = pivots.size == 0 or pivots.dtype.kind in "iu"
    if not whole or ((pivots < 0) | (pivots >= shape[0])).any():
        raise InputError(f"piv must hold rows of lu, whole numbers from 0 to {shape[0] - 1}")
    return pivots.astype(np.int64, copy=False)


def check_pair(given: Any, what: str, kind: type[Factorisation]) -> tuple[Any, Any]:
    """Return the two members of what a factorisation of some kind returned."""
    other = isinstance(given, tuple(_MAKERS)) and not isinstance(given, kind)
    if isinstance(given, tuple | list) and len(given) == 2 and not other:
        return given[0], given[1]
    raise InputError(
        f"{what} must be the pair that {_MAKERS[kind]} returned, got {type(given).__name__}; "
        "hdgemm.linalg.open gives the pair of a file"
    )


def by_lu(lu: StoredMatrix, pivots: NDArray[np.int64], code: str) -> ColumnSolver:
    """Return what solves with stored LU factors."""
    lower, upper = (
        Triangle(lu, lower=True, trans=code, unit=True),
        Triangle(lu, lower=False, trans=code),
    )
    first, second = (lower, upper) if code == "N" else (upper, lower)

    def solve_in_memory(solver: TriangleSolver, x: NDArray[Any]) -> None:
        if code == "N":
            laswp(x, pivots)
        solver.solve(first, x, second)
        solver.solve(second, x)
        if code != "N":
            laswp(x, pivots, reverse=True)

    return ColumnSolver(solve_in_memory, (first, second))
