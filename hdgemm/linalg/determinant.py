"""Determinants from LU factors: `det`, `slogdet`."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from hdgemm.call.keywords import Call, ReportKeywords, public_call
from hdgemm.call.operands import open_square
from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import folder_of, open_run
from hdgemm.call.run_sequence import RunSequence
from hdgemm.linalg.factored_solve import open_cholesky
from hdgemm.linalg.planning.factors import FactorsOfSolve
from hdgemm.linalg.planning.slab import SlabPlan
from hdgemm.linalg.solving.factors import diagonal, is_cholesky, prepare_lu_factors
from hdgemm.linalg.storage import takes_result

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias, Unpack

    from numpy.typing import NDArray
    from typing_extensions import TypeVar as DefaultTypeVar

    from hdgemm.linalg.solving.factors import LU

    #: An array with a real determinant.
    Real: TypeAlias = NDArray[np.floating[Any] | np.integer[Any] | np.bool]
    Sign_co = DefaultTypeVar("Sign_co", bound=complex, default=complex, covariant=True)
else:
    Sign_co = TypeVar("Sign_co", bound=complex, covariant=True)


class SlogdetResult(NamedTuple, Generic[Sign_co]):
    """The result of `slogdet`; the determinant is ``sign * exp(logabsdet)``.

    Parameters
    ----------
    sign
        1, 0 or -1, or a complex number of magnitude 1 or 0.
    logabsdet
        The natural logarithm of the magnitude.

    See Also
    --------
    slogdet : Returns it.

    Examples
    --------
    >>> found = hdgemm.linalg.slogdet("S.npy")
    >>> float(found.sign)
    1.0
    """

    sign: Sign_co
    logabsdet: float


@overload
def det(
    a: Real,
    overwrite_a: bool = False,
    check_finite: bool = True,
    **keywords: Unpack[ReportKeywords],
) -> float: ...
@overload
def det(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    **keywords: Unpack[ReportKeywords],
) -> complex: ...
@public_call(ReportKeywords, callers_arrays=True)
def det(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    **keywords: Unpack[ReportKeywords],
) -> complex:
    """Return the determinant of a square matrix of any size.

    Parameters
    ----------
    a
        A square matrix as in `lu_factor`, or what `lu_factor` or `cho_factor` returned, or `open`
        for a file of `cholesky`: only their diagonal is read. The factors of a
        matrix in a file go to a scratch file in its folder where they do not fit `host_memory`, or
        in the temporary folder where its own cannot be written to.
    overwrite_a, check_finite
        As in `lu_factor`.
    report
        As in `lu_factor`, of kind "det"; not called where the factors are given.
    **keywords
        Keywords of every call, from `options` to `report`.

    Returns
    -------
    float or complex
        Inf or 0 beyond the range of floating point, see `slogdet`.

    Warns
    -----
    RuntimeWarning
        When it is beyond that range.

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
    slogdet : Sign and logarithm, which do not overflow.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, section 14.6
    (determinants).

    Examples
    --------
    >>> hdgemm.linalg.det(hdgemm.linalg.lu_factor("A.npy", out="LU.npy"))
    """
    found = _determinant("det", a, Call.of(**keywords), overwrite_a, check_finite)
    if found.leaves_range:
        warnings.warn(
            f"the determinant is beyond the range of floating point, {found.value} is returned: "
            "take slogdet",
            RuntimeWarning,
            stacklevel=4,
        )
    return found.value


@overload
def slogdet(
    a: Real,
    **keywords: Unpack[ReportKeywords],
) -> SlogdetResult[float]: ...
@overload
def slogdet(
    a: Any,
    **keywords: Unpack[ReportKeywords],
) -> SlogdetResult: ...
@public_call(ReportKeywords, callers_arrays=True)
def slogdet(
    a: Any,
    **keywords: Unpack[ReportKeywords],
) -> SlogdetResult:
    """Return sign and logarithm of the determinant, as `numpy.linalg.slogdet`.

    Parameters
    ----------
    a
        As in `det`.
    **keywords
        Keywords of every call, from `options` to `report`.

    Returns
    -------
    sign, logabsdet
        0 and -Inf for a singular matrix, NaN where A has NaN.

    Raises
    ------
    InputError
        When A is not square.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    det : The determinant itself.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, section 14.6
    (determinants).

    Examples
    --------
    >>> sign, logdet = hdgemm.linalg.slogdet("A.npy")
    """
    return _determinant("slogdet", a, Call.of(**keywords)).logarithm


@contextmanager
def prepare_det(
    a: Any, out: None, call: Call, *, overwrite_a: bool = False, check_finite: bool = True
) -> Iterator[Prepared[complex]]:
    """Yield the determinant of a matrix, planned; `out` is None."""
    del out
    with _prepared("det", a, call, overwrite_a=overwrite_a, check_finite=check_finite) as found:
        yield Prepared(found.plan, lambda: found.compute().value, found.session)


@contextmanager
def prepare(a: Any, out: None, call: Call) -> Iterator[Prepared[SlogdetResult]]:
    """Yield sign and logarithm of the determinant of a matrix, planned; `out` is None."""
    del out
    with _prepared("slogdet", a, call) as found:
        yield Prepared(found.plan, lambda: found.compute().logarithm, found.session)


class _Determinant(NamedTuple):
    """A determinant as sign, and magnitude mantissa·2^exponent."""

    sign: complex
    mantissa: float
    exponent: int

    @property
    def magnitude(self) -> float:
        """The absolute value; Inf or 0 beyond the range of floating point."""
        with np.errstate(over="ignore", under="ignore"):
            return float(np.ldexp(self.mantissa, self.exponent))

    @property
    def value(self) -> complex:
        """The number; Inf or 0 beyond the range of floating point."""
        with np.errstate(over="ignore", under="ignore"):
            return self.sign * self.magnitude

    @property
    def leaves_range(self) -> bool:
        """Whether the number is beyond the range of floating point, so that `value` is Inf or 0."""
        return self.magnitude in {0.0, np.inf} and self.mantissa not in {0.0, np.inf}

    @property
    def logarithm(self) -> SlogdetResult:
        """Sign, and natural logarithm of the magnitude."""
        with np.errstate(divide="ignore"):
            log = float(np.log(self.mantissa) + self.exponent * np.log(2.0))
        return SlogdetResult(self.sign, log)


def _determinant(
    routine: str, a: Any, call: Call, overwrite_a: bool = False, check_finite: bool = False
) -> _Determinant:
    """Return the determinant of a matrix, or of the one that has these factors."""
    if isinstance(a, tuple) and is_cholesky(a):
        with open_cholesky(a)[0] as factor:
            found = diagonal(factor)
        sign, mantissa, exponent = scaled_product(found)
        mantissa, more = np.frexp(mantissa**2)
        return _Determinant(
            (sign * np.conj(sign)).item(), float(mantissa), 2 * exponent + int(more)
        )
    if isinstance(a, tuple):
        with open_run(call) as run, prepare_lu_factors(a, run) as factors:
            return _of_factors(factors.run())
    with _prepared(
        routine, a, call, overwrite_a=overwrite_a, check_finite=check_finite
    ) as prepared:
        return prepared.run()


@contextmanager
def _prepared(
    routine: str, a: Any, call: Call, *, overwrite_a: bool = False, check_finite: bool = False
) -> Iterator[Prepared[_Determinant]]:
    """Yield the determinant of a matrix, planned; factors of a file stay in memory that they fit.

    The plan has one part, the factorisation: beside it, only a diagonal is read.
    """
    with open_run(call) as run:
        with open_square(a) as source:
            n, dtype = source.shape[0], source.dtype.newbyteorder("=")
            in_place = overwrite_a and takes_result(a)
            factors = FactorsOfSolve("lu", (n, 0), dtype, None, in_place, durable=False)
            resident = factors.plan_in_memory(folder_of(source), run)
        flops = SlabPlan.of_array("lu", n, n, dtype.name).flops
        whole = RunSequence(run.callbacks, flops)
        with prepare_lu_factors(
            a,
            run._replace(callbacks=whole.next(flops)),
            overwrite_a=overwrite_a,
            check_finite=check_finite,
            resident=resident,
        ) as prepared:
            assert prepared.plan is not None  # noqa: S101 - only of given factors
            scratch = prepared.plan.summary().get("disk_bytes", 0)
            facts = facts_of(routine, (n, n), dtype.name, run.options) | {"disk_bytes": scratch}

            def compute() -> _Determinant:
                whole.start()
                found = _of_factors(prepared.run())
                whole.finish(facts)
                return found

            yield Prepared(JointPlan(facts, (prepared.plan,)), compute, run.session)


def _of_factors(factors: LU) -> _Determinant:
    """Return the determinant of a matrix with these factors.

    As in NumPy, a zero pivot makes it zero, whatever the others are; a NaN counts as positive in a
    real matrix, and a complex sign with one that is not finite is NaN.
    """
    lu, pivots, zero = factors
    found = diagonal(lu)
    if zero:
        return _Determinant(np.result_type(found.dtype, np.float64).type(0).item(), 0.0, 0)
    interchanges = np.count_nonzero(pivots != np.arange(len(pivots)))
    sign, mantissa, exponent = scaled_product(found)
    return _Determinant((sign * (-1) ** (interchanges % 2)).item(), mantissa, exponent)


def scaled_product(elements: NDArray[Any]) -> tuple[Any, float, int]:
    """Return the product of numbers as sign, and magnitude mantissa·2^exponent."""
    wide = elements.astype(np.result_type(elements.dtype, np.float64))
    # Magnitudes of huge complex numbers overflow, and divisions by subnormal ones: scaled before.
    _, exponents = np.frexp(np.maximum(np.abs(wide.real), np.abs(wide.imag)))
    scaled = wide.copy()
    scaled.real = np.ldexp(wide.real, -exponents)
    if wide.dtype.kind == "c":
        scaled.imag = np.ldexp(wide.imag, -exponents)
    mantissas = np.abs(scaled)
    if wide.dtype.kind == "c":
        with np.errstate(invalid="ignore"):
            signs = scaled / mantissas
    else:
        signs = np.where(wide < 0, -1.0, 1.0)
    exponent = int(exponents.sum(dtype=np.int64))
    mantissa = 1.0
    for part in np.array_split(mantissas, max(1, len(wide) // 512)):  # 2^-512 at least
        mantissa, more = np.frexp(mantissa * part.prod())
        exponent += int(more)
    return signs.prod(), float(mantissa), exponent
