"""Least squares in one pass over the rows of a tall matrix, or two of a wide one: `lstsq`."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import absolute, open_matrix
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import folder_of, open_run
from hdgemm.errors import InputError
from hdgemm.fortran import least_squares
from hdgemm.linalg._minimum_norm import MinimumNorm
from hdgemm.linalg.planning.passes import row_devices, rows_for
from hdgemm.linalg.planning.rows import least_squares_work
from hdgemm.linalg.rows.checkpoint import durable_rows, recorded_rows, resumed
from hdgemm.linalg.rows.r_factor import r_and_qb
from hdgemm.linalg.rows.row_pass import RowPass
from hdgemm.linalg.rows.source import TallRows
from hdgemm.linalg.rows.triangle_svd import check_reduced
from hdgemm.linalg.solving.columns import RightHandSides
from hdgemm.linalg.storage import Output
from hdgemm.matrices.fingerprint import unchanged
from hdgemm.product.target import check_no_operand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Out, Source, Stored, Where
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.rows import RowPlan

_DRIVERS = ("gelsd", "gelsy", "gelss")


@overload
def lstsq(
    a: Source,
    b: Source,
    cond: float | None = None,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    lapack_driver: str | None = None,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], NDArray[Any], int, NDArray[Any] | None]: ...
@overload
def lstsq(
    a: Source,
    b: Source,
    cond: float | None = None,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    lapack_driver: str | None = None,
    *,
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Out, NDArray[Any], int, NDArray[Any] | None]: ...
@overload
def lstsq(
    a: Source,
    b: Source,
    cond: float | None = None,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    lapack_driver: str | None = None,
    *,
    out: Where,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Stored, NDArray[Any], int, NDArray[Any] | None]: ...
@overload
def lstsq(
    a: Any,
    b: Any,
    cond: float | None = None,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    lapack_driver: str | None = None,
    *,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Any, Any, int, NDArray[Any] | None]: ...
@public_call(DurableKeywords, callers_arrays=True)
def lstsq(
    a: Any,
    b: Any,
    cond: float | None = None,
    overwrite_a: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    overwrite_b: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    check_finite: bool = True,
    lapack_driver: str | None = None,
    *,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Any, Any, int, NDArray[Any] | None]:
    """Return ``(x, residues, rank, s)`` with the x of least norm that minimises ||A·x - b||.

    A tall A (m×n, m ≥ n) and b are read once. TSQR reduces them to the n×n triangle R and to Q^H·b,
    which SciPy's `lstsq` solves: R has the singular values and the rank of A. A wide A is read
    twice.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a
        file. A triangle of order min(m, n) must fit the memory, once for each core.
    b
        A vector, or a matrix as in `hdgemm.matmul`, with as many rows as `a`.
    cond
        Singular values below `cond` times the largest one count as zero; None for eps.
    overwrite_a, overwrite_b
        Have no effect.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    lapack_driver
        ``"gelsd"`` (default), ``"gelsy"`` or ``"gelss"``, for the triangle of a tall A; a wide one
        takes singular values.
    out
        Where x goes: an array, a stored matrix, the location of a file; None for a new array.
    options
        `host_memory`, `threads`; ``tile=(mb, nb, kb)`` forces blocks of mb rows.
    observer
        Called with each event; `unit` is the core, `step` its block of rows.
    checkpoint
        Keep a journal beside x (or at this path), and beside x the triangle of each core, so that
        the same call goes on after a crash with the same bits. At most about a twentieth of the
        time is spent on that. x must be a file; when it is complete the records are removed.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    x : array
        n elements, or n×p for a matrix b; as `cholesky` returns its factor.
    residues : array or number
        The squared norm of each column of b - A·x; empty where the rank is less than n (NaN in
        SciPy from 1.18 on), where m ≤ n, and for "gelsy", as SciPy's.
    rank : int
    s : array or None
        Singular values of A, in descending order; None for "gelsy".

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
    ridge : Penalties, constant terms, standard errors.
    qr : The factorisation.
    pinv : The pseudoinverse.

    References
    ----------
    J. Demmel, L. Grigori, M. Hoemmen, J. Langou: Communication-optimal parallel and sequential
    QR and LU factorizations, 2012 (TSQR).

    Examples
    --------
    >>> x, residues, rank, s = hdgemm.linalg.lstsq("A.npy", b)
    """
    with prepare(
        a, b, out, Call.of(**keywords), cond=cond, check_finite=check_finite, driver=lapack_driver
    ) as prepared:
        return prepared.run()


@contextmanager
def prepare(
    a: Any,
    b: Any,
    out: Any,
    call: Call,
    *,
    cond: float | None = None,
    check_finite: bool = True,
    driver: str | None = None,
) -> Iterator[Prepared[tuple[Any, Any, int, NDArray[Any] | None]]]:
    """Yield one pass over the rows of A and b, planned."""
    limit: Any = cond
    if limit is not None and (not isinstance(limit, Real) or math.isnan(limit)):
        raise InputError(f"cond must be a number or None, got {cond!r}")
    driver = "gelsd" if driver is None else driver
    if driver not in _DRIVERS:
        raise InputError(f"lapack_driver must be one of {_DRIVERS}, got {driver!r}")
    out = absolute(out)
    with open_matrix(a) as source, open_run(call) as run:
        rhs = RightHandSides.of(b, len(source), source.dtype)
        n, p = source.shape[1], rhs.matrix.shape[1]
        if not p:
            raise InputError("b has no columns: pass at least one")
        check_no_operand(out, rhs.matrix)
        output = Output.of(
            rhs.place(out),
            a,
            source,
            order="F",
            overwrite_a=False,
            dtype=rhs.dtype,
            shape=(n, p),
        )
        with rhs.matrix:
            if source.shape[0] < n:
                how, _ = resumed(call, out, run)
                values = driver != "gelsy"
                yield MinimumNorm(
                    source, rhs, out, output, how, call, cond, values, check_finite
                ).prepared()
                return
            rows = TallRows(source, rhs.dtype, rhs.matrix, check_finite=check_finite)
            plan = recorded_rows(call, out)
            if plan is None:
                works = [least_squares_work(rows.shape)]
                plan = rows_for(rows.shape, works, folder_of(source), run)
            found = _LeastSquares(rows, rhs, out, output, plan, run, call, cond, driver)
            yield Prepared(plan, found.run, run.session)


@dataclass(frozen=True, slots=True)
class _LeastSquares:
    """One problem that is planned; `out` and `output` are the place of x, given and described."""

    rows: TallRows
    rhs: RightHandSides
    out: Any
    output: Output
    plan: RowPlan
    how: OpenRun
    call: Call
    cond: float | None
    driver: str

    def run(self) -> tuple[Any, Any, int, NDArray[Any] | None]:
        """Reduce the rows, solve for x and store it; return what `lstsq` returns."""
        source, rhs = self.rows.a, self.rhs
        m, n = source.shape
        found = r_and_qb(n, rhs.matrix.shape[1], rhs.dtype)
        facts = {"routine": "lstsq", "cond": self.cond, "driver": self.driver}
        inputs = {"A": source, "b": rhs.matrix}
        read = {name: matrix.operand for name, matrix in inputs.items()}
        with (
            durable_rows(self.call, self.out, inputs, facts) as durable,
            self.output.opened(run=durable) as target,
            unchanged(read, target.stored.operand.matrix),
        ):
            if durable is not None:
                durable.begin(self.plan)
            RowPass(
                self.rows,
                [found],
                self.plan,
                self.how.callbacks,
                checkpoint=durable,
                devices=row_devices(self.plan.devices, self.how),
            ).run()
            x, rank, s = _solve_triangle(found.r, found.c, self.cond, self.driver)
            target.stored[:, :] = x
        full = (m > n or n == 0) and rank == n and self.driver != "gelsy"
        with np.errstate(over="ignore"):  # inf, as SciPy's
            residues = found.rest**2 if full else np.empty(0, rhs.dtype)
        if rhs.vector and residues.size:
            residues = residues[0]
        return rhs.result(self.out, target), residues, rank, s


def _solve_triangle(
    r: NDArray[Any], c: NDArray[Any], cond: float | None, driver: str
) -> tuple[NDArray[Any], int, NDArray[Any] | None]:
    """Return x, the rank and the singular values of R·x = Q^H·b."""
    check_reduced(r, "R of A")
    x = np.asfortranarray(c)
    tolerance = float(np.finfo(r.dtype).eps) if cond is None else cond
    rank, s = least_squares(np.array(r, order="F"), x, tolerance, driver)
    return x, rank, s
