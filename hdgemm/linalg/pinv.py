"""Pseudoinverse of tall and wide matrices: `pinv`."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from hdgemm.call.input_checks import check_reread, input_unchanged
from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import absolute, open_matrix
from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import folder_of, open_run, plan_parts
from hdgemm.errors import InputError
from hdgemm.linalg.planning.dense import plan_dense
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.planning.rows import r_factor_work, vectors_bytes
from hdgemm.linalg.results import Result
from hdgemm.linalg.rows.checkpoint import RunLimits, durable_rows, resumed
from hdgemm.linalg.rows.passes import Passes
from hdgemm.linalg.rows.products import StoredProduct, product_work
from hdgemm.linalg.rows.r_factor import RFactor
from hdgemm.linalg.rows.source import TallRows, tall_view
from hdgemm.linalg.rows.triangle_svd import TriangleSvd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Out, Place, Source, Stored, Where
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.dense import DensePlan
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.matrices.stored import StoredMatrix


@overload
def pinv(
    a: Source,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    return_rank: Literal[False] = False,
    check_finite: bool = True,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def pinv(
    a: Source,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    return_rank: Literal[False] = False,
    check_finite: bool = True,
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> Out: ...
@overload
def pinv(
    a: Source,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    return_rank: Literal[False] = False,
    check_finite: bool = True,
    out: Where,
    **keywords: Unpack[DurableKeywords],
) -> Stored: ...
@overload
def pinv(
    a: Source,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    return_rank: Literal[True],
    check_finite: bool = True,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], int]: ...
@overload
def pinv(
    a: Source,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    return_rank: Literal[True],
    check_finite: bool = True,
    out: Place,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Stored, int]: ...
@overload
def pinv(
    a: Any,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    return_rank: bool = False,
    check_finite: bool = True,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@public_call(DurableKeywords, callers_arrays=True)
def pinv(
    a: Any,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    return_rank: bool = False,
    check_finite: bool = True,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any:
    """Return the pseudoinverse (n×m) of an m×n matrix, as `scipy.linalg.pinv`; A is read twice.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a
        file. A triangle of order min(m, n) must fit the memory, once for each core.
    atol, rtol
        Singular values up to ``atol + rtol·s[0]`` count as zero; None for 0 and max(m, n)·eps.
    return_rank
        Return the rank, too.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    out
        Where the pseudoinverse goes: an array, a stored matrix or view, the location of a file;
        None for a new array. Of a tall A a new .npy file is column-major.
    options
        `host_memory`, `threads`; ``tile=(mb, nb, kb)`` forces blocks of mb rows.
    checkpoint
        As in `svd`; `out` must be a file.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        With `return_rank`, a tuple with the rank.

    Raises
    ------
    InputError
        When A is not finite: `row` and `col`.
    DoesNotFitError
        When the triangle does not fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    lstsq : Least squares, without the pseudoinverse.
    inv : The inverse.

    References
    ----------
    J. Demmel, L. Grigori, M. Hoemmen, J. Langou: Communication-optimal parallel and sequential
    QR and LU factorizations, 2012 (TSQR).

    Examples
    --------
    >>> x = hdgemm.linalg.pinv("A.npy", out="X.npy")
    """
    call = Call.of(**keywords)
    with prepare(a, out, call, atol=atol, rtol=rtol, check_finite=check_finite) as prepared:
        found, rank = prepared.run()
    return (found, rank) if return_rank else found


@contextmanager
def prepare(
    a: Any,
    out: Any,
    call: Call,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    check_finite: bool = True,
) -> Iterator[Prepared[tuple[Any, int]]]:
    """Yield a pseudoinverse and the rank, planned with two passes."""
    for name, given in (("atol", atol), ("rtol", rtol)):
        number: Any = given
        if number is not None and not (isinstance(number, Real) and float(number) >= 0):
            raise InputError(f"{name} must be a number that is not negative, got {given!r}")
    out = absolute(out)
    with open_matrix(a) as source, open_run(call) as opened:
        run, _ = resumed(call, out, opened)
        view, wide = tall_view(source)
        rows = TallRows(
            view, source.dtype.newbyteorder("="), check_finite=check_finite, transposed=wide
        )
        (m, n), dtype = source.shape, rows.dtype
        result = Result.of(out, a, source, (n, m), dtype, order="C" if wide else "F")
        check_reread(result.output.matrix.dtype, dtype)
        k = view.shape[1]
        plans = two_passes("pinv", rows, (k, k), result.output.matrix.dtype, source, run)
        facts = facts_of("pinv", source.shape, dtype.name, run.options)
        relative = max(m, n) * np.finfo(dtype).eps if rtol is None else rtol
        tolerances = atol or 0.0, float(relative)
        found = _PseudoInverse(source, rows, wide, result, plans, tolerances, run, call, facts)
        yield Prepared(JointPlan(facts, plans), found.run, run.session)


def two_passes(
    name: str,
    rows: TallRows,
    columns: Sequence[int],
    stored: Any,
    source: StoredMatrix,
    run: OpenRun,
) -> tuple[RowPlan, DensePlan, RowPlan]:
    """Return the plans of R, of its decomposition, and of A·W with factors of some columns.

    `name` is the routine's, for a refusal.
    """
    shape, folder = rows.shape, folder_of(source)
    multiplying = product_work(shape, columns, stored, beside=vectors_bytes(shape))

    def plans(run: OpenRun) -> tuple[RowPlan, DensePlan, RowPlan]:
        return (
            rows_for(shape, [r_factor_work(shape)], folder, run),
            plan_dense("SVD of R", shape.n, rows.dtype, run, vectors=True),
            rows_for(shape, [multiplying], folder, run),
        )

    return plan_parts(f"{name} of {shape}", plans, run)


@dataclass(frozen=True, slots=True)
class _PseudoInverse:
    """One pseudoinverse that is planned; `tolerances` are absolute and relative."""

    source: StoredMatrix
    rows: TallRows
    wide: bool
    result: Result
    plans: tuple[RowPlan, DensePlan, RowPlan]
    tolerances: tuple[float, float]
    how: OpenRun
    call: Call
    facts: dict[str, Any]

    def run(self) -> tuple[Any, int]:
        """Compute and store the pseudoinverse; return it and the rank."""
        reading, dense, multiplying = self.plans
        decisive = {
            "routine": "pinv",
            "tolerances": list(self.tolerances),
            "check_finite": self.rows.check_finite,
        }
        place, inputs = self.result.given, {"A": self.source}
        with ExitStack() as stack:
            durable = stack.enter_context(durable_rows(self.call, place, inputs, decisive))
            if durable is not None:
                durable.begin(reading, RunLimits.of(self.how))
            passes = Passes(self.how, sum(plan.flops for plan in self.plans), durable)
            target = self.result.opened(stack, durable)
            stack.enter_context(input_unchanged(self.source, target.stored))
            triangle = RFactor(dense.n, self.rows.dtype)
            passes.reduce(self.rows, [triangle], reading)
            found = TriangleSvd(
                *passes.dense(dense, lambda: passes.keep(lambda: TriangleSvd.of(triangle.r)))
            )
            absolute, relative = self.tolerances
            rank = found.rank(absolute + relative * found.largest)
            w = np.ascontiguousarray(found.vh[:rank].conj().T / found.s[:rank])
            rows = replace(self.rows, check_finite=False)
            stored = target.stored if self.wide else target.stored.T
            passes.reduce(
                rows, [StoredProduct((w, w.conj().T), stored, conjugate=True)], multiplying
            )
            passes.finish(self.facts | {"rank": rank})
        return self.result.value(target), rank
