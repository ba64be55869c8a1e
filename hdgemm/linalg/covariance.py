"""Covariance and correlation matrices in one pass: `cov`, `corrcoef`."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from hdgemm.call.input_checks import input_unchanged
from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import open_columns
from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import folder_of, open_run
from hdgemm.errors import DoesNotFitError, InputError, InputTypeError
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.results import Result
from hdgemm.linalg.rows.checkpoint import checksum_of, durable_rows, recorded_rows
from hdgemm.linalg.rows.column_moments import ColumnMoments, powers_of_two
from hdgemm.linalg.rows.passes import Passes
from hdgemm.linalg.rows.source import TallRows, estimated_mean
from hdgemm.linalg.rows.sums import Moments, moments_work
from hdgemm.matrices.layout import check_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Element, Out, Source, Stored, Where
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.matrices.stored import StoredMatrix


@overload
def cov(
    a: NDArray[Element],
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: None = None,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Element]: ...
@overload
def cov(
    a: Source,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def cov(
    a: Source,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> Out: ...
@overload
def cov(
    a: Source,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
    out: Where,
    **keywords: Unpack[DurableKeywords],
) -> Stored: ...
@overload
def cov(
    a: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@public_call(DurableKeywords, callers_arrays=True)
def cov(
    a: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any:
    """Return the covariance matrix of variables, as `numpy.cov`; the matrix is read once.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a
        file. The square of as many rows and columns as variables must fit the memory, a few times
        for each core.
    y
        None.
    rowvar
        Each row is a variable, each column an observation (the default, as NumPy's); False for a
        tall matrix of samples and features. The commands ``hdgemm cov`` and ``hdgemm corrcoef``
        take columns as variables unless ``--rowvar`` is given.
    bias
        Divide by the number of observations instead of that number less one, where `ddof` is None.
    ddof
        Divide by the number of observations less this one.
    fweights
        How often each observation counts: integers.
    aweights
        Weights of the observations.
    dtype
        Of the products and the result; None for the dtype of `a`. Sums are in double precision.
    out
        Where the result goes: an array, a stored matrix or view, the location of a file; None for a
        new array.
    options
        `host_memory`, `threads`; ``tile=(mb, nb, kb)`` forces blocks of mb observations.
    checkpoint
        As in `lstsq`; `out` must be a file.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        Symmetric or Hermitian, both triangles; without `out`, of one variable a number.

    Raises
    ------
    InputError
        When weights do not fit the observations.
    DoesNotFitError
        When the result does not fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    corrcoef : Correlation coefficients.
    hdgemm.syrk : A^T·A of more columns than fit the memory.
    hdgemm.decomposition.pca : Principal components.

    Notes
    -----
    Blocks of observations are centred by their own means and combined by Chan's update, after a
    shift by the mean of the first rows: a mean of 10⁸ times the spread does no harm.

    References
    ----------
    T. F. Chan, G. H. Golub, R. J. LeVeque: Algorithms for computing the sample variance, 1983
    (combination of blocks).

    Examples
    --------
    >>> c = hdgemm.linalg.cov("samples.npy", rowvar=False)
    """
    if y is not None:
        raise InputError("y is not offered: put all variables into one matrix")
    call = Call.of(**keywords)
    with prepare(
        a,
        out,
        call,
        rowvar=rowvar,
        ddof=_ddof(ddof, bias=bias),
        fweights=fweights,
        aweights=aweights,
        dtype=dtype,
    ) as prepared:
        found = prepared.run()
    return found if out is not None else found.squeeze()


@overload
def corrcoef(
    a: NDArray[Element],
    y: Any = None,
    rowvar: bool = True,
    *,
    dtype: None = None,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Element]: ...
@overload
def corrcoef(
    a: Source,
    y: Any = None,
    rowvar: bool = True,
    *,
    dtype: Any = None,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def corrcoef(
    a: Source,
    y: Any = None,
    rowvar: bool = True,
    *,
    dtype: Any = None,
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> Out: ...
@overload
def corrcoef(
    a: Source,
    y: Any = None,
    rowvar: bool = True,
    *,
    dtype: Any = None,
    out: Where,
    **keywords: Unpack[DurableKeywords],
) -> Stored: ...
@overload
def corrcoef(
    a: Any,
    y: Any = None,
    rowvar: bool = True,
    *,
    dtype: Any = None,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@public_call(DurableKeywords, callers_arrays=True)
def corrcoef(
    a: Any,
    y: Any = None,
    rowvar: bool = True,
    *,
    dtype: Any = None,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any:
    """Return the correlation coefficients of variables, as `numpy.corrcoef`.

    Takes the arguments of `cov` and raises its errors. Variables without spread have NaN. A matrix
    is read once, and three times where squares of its elements overflow or underflow.

    Parameters
    ----------
    a, y, rowvar, dtype, out
        As in `cov`.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        Symmetric or Hermitian, ones on the diagonal; without `out`, of one variable a number.

    Raises
    ------
    InputError
        When `a` is no matrix of numbers.
    DoesNotFitError
        When the result does not fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    cov : Covariances.

    References
    ----------
    T. F. Chan, G. H. Golub, R. J. LeVeque: Algorithms for computing the sample variance, 1983
    (combination of blocks).

    Examples
    --------
    >>> r = hdgemm.linalg.corrcoef("T.npy", rowvar=False)
    """
    if y is not None:
        raise InputError("y is not offered: put all variables into one matrix")
    call = Call.of(**keywords)
    with prepare_correlation(a, out, call, rowvar=rowvar, dtype=dtype) as prepared:
        found = prepared.run()
    return found if out is not None else found.squeeze()


def _ddof(ddof: Any, *, bias: bool) -> int:
    if ddof is None:
        return 0 if bias else 1
    if ddof != int(ddof):
        raise InputError(f"ddof must be an integer, got {ddof!r}")
    return int(ddof)


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of observations by NumPy's rules.

    Parameters
    ----------
    fweights, aweights
        How often observations count, and how much; None for ones.
    ddof
        Subtracted from the number of observations.
    """

    fweights: Any = None
    aweights: Any = None
    ddof: int = 1

    def of(self, observations: int) -> NDArray[np.float64] | None:
        """Return the weight of each observation; None for ones.

        Raises
        ------
        InputError
            When there are not as many as observations, or some are negative.
        """
        found = None
        for name in ("fweights", "aweights"):
            given = getattr(self, name)
            if given is None:
                continue
            weights = _checked(name, given, observations)
            found = weights if found is None else found * weights
        return found

    def divisor(self, total: float, weights: NDArray[np.float64] | None) -> float:
        """Return what co-moments are divided by, for weights with a sum."""
        if self.aweights is None or not self.ddof or weights is None:
            return total - self.ddof
        own = np.asarray(self.aweights, float)
        return total - self.ddof * float(weights @ own) / total


def _checked(name: str, given: Any, observations: int) -> NDArray[np.float64]:
    weights = np.asarray(given)
    if name == "fweights" and not np.all(weights == np.around(weights)):
        raise InputTypeError("fweights must be integers")
    if weights.shape != (observations,):
        raise InputError(f"{name} has shape {weights.shape}, there are {observations} observations")
    if not np.all(weights >= 0):
        raise InputError(f"{name} must not be negative or NaN")
    return weights.astype(np.float64)


@contextmanager
def prepare(
    a: Any,
    out: Any,
    call: Call,
    *,
    rowvar: bool = True,
    ddof: int = 1,
    fweights: Any = None,
    aweights: Any = None,
    dtype: Any = None,
) -> Iterator[Prepared[Any]]:
    """Yield a covariance matrix, planned."""
    weights = Weights(fweights, aweights, ddof)
    with _prepare("cov", a, out, call, rowvar=rowvar, weights=weights, dtype=dtype) as prepared:
        yield prepared


@contextmanager
def prepare_correlation(
    a: Any, out: Any, call: Call, *, rowvar: bool = True, dtype: Any = None
) -> Iterator[Prepared[Any]]:
    """Yield correlation coefficients, planned."""
    with _prepare("corrcoef", a, out, call, rowvar=rowvar, weights=Weights(), dtype=dtype) as found:
        yield found


@contextmanager
def _prepare(
    name: str,
    a: Any,
    out: Any,
    call: Call,
    *,
    rowvar: bool,
    weights: Weights,
    dtype: Any,
) -> Iterator[Prepared[Any]]:
    source, vector = open_columns(a, "a")
    with source, open_run(call) as run:
        view = source.T if rowvar and not vector else source
        kept = source.dtype.newbyteorder("=") if dtype is None else check_dtype(dtype, "dtype")
        own = weights.of(len(view))
        rows = TallRows(view, np.dtype(kept), ones=True, weights=own, check_finite=False)
        n = view.shape[1]
        result = Result.of(out, a, source, (n, n), rows.dtype)
        plan = recorded_rows(call, result.given) or _plan(rows, source, run, rowvar=rowvar)
        facts = facts_of(name, source.shape, rows.dtype.name, run.options)
        decisive = {
            "routine": name,
            "rowvar": rowvar,
            "ddof": weights.ddof,
            "weights": [checksum_of(weights.fweights), checksum_of(weights.aweights)],
            "dtype": rows.dtype.name,
        }

        def compute() -> Any:
            with ExitStack() as stack:
                durable = stack.enter_context(
                    durable_rows(call, result.given, {"A": source}, decisive)
                )
                if durable is not None:
                    durable.begin(plan)
                passes = Passes(run, plan.flops, durable)
                target = result.opened(stack, run=durable)
                stack.enter_context(input_unchanged(source, target.stored))
                correlation = name == "corrcoef"
                moments = _moments(rows, passes, plan, scales=correlation)
                divisor = weights.divisor(moments.weight, own)
                found = _covariance(moments, divisor)
                target.stored[:, :] = _correlation(found) if correlation else found
                passes.finish(facts)
            return result.value(target)

        yield Prepared(JointPlan(facts, (plan,)), compute, run.session)


def _plan(rows: TallRows, source: StoredMatrix, run: OpenRun, *, rowvar: bool) -> RowPlan:
    """Return the plan of the pass; where a tall matrix does not fit, say what `rowvar` does."""
    shape = rows.shape
    try:
        return rows_for(shape, [moments_work(shape)], folder_of(source), run)
    except DoesNotFitError as error:
        m, n = source.shape
        if rowvar and m > n:
            advice = f"with rowvar=False the {n:,} columns are variables, not the {m:,} rows"
            error.args = (f"{error}; {advice}",)
        raise


def _moments(rows: TallRows, passes: Passes, plan: RowPlan, *, scales: bool) -> Moments:
    """Return the moments of the observations.

    `scales`: where squares of a variable overflow or underflow, a second pass finds its spread, and
    a third one divides it by a power of two near the spread.
    """
    shift = estimated_mean(rows.a, rows.dtype)
    found = _reduced(replace(rows, shift=shift), passes, plan)
    extreme = found.out_of_range(len(rows.a)) if scales else np.zeros(0, np.bool_)
    if not extreme.any():
        return found
    spread = ColumnMoments(len(shift), rows.dtype)
    plain = replace(rows, ones=False)
    reading = rows_for(plain.shape, [spread.work(plain.shape)], folder_of(rows.a), passes.how)
    with np.errstate(invalid="ignore", over="ignore"):
        passes.reduce(plain, [spread], reading)
    scale = powers_of_two(np.where(extreme, spread.norms / np.sqrt(len(rows.a)), 1))
    if np.all(scale == 1):  # elements that are not finite
        return found
    shift, scale = spread.mean.astype(rows.dtype), scale.astype(shift.real.dtype)
    shift[~np.isfinite(shift)] = 0
    return _reduced(replace(rows, shift=shift, scale=scale), passes, plan)


def _reduced(rows: TallRows, passes: Passes, plan: RowPlan) -> Moments:
    """Return the moments of rows, in one pass."""
    found = Moments(rows.a.shape[1], rows.dtype)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        passes.reduce(rows, [found], plan)
    return found


def _covariance(moments: Moments, divisor: float) -> NDArray[Any]:
    """Return the covariance matrix, with both triangles."""
    if divisor <= 0:
        warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=4)
        divisor = 0.0
    lower = np.tril(moments.gram, -1)
    whole = lower.T + lower.conj()  # the conjugate of A^H·A, as NumPy's
    np.fill_diagonal(whole, np.diagonal(moments.gram).real)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole /= divisor
    return whole


def _correlation(covariance: NDArray[Any]) -> NDArray[Any]:
    """Return the correlation coefficients, limited to [-1, 1] as NumPy's."""
    deviations = np.sqrt(np.diagonal(covariance).real)
    with np.errstate(divide="ignore", invalid="ignore"):
        covariance /= deviations[:, np.newaxis]
        covariance /= deviations
    np.clip(covariance.real, -1, 1, out=covariance.real)
    if covariance.dtype.kind == "c":
        np.clip(covariance.imag, -1, 1, out=covariance.imag)
    return covariance
