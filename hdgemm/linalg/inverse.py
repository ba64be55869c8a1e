"""Inverses and condition numbers from LU factors: `inv`, `cond`."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import numpy as np

from hdgemm.call.keywords import Call, DurableKeywords, ReportKeywords, public_call
from hdgemm.call.operands import absolute, open_square
from hdgemm.call.plans import facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import open_run, plan_parts
from hdgemm.call.run_sequence import RunSequence
from hdgemm.errors import InputError
from hdgemm.linalg._checkpoint import Command
from hdgemm.linalg.factored_solve import by_lu, check_pair, lu_solve, open_lu, prepare_triangular
from hdgemm.linalg.planning.slab import SlabPlan
from hdgemm.linalg.solving.columns import RightHandSides, SolvedColumns
from hdgemm.linalg.solving.factors import prepare_lu_factors
from hdgemm.linalg.solving.norms import norm_inf
from hdgemm.linalg.solving.system import MIRRORED, Solved, System, prepare_system, structure_of
from hdgemm.linalg.stored_factors import LUFactors
from hdgemm.machine.limits import host_bytes
from hdgemm.matrices.base import Matrix, Operand
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.product.arguments import flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Element, Out, Source, Stored, Where
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.solving.factors import LU, PreparedFactors

#: Steps of LAPACK's gecon at most; each solves with A and with its conjugate transpose.
_MOST_STEPS: Final = 5


@overload
def inv(
    a: NDArray[Element],
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    assume_a: str | None = None,
    lower: bool = False,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Element]: ...
@overload
def inv(
    a: Source,
    overwrite_a: Literal[False] = False,
    check_finite: bool = True,
    *,
    assume_a: str | None = None,
    lower: bool = False,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def inv(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    assume_a: str | None = None,
    lower: bool = False,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@overload
def inv(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    assume_a: str | None = None,
    lower: bool = False,
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> Out: ...
@overload
def inv(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    assume_a: str | None = None,
    lower: bool = False,
    out: Where,
    **keywords: Unpack[DurableKeywords],
) -> Stored: ...
@public_call(DurableKeywords, callers_arrays=True)
def inv(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    assume_a: str | None = None,
    lower: bool = False,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any:
    """Return the inverse of a square matrix of any size.

    A·X = I is solved for groups of columns that fit the memory; the factors stream through memory
    once for each group. To solve systems, `solve` takes a fourth of the operations.

    Parameters
    ----------
    a
        A square matrix as in `lu_factor`, or the ``(lu, piv)`` that it returned. The factors of a
        matrix in a file go to a scratch file in its folder.
    overwrite_a, check_finite
        As in `lu_factor`.
    assume_a, lower
        As in `solve`; not for factors.
    out
        Where the inverse goes: an array, a stored matrix, the location of a file; None for a new
        array.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        The inverse; `out` where that is an array or a matrix, a read-only memmap for the location
        of a .npy file.

    Warns
    -----
    LinAlgWarning
        When A is singular to working precision, as in `solve`.

    Raises
    ------
    LinAlgError
        When A is singular; a `SingularMatrixError`.
    InputError
        When A is not square, or not finite.

    See Also
    --------
    solve : Systems, without the inverse.
    pinv : The pseudoinverse.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, chapter 14 (inverses).

    Examples
    --------
    >>> x = hdgemm.linalg.inv("A.npy", out="X.npy")
    """
    with prepare(
        a,
        out,
        Call.of(**keywords),
        overwrite_a=overwrite_a,
        check_finite=check_finite,
        assume_a=assume_a,
        lower=lower,
    ) as prepared:
        return prepared.run().warn()


@contextmanager
def prepare(
    a: Any,
    out: Any,
    call: Call,
    *,
    overwrite_a: bool = False,
    check_finite: bool = True,
    assume_a: str | None = None,
    lower: bool = False,
) -> Iterator[Prepared[Solved]]:
    """Yield one inverse, planned."""
    a, out = absolute(a), absolute(out)
    structure, lower = structure_of(assume_a), flag(lower, "lower")
    if isinstance(a, tuple) and structure != "gen":
        raise InputError(f"assume_a={assume_a!r} is for a matrix: a are its factors")
    with open_lu(a)[0] if isinstance(a, tuple) else open_square(a) as source:
        n, dtype = source.shape[0], source.dtype.newbyteorder("=")
        identity = StoredMatrix(Operand(_Identity(n, dtype)), writable=False)
        rhs = RightHandSides.of(identity, n, dtype)
        if "triangular" in structure:
            with prepare_triangular(
                a, identity, out, call, lower="lower" in structure, check_finite=check_finite
            ) as triangular:
                yield Prepared(
                    triangular.plan, lambda: Solved(triangular.compute(), 1.0), triangular.session
                )
            return
        system = System(
            a,
            source,
            rhs,
            structure,
            lower=lower,
            check_finite=check_finite,
            overwrite_a=bool(overwrite_a) and structure not in MIRRORED,
        )
        arguments = {} if structure == "gen" else {"assume_a": structure, "lower": lower}
        command = Command("inv", arguments, call.checkpoint, call.restart, matrices=system.kept)
        with prepare_system("inv", system, out, call, command, name="lu") as prepared:
            yield prepared


class _Identity(Matrix):
    """The identity matrix; it takes no memory."""

    name = "identity"

    def __init__(self, n: int, dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = (n, n), dtype

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]``."""
        out[...] = 0
        rows, cols = out.shape
        first, last = max(row, col), min(row + rows, col + cols)
        index = np.arange(first, last)
        out[index - row, index - col] = 1


@public_call(ReportKeywords, callers_arrays=True)
def cond(
    a: Any,
    p: float = 1,
    *,
    factors: tuple[Any, Any] | None = None,
    **keywords: Unpack[ReportKeywords],
) -> float:
    """Return an estimate of the condition number ||A||·||A^-1||, as LAPACK's `gecon`.

    The estimate is a lower bound, rarely more than three times too small (Higham, 1988). A is read
    once, and its factors stream through memory at most 11 times.

    Parameters
    ----------
    a
        A square matrix as in `lu_factor`.
    p
        The norm: 1, or `numpy.inf`.
    factors
        The ``(lu, piv)`` that `lu_factor` returned for `a`; None computes them, in a scratch file
        where `a` is a file.
    report
        Called with the report of the factorisation and of the solutions, whose number is not known
        beforehand.
    **keywords
        Keywords of every call, from `options` to `report`.

    Returns
    -------
    float
        Inf for a singular matrix, NaN where A has NaN, 0 for an empty matrix.

    Raises
    ------
    InputError
        When A is not square, or not finite.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    lu_factor : The factors.
    svdvals : Singular values, for the condition in the 2-norm.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, chapter 15 (condition
    estimation).

    Examples
    --------
    >>> lu, piv = hdgemm.linalg.lu_factor("A.npy", out="LU.npy")
    >>> hdgemm.linalg.cond("A.npy", factors=("LU.npy", piv))
    """
    call = Call.of(**keywords)
    if p not in (1, np.inf):
        raise InputError(f"p must be 1 or numpy.inf, got {p!r}")
    with open_square(a) as matrix, open_run(call) as run, ExitStack() as stack:
        n, dtype = matrix.shape[0], matrix.dtype.newbyteorder("=")
        flops = SlabPlan.of_array("lu", n, n, dtype.name).flops if factors is None else 0
        portions = RunSequence(call.callbacks, flops)
        given = a if factors is None else check_pair(factors, "factors", LUFactors)
        watched = run._replace(callbacks=portions.next(flops))

        def plans(run: OpenRun) -> PreparedFactors[LU]:
            found = stack.enter_context(prepare_lu_factors(given, run, check_finite=False))
            _check_memory(found.described, run)
            return found

        prepared = plan_parts(f"cond of a {n}×{n} {dtype} matrix", plans, watched)
        norm = norm_inf(matrix if p == np.inf else matrix.T, host_bytes(run.options) // 2)
        if n == 0 or not np.isfinite(norm):
            return norm
        portions.start()
        found = prepared.run()
        summary = facts_of("cond", (n, n), dtype.name, run.options)
        if found.zero:
            portions.finish(summary)
            return np.inf

        def solve(x: NDArray[Any], trans: int) -> NDArray[Any]:
            result: NDArray[Any] = lu_solve(
                (found.matrix, found.pivots),
                x,
                trans,
                check_finite=False,
                options=run.options,
                session=run.session,
                observer=call.callbacks.observer,
                cancel=call.callbacks.cancel,
                report=portions.add,
            )
            return result

        # The infinity norm of the inverse is the 1-norm of its conjugate transpose.
        codes = (0, 2) if p == 1 else (2, 0)
        dtype = found.matrix.dtype.newbyteorder("=")
        with np.errstate(all="ignore"):
            # Both norms are estimates from below of factors of a number that is 1 at least.
            estimate = max(1.0, norm * _norm1_of_inverse(solve, codes, n, dtype))
        portions.finish(summary)
        return estimate


def _check_memory(factors: LU, run: OpenRun) -> None:
    """Raise `DoesNotFitError` where a solution with one column does not fit: the factors are not
    computed then.
    """
    n, dtype = factors.matrix.shape[0], factors.matrix.dtype.newbyteorder("=")
    column = np.empty((n, 1), dtype, "F")
    rhs = RightHandSides.of(column, n, dtype)
    solution = SolvedColumns.of(rhs, column, run, Command("cond"), check_finite=False)
    solution.plan(by_lu(factors.matrix, factors.pivots, "N"))


def _norm1_of_inverse(
    solve: Callable[[NDArray[Any], int], NDArray[Any]],
    codes: tuple[int, int],
    n: int,
    dtype: np.dtype[Any],
) -> float:
    """Estimate the 1-norm of an inverse by Hager's and Higham's method (LAPACK's lacn2).

    Parameters
    ----------
    solve
        Solves with A, or its conjugate transpose, which `codes` name.
    """
    plain, adjoint = codes
    x = np.full(n, 1 / n, dtype)
    estimate, index = 0.0, -1
    for _ in range(_MOST_STEPS):
        y = solve(x, plain)
        magnitudes = np.abs(y)
        size = float(magnitudes.sum(dtype=np.float64))
        if not np.isfinite(size):  # the inverse overflows, as LAPACK's gecon finds with rcond = 0
            return np.inf
        if size <= estimate:
            break
        estimate = size
        signs = np.divide(y, magnitudes, out=np.ones_like(y), where=magnitudes > 0)
        z = np.abs(solve(signs, adjoint))
        largest = int(np.argmax(z))
        if largest == index:
            break
        index = largest
        x = np.zeros(n, dtype)
        x[index] = 1
    # A vector that finds what cancels in the method's own ones.
    steps = np.arange(n)
    alternating = (1 + steps / max(1, n - 1)) * (-1.0) ** steps
    size = float(np.abs(solve(alternating.astype(dtype), plain)).sum(dtype=np.float64))
    return max(estimate, 2 * size / (3 * n)) if np.isfinite(size) else np.inf
