"""Determinants from LU factors: `det`, `slogdet`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from hdgemm.call.keywords import Call, ReportKeywords, public_call
from hdgemm.call.operands import open_square
from hdgemm.call.run import open_run
from hdgemm.linalg.factored_solve import open_cholesky
from hdgemm.linalg.solving.factors import diagonal, is_cholesky, prepare_lu_factors

if TYPE_CHECKING:
    from typing import TypeAlias, Unpack

    from numpy.typing import NDArray
    from typing_extensions import TypeVar as DefaultTypeVar

    #: An array with a real determinant.
    Real: TypeAlias = NDArray[np.floating[Any] | np.integer[Any] | np.bool]
    Sign_co = DefaultTypeVar("Sign_co", bound=complex, default=complex, covariant=True)
else:
    Sign_co = TypeVar("Sign_co", bound=complex, covariant=True)


class SlogdetResult(NamedTuple, Generic[Sign_co]):
    """Sign, or complex number of magnitude 1, and natural logarithm of the magnitude."""

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
        matrix in a file go to a scratch file in its folder.
    overwrite_a, check_finite
        As in `lu_factor`.
    report
        As in `lu_factor`, of which it is the report; not called where the factors are given.
    **keywords
        Keywords of every call, from `options` to `report`.

    Returns
    -------
    float or complex
        Inf or 0 beyond the range of floating point, see `slogdet`.

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
    call = Call.of(**keywords)
    sign, mantissa, exponent = _determinant(a, call, overwrite_a, check_finite)
    with np.errstate(over="ignore", under="ignore"):
        return sign * float(np.ldexp(mantissa, exponent))


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
        0 and -Inf for a singular matrix.

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
    det : The determinant itself.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, section 14.6
    (determinants).

    Examples
    --------
    >>> sign, logdet = hdgemm.linalg.slogdet("A.npy")
    """
    sign, mantissa, exponent = _determinant(a, Call.of(**keywords))
    with np.errstate(divide="ignore"):
        return SlogdetResult(sign, float(np.log(mantissa) + exponent * np.log(2.0)))


def _determinant(
    a: Any, call: Call, overwrite_a: bool = False, check_finite: bool = False
) -> tuple[complex, float, int]:
    """Return the determinant as sign, and magnitude mantissa·2^exponent.

    As in NumPy, a zero pivot makes it zero, whatever the others are; a NaN counts as positive in a
    real matrix, and a complex sign with one that is not finite is NaN.
    """
    if isinstance(a, tuple) and is_cholesky(a):
        with open_cholesky(a)[0] as factor:
            found = diagonal(factor)
        sign, mantissa, exponent = scaled_product(found)
        mantissa, more = np.frexp(mantissa**2)
        return (sign * np.conj(sign)).item(), float(mantissa), 2 * exponent + int(more)
    if not isinstance(a, tuple):
        open_square(a).close()
    with (
        open_run(call) as run,
        prepare_lu_factors(a, run, overwrite_a=overwrite_a, check_finite=check_finite) as prepared,
    ):
        lu, pivots, zero = prepared.run()
        found = diagonal(lu)
    if zero:
        return np.result_type(found.dtype, np.float64).type(0).item(), 0.0, 0
    interchanges = np.count_nonzero(pivots != np.arange(len(pivots)))
    sign, mantissa, exponent = scaled_product(found)
    return (sign * (-1) ** (interchanges % 2)).item(), mantissa, exponent


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
