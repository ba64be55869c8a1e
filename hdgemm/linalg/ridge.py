"""Ridge regression for many penalties from one pass: `ridge`."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from hdgemm.call.input_checks import input_unchanged, reads_unchanged
from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import open_matrix
from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import folder_of, open_run, plan_parts
from hdgemm.errors import InputError
from hdgemm.linalg.planning.dense import plan_dense
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.planning.rows import least_squares_work
from hdgemm.linalg.results import Result
from hdgemm.linalg.rows.checkpoint import checksum_of, durable_rows, recorded_rows
from hdgemm.linalg.rows.column_moments import column_norms, powers_of_two
from hdgemm.linalg.rows.passes import Passes
from hdgemm.linalg.rows.r_factor import r_and_qb
from hdgemm.linalg.rows.source import TallRows, estimated_mean
from hdgemm.linalg.rows.triangle_svd import TriangleSvd
from hdgemm.linalg.solving.columns import RightHandSides
from hdgemm.product.target import check_no_operand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias, Unpack

    from numpy.typing import NDArray
    from typing_extensions import TypeVar as DefaultTypeVar

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.dense import DensePlan
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.rows.r_factor import RFactor
    from hdgemm.linalg.rows.tsqr import Triangle

    #: Numbers of each column of b, or the number of a vector b.
    Numbers: TypeAlias = np.inexact[Any] | NDArray[Any]
    Values_co = DefaultTypeVar("Values_co", default=Any, covariant=True)
else:
    Values_co = TypeVar("Values_co", covariant=True)


class RidgeFit(NamedTuple, Generic[Values_co]):
    """What `ridge` returns; the first axis of each array counts several alphas.

    Parameters
    ----------
    x
        Coefficients: n, or n×p for a matrix b.
    intercept
        The constant term of each column of b; zero without `intercept`.
    residues
        The squared norm of each column of b - A·x, weighted.
    degrees_of_freedom
        The trace of the matrix that maps b to A·x, one for each alpha.
    standard_errors
        Of the coefficients, for errors of b with one variance, which is estimated by
        ``residues / (m - degrees_of_freedom)``; NaN where that is not positive.
    r2
        Coefficient of determination of each column: about the mean with `intercept`, about zero
        without.

    See Also
    --------
    ridge : Returns it.

    Examples
    --------
    >>> fit = hdgemm.linalg.ridge("A.npy", b, [0.1, 1.0], intercept=True)
    >>> fit.x.shape
    (2, 300)
    """

    x: NDArray[Any]
    intercept: Values_co
    residues: Values_co
    degrees_of_freedom: Values_co
    standard_errors: NDArray[Any]
    r2: Values_co


@overload
def ridge(
    a: Any,
    b: Any,
    alphas: Sequence[float] | NDArray[Any],
    *,
    intercept: bool = False,
    weights: Any = None,
    check_finite: bool = True,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> RidgeFit[NDArray[Any]]: ...
@overload
def ridge(
    a: Any,
    b: Any,
    alphas: Any = 0.0,
    *,
    intercept: bool = False,
    weights: Any = None,
    check_finite: bool = True,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> RidgeFit[Numbers]: ...
@public_call(DurableKeywords, callers_arrays=True)
def ridge(
    a: Any,
    b: Any,
    alphas: Any = 0.0,
    *,
    intercept: bool = False,
    weights: Any = None,
    check_finite: bool = True,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> RidgeFit:
    """Return the x that minimises ||b - A·x||² + alpha·||x||², for each alpha; A is read once.

    TSQR reduces A (m×n) and b to the n×n triangle R and to Q^H·b, from which the solutions for all
    alphas, their standard errors and R² follow.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a
        file. Its n×n triangle must fit the memory, once for each core.
    b
        A vector, or a matrix as in `hdgemm.matmul`, with as many rows as `a`.
    alphas
        A number that is not negative, or several. 0 is least squares; of a matrix without full
        rank the solution of least norm.
    intercept
        Fit a constant term, too, which is not penalised. Columns are centred in memory; a mean of
        10⁸ times the spread does no harm.
    weights
        m weights of the rows, not negative; None for ones.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    out
        Where the coefficients go, too: an n×(p·alphas) matrix that has the columns for the first
        alpha, then those for the second. An array, a stored matrix, the location of a file.
    options
        `host_memory`, `threads`; ``tile=(mb, nb, kb)`` forces blocks of mb rows.
    checkpoint
        As in `lstsq`; `out` must be a file.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    RidgeFit
        A tuple (x, intercept, residues, degrees_of_freedom, standard_errors, r2).

    Raises
    ------
    InputError
        When shapes do not fit together, or elements are not finite: `row` and `col`.
    DoesNotFitError
        When R does not fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    lstsq : Least squares alone.

    References
    ----------
    A. E. Hoerl, R. W. Kennard: Ridge regression: biased estimation for nonorthogonal problems,
    1970.

    J. Demmel, L. Grigori, M. Hoemmen, J. Langou: Communication-optimal parallel and sequential
    QR and LU factorizations, 2012 (TSQR).

    Examples
    --------
    >>> fit = hdgemm.linalg.ridge("A.npy", b, [0.1, 1.0, 10.0], intercept=True)
    >>> fit.x.shape
    (3, 300)
    """
    call = Call.of(**keywords)
    with prepare(
        a,
        b,
        out,
        call,
        alphas=alphas,
        intercept=intercept,
        weights=weights,
        check_finite=check_finite,
    ) as prepared:
        return prepared.run()


@contextmanager
def prepare(
    a: Any,
    b: Any,
    out: Any,
    call: Call,
    *,
    alphas: Any = 0.0,
    intercept: bool = False,
    weights: Any = None,
    check_finite: bool = True,
) -> Iterator[Prepared[RidgeFit]]:
    """Yield a ridge regression, planned."""
    penalties = _penalties(alphas)
    with open_matrix(a) as source, open_run(call) as run:
        (m, n), rhs = source.shape, RightHandSides.of(b, len(source), source.dtype)
        p, dtype = rhs.matrix.shape[1], rhs.dtype
        with rhs.matrix:
            rows = TallRows(
                source,
                dtype,
                rhs.matrix,
                ones=intercept,
                weights=_weights(weights, m),
                check_finite=check_finite,
            )
            works = [least_squares_work(rows.shape)]
            recorded = recorded_rows(call, out)

            def plans(run: OpenRun) -> tuple[RowPlan, DensePlan]:
                reading = recorded or rows_for(rows.shape, works, folder_of(source), run)
                return reading, plan_dense("SVD of R", n, dtype, run, vectors=True)

            reading, dense = plan_parts(f"ridge of {rows.shape}", plans, run)
            facts = facts_of("ridge", source.shape, dtype.name, run.options)
            result = None
            if out is not None:
                check_no_operand(out, rhs.matrix)
                result = Result.of(out, a, source, (n, p * len(penalties)), dtype, order="F")
            shape = () if np.ndim(alphas) == 0 else (len(penalties),)
            found = _Ridge(rows, rhs, result, (reading, dense), penalties, shape, call, run)
            plan = JointPlan(facts, (reading, dense))
            yield Prepared(plan, lambda: found.run(facts), run.session)


def _penalties(alphas: Any) -> NDArray[np.float64]:
    """Return the penalties as an array."""
    try:
        found = np.atleast_1d(np.asarray(alphas, np.float64))
    except (TypeError, ValueError):
        found = np.full(1, np.nan)
    if found.ndim != 1 or not len(found) or not np.all((found >= 0) & np.isfinite(found)):
        raise InputError(f"alphas must be a number or several, none negative, got {alphas!r}")
    return found


def _weights(weights: Any, m: int) -> NDArray[np.float64] | None:
    if weights is None:
        return None
    found = np.asarray(weights, np.float64)
    if found.shape != (m,) or not np.all(found >= 0):
        raise InputError(
            f"weights must be {m} numbers that are not negative, got shape {found.shape}"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Ridge:
    """One regression that is planned; `shape` is () for one alpha that is a number."""

    rows: TallRows
    rhs: RightHandSides
    result: Result | None
    plans: tuple[RowPlan, DensePlan]
    alphas: NDArray[np.float64]
    shape: tuple[int, ...]
    call: Call
    how: OpenRun

    def run(self, facts: dict[str, Any]) -> RidgeFit:
        """Reduce the rows, solve for all alphas, and store the coefficients."""
        flops = sum(plan.flops for plan in self.plans)
        place = None if self.result is None else self.result.given
        inputs = {"A": self.rows.a, "b": self.rhs.matrix}
        with durable_rows(self.call, place, inputs, self._facts()) as durable:
            if durable is not None:
                durable.begin(self.plans[0])
            passes = Passes(self.how, flops, durable)
            with reads_unchanged(inputs):
                shift = estimated_mean(self.rows.a, self.rows.dtype) if self.rows.ones else None
                rows = replace(self.rows, shift=shift)
                found = r_and_qb(rows.shape.n, rows.shape.p, rows.dtype)
                passes.reduce(rows, [found], self.plans[0])
            fit = passes.dense(self.plans[1], lambda: self._fit(found, shift))
            self._store(fit.x)
        passes.finish(facts)
        return self._shaped(fit)

    def _facts(self) -> dict[str, Any]:
        """Return what decides the result beside the matrices, for a journal."""
        return {
            "routine": "ridge",
            "intercept": self.rows.ones,
            "weights": checksum_of(self.rows.weights),
        }

    def _fit(self, found: RFactor | Triangle, shift: NDArray[Any] | None) -> RidgeFit:
        """Return the solutions from the triangle, with axes alphas, n and p."""
        ones = int(self.rows.ones)
        r, c, rest = found.r[ones:, ones:].copy(order="F"), found.c[ones:], found.rest
        svd = TriangleSvd.of(r)
        # b in units of its norm, and factors of their maximum: squares do not overflow.
        unit = powers_of_two(np.hypot(rest, column_norms(c)))
        c, rest = c / unit, rest / unit
        d = svd.u.conj().T @ c
        factors = np.array([self._inverse(svd.s, alpha) for alpha in self.alphas])
        left = 1 - factors * svd.s  # of d in the residual
        x = np.stack([svd.vh.conj().T @ (f[:, np.newaxis] * d) for f in factors])
        sizes = np.abs(d) ** 2
        residues = rest**2 + np.stack([h @ sizes for h in left**2])
        freedom = (factors * svd.s).sum(axis=1) + ones
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = residues / (len(self.rows.a) - freedom)[:, np.newaxis]
            variance[~(variance >= 0)] = np.nan
            r2 = 1 - residues / (rest**2 + (np.abs(c) ** 2).sum(axis=0))
        most = powers_of_two(factors.max(axis=1, initial=0.0, keepdims=True))
        spread = np.sqrt((factors / most) ** 2 @ np.abs(svd.vh) ** 2) * most
        with np.errstate(over="ignore"):
            x, residues = x * unit, residues * unit * unit
            errors = spread[:, :, np.newaxis] * np.sqrt(variance)[:, np.newaxis, :] * unit
        constant = self._constant(found, x, shift)
        real = x.real.dtype
        return RidgeFit(
            x.astype(self.rows.dtype),
            constant.astype(self.rows.dtype),
            *(each.astype(real) for each in (residues, freedom, errors, r2)),
        )

    def _inverse(self, s: NDArray[Any], alpha: float) -> NDArray[Any]:
        """Return s / (s² + alpha), without alpha the inverse of s, 0 for values that are noise."""
        if not alpha:
            noise = max(self.rows.a.shape) * np.finfo(s.dtype).eps * s.max(initial=0)
            return np.asarray(np.divide(1, s, out=np.zeros_like(s), where=s > noise))
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(1 / (s + alpha / s), s.dtype)

    @staticmethod
    def _constant(
        found: RFactor | Triangle, x: NDArray[Any], shift: NDArray[Any] | None
    ) -> NDArray[Any]:
        """Return the constant terms, from the first row of [1 | A - shift]."""
        if shift is None:
            return np.zeros((len(x), x.shape[2]), x.dtype)
        top, c = found.r[0], found.c[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((c - top[1:] @ x) / top[0] - shift @ x)

    def _store(self, x: NDArray[Any]) -> None:
        if self.result is None:
            return
        with self.result.output.opened() as target, input_unchanged(self.rows.a, target.stored):
            target.stored[:, :] = np.hstack(list(x))

    def _shaped(self, fit: RidgeFit) -> RidgeFit:
        """Drop the axes of one alpha, and of one vector."""

        def shaped(array: NDArray[Any]) -> Any:
            array = array[..., 0] if self.rhs.vector and array.ndim > 1 else array
            return array if self.shape else array[0]

        return RidgeFit(*map(shaped, fit))
