"""Determinants from LU factors: `det`, `slogdet`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdgemm.linalg.operands import open_square
from hdgemm.linalg.run import Run
from hdgemm.linalg.scratch import diagonal, lu_factors
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress

if TYPE_CHECKING:
    import threading

    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback, ReportCallback
    from hdgemm.run.session import Session


class SlogdetResult(NamedTuple):
    """Sign, or complex number of magnitude 1, and natural logarithm of the magnitude."""

    sign: complex
    logabsdet: float


@shows_progress
def det(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    options: Options | None = None,
    session: Session | None = None,
    progress: ProgressCallback | bool | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    report: ReportCallback | None = None,
) -> complex:
    """Return the determinant of a square matrix of any size.

    Parameters
    ----------
    a
        A square matrix as in `lu_factor`, or the ``(lu, piv)`` that it returned, of which only the
        diagonal is read. The factors of a matrix in a file go to a scratch file in its folder.
    overwrite_a, check_finite, options, session, progress, observer, cancel
        As in `lu_factor`.
    report
        As in `lu_factor`, of which it is the report; not called where the factors are given.

    Returns
    -------
    float or complex
        Inf or 0 beyond the range of floating point, see `slogdet`.

    Examples
    --------
    >>> hdgemm.linalg.det(hdgemm.linalg.lu_factor("A.npy", out="LU.npy"))
    """
    run = Run(options, session, Watch.of(progress, observer, cancel, report))
    sign, mantissa, exponent = _determinant(a, run, overwrite_a, check_finite)
    with np.errstate(over="ignore", under="ignore"):
        return sign * float(np.ldexp(mantissa, exponent))


@shows_progress
def slogdet(
    a: Any,
    *,
    options: Options | None = None,
    session: Session | None = None,
    progress: ProgressCallback | bool | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    report: ReportCallback | None = None,
) -> SlogdetResult:
    """Return sign and logarithm of the determinant, as `numpy.linalg.slogdet`.

    Parameters
    ----------
    a, options, session, progress, observer, cancel, report
        As in `det`.

    Returns
    -------
    sign, logabsdet
        0 and -Inf for a singular matrix.
    """
    run = Run(options, session, Watch.of(progress, observer, cancel, report))
    sign, mantissa, exponent = _determinant(a, run)
    with np.errstate(divide="ignore"):
        return SlogdetResult(sign, float(np.log(mantissa) + exponent * np.log(2.0)))


def _determinant(
    a: Any, run: Run, overwrite_a: bool = False, check_finite: bool = False
) -> tuple[complex, float, int]:
    """Return the determinant as sign, and magnitude mantissa·2^exponent.

    As in NumPy, a zero pivot makes it zero, whatever the others are; a NaN counts as positive in a
    real matrix, and a complex sign with one that is not finite is NaN.
    """
    if not isinstance(a, tuple):
        open_square(a)
    with lu_factors(
        a, run, overwrite_a=overwrite_a, check_finite=check_finite
    ) as (lu, pivots, zero):  # fmt: skip
        found = diagonal(lu)
    n, wide = len(pivots), found.astype(np.result_type(found.dtype, np.float64))
    if zero:
        return wide.dtype.type(0).item(), 0.0, 0
    interchanges = np.count_nonzero(pivots != np.arange(n))
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
    for part in np.array_split(mantissas, max(1, n // 512)):  # 2^-512 at least
        mantissa, more = np.frexp(mantissa * part.prod())
        exponent += int(more)
    sign = (signs.prod() * (-1) ** (interchanges % 2)).item()
    return sign, float(mantissa), exponent
