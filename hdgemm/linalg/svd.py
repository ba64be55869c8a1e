"""Singular values and vectors of tall and wide matrices: `svdvals`, `svd`."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

import numpy as np

from hdgemm.call.input_checks import check_reread
from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import absolute, open_matrix
from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import folder_of, open_run, plan_parts
from hdgemm.errors import InputError, InputTypeError
from hdgemm.fortran import eigh
from hdgemm.linalg.pinv import two_passes
from hdgemm.linalg.planning.dense import plan_dense
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.planning.rows import r_factor_work
from hdgemm.linalg.results import Result, open_results, outputs_of
from hdgemm.linalg.rows.checkpoint import RunLimits, durable_rows, place_of, resumed
from hdgemm.linalg.rows.passes import Passes
from hdgemm.linalg.rows.r_factor import RFactor
from hdgemm.linalg.rows.scaling import in_range, scaled
from hdgemm.linalg.rows.source import TallRows, tall_view
from hdgemm.linalg.rows.sums import Gram, gram_work
from hdgemm.linalg.rows.tall_svd import TallSvd
from hdgemm.linalg.rows.triangle_svd import check_reduced, triangle_values
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Out, Place, Source, Stored, Where
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.dense import DensePlan
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.results import Vector
    from hdgemm.matrices.stored import StoredMatrix

_DRIVERS: Final = ("gesdd", "gesvd")
_METHODS: Final = ("tsqr", "gram")
#: A real dtype, which the singular values keep.
Real = TypeVar("Real", np.float32, np.float64)


@overload
def svdvals(
    a: NDArray[Real],
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    method: str = "tsqr",
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Real]: ...
@overload
def svdvals(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    method: str = "tsqr",
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> Out: ...
@overload
def svdvals(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    method: str = "tsqr",
    out: Where | None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@public_call(DurableKeywords, callers_arrays=True)
def svdvals(
    a: Any,
    overwrite_a: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    check_finite: bool = True,
    *,
    method: str = "tsqr",
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any:
    """Return the singular values of an m×n matrix, in descending order; A is read once.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a
        file. A triangle of order min(m, n) must fit the memory, once for each core.
    overwrite_a
        Has no effect.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    method
        ``"tsqr"``: the values of the R of A, with errors of some eps·s[0]. ``"gram"``: the roots of
        the eigenvalues of A^H·A, in half the operations, with errors of eps·s[0]²/s[i].
    out
        Where the values go: an array, a stored matrix, the location of a file; None for a new
        array.
    options
        `host_memory`, `threads`; ``tile=(mb, nb, kb)`` forces blocks of mb rows.
    checkpoint
        As in `lstsq`; `out` must be a file.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        min(m, n) real numbers.

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
    svd : With vectors.
    svds : The largest of many.

    References
    ----------
    J. Demmel, L. Grigori, M. Hoemmen, J. Langou: Communication-optimal parallel and sequential
    QR and LU factorizations, 2012 (TSQR).

    Examples
    --------
    >>> s = hdgemm.linalg.svdvals("A.npy")
    """
    call = Call.of(**keywords)
    with prepare_values(a, out, call, check_finite=check_finite, method=method) as prepared:
        return prepared.run()


@overload
def svd(
    a: Source,
    full_matrices: bool = False,
    compute_uv: Literal[True] = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]: ...
@overload
def svd(
    a: Source,
    full_matrices: bool = False,
    compute_uv: Literal[True] = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
    *,
    out: tuple[Place, Vector, None],
    **keywords: Unpack[DurableKeywords],
) -> tuple[Stored, NDArray[Any], NDArray[Any]]: ...
@overload
def svd(
    a: Source,
    full_matrices: bool = False,
    compute_uv: Literal[True] = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
    *,
    out: tuple[Place, Vector, Place],
    **keywords: Unpack[DurableKeywords],
) -> tuple[Stored, NDArray[Any], Stored]: ...
@overload
def svd(
    a: Source,
    full_matrices: bool = False,
    *,
    compute_uv: Literal[False],
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
    out: Vector = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def svd(
    a: Any,
    full_matrices: bool = False,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
    *,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@public_call(DurableKeywords, callers_arrays=True)
def svd(
    a: Any,
    full_matrices: bool = False,
    compute_uv: bool = True,
    overwrite_a: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
    *,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any:
    """Return the singular value decomposition A = U·diag(s)·Vh of an m×n matrix.

    With k = min(m, n), U is m×k and Vh is k×n. TSQR reduces the rows of a tall A to a k×k triangle,
    whose decomposition gives s and Vh; U = A·V·diag(1/s) takes a second read of A. A wide A is the
    transpose of a tall one.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a
        file. A triangle of order k must fit the memory, once for each core.
    full_matrices
        False, unless A is square: the square U or Vh of a tall or wide A would exceed any memory.
    compute_uv
        Return U and Vh, too; otherwise as `svdvals`.
    overwrite_a
        Has no effect.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    lapack_driver
        ``"gesdd"`` or ``"gesvd"``, for the triangle.
    out
        A tuple (U, s, Vh), or s without `compute_uv`. Each is an array, a stored matrix or view, or
        the location of a file, which appears when it is complete; None for a new array. The U of a
        tall A is row-major in a new .npy file, the Vh of a wide A is column-major.
    options
        `host_memory`, `threads`; ``tile=(mb, nb, kb)`` forces blocks of mb rows.
    report
        Called with the report: ``report.plan["condition"]`` is s[0]/s[-1],
        ``report.plan["passes"]`` the number of passes, and ``report.plan["note"]`` says why there
        are so many.
    checkpoint
        As in `svdvals`, beside the first file of `out`. The rows of U (of Vh for a wide A) that are
        stored are kept, too. Where U is formed from reflectors, these lie beside the result until
        the end, which takes m·n elements of disk space.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    U, s, Vh : arrays
        s is real and descending; s alone without `compute_uv`.

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
    svdvals : Singular values alone.
    svds : The largest of many.
    hdgemm.decomposition.pca : After centring.

    Notes
    -----
    A·V·diag(1/s) is orthogonal but for errors of eps·s[0]/s[-1]. Where s[0]/s[-1] exceeds
    max(m, n), U is formed from the reflectors of TSQR instead, in two more passes: the reflectors
    lie where U will be. It is then orthogonal to working precision, also where A has a lower rank.

    References
    ----------
    J. Demmel, L. Grigori, M. Hoemmen, J. Langou: Communication-optimal parallel and sequential
    QR and LU factorizations, 2012 (TSQR).

    Examples
    --------
    >>> u, s, vh = hdgemm.linalg.svd("A.npy", out=("U.npy", None, None))
    """
    call = Call.of(**keywords)
    if not compute_uv:
        with prepare_values(a, out, call, check_finite=check_finite) as values:
            return values.run()
    with prepare(
        a, out, call, full_matrices=full_matrices, check_finite=check_finite, driver=lapack_driver
    ) as prepared:
        return prepared.run()


@contextmanager
def prepare_values(
    a: Any, out: Any, call: Call, *, check_finite: bool = True, method: str = "tsqr"
) -> Iterator[Prepared[NDArray[Any]]]:
    """Yield the singular values, planned."""
    if method not in _METHODS:
        raise InputError(f"method must be one of {_METHODS}, got {method!r}")
    out = absolute(out)
    with open_matrix(a) as source, open_run(call) as opened:
        run, _ = resumed(call, out, opened)
        view, wide = tall_view(source)
        dtype = source.dtype.newbyteorder("=")
        rows = TallRows(view, dtype, check_finite=check_finite, transposed=wide)
        n = view.shape[1]
        work = (gram_work if method == "gram" else r_factor_work)(rows.shape)
        name = "eigenvalues of A^H·A" if method == "gram" else "SVD of R"

        def plans(run: OpenRun) -> tuple[RowPlan, DensePlan]:
            reading = rows_for(rows.shape, [work], folder_of(source), run)
            return reading, plan_dense(name, n, dtype, run, vectors=False)

        reading, dense = plan_parts(f"svdvals of {rows.shape}", plans, run)
        facts = facts_of("svdvals", source.shape, dtype.name, run.options)
        plan = JointPlan(facts, (reading, dense))
        values = Result.of(out, a, source, (n,), _real(dtype))
        decisive = {"routine": "svdvals", "method": method, "check_finite": check_finite}

        def compute() -> NDArray[Any]:
            with ExitStack() as stack:
                durable = stack.enter_context(durable_rows(call, out, {"A": source}, decisive))
                if durable is not None:
                    durable.begin(reading, RunLimits.of(run))
                passes = Passes(run, reading.flops + dense.flops, durable)
                (target,) = open_results(stack, (values,), source, rows=durable, large=None)
                find = _gram_values if method == "gram" else _triangle_values
                s = find(rows, reading, dense, passes)
                target.stored[:, :] = s[:, np.newaxis]
                passes.finish(facts)
            found: NDArray[Any] = values.value(target)
            return found

        yield Prepared(plan, compute, run.session)


def _triangle_values(
    rows: TallRows, reading: RowPlan, dense: DensePlan, passes: Passes
) -> NDArray[Any]:
    triangle = RFactor(dense.n, rows.dtype)
    passes.reduce(rows, [triangle], reading)
    return passes.dense(
        dense,
        lambda: triangle_values(triangle.r),
    )


def _gram_values(
    rows: TallRows, reading: RowPlan, dense: DensePlan, passes: Passes
) -> NDArray[Any]:
    gram, size = Gram(dense.n, rows.dtype), 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        passes.reduce(rows, [gram], reading)
    largest = float(np.abs(np.diagonal(gram.gram)).max(initial=0.0))
    if not in_range(largest, rows.dtype, 1):
        rows, size = scaled(replace(rows, check_finite=False), passes)
        gram = Gram(dense.n, rows.dtype)
        passes.reduce(rows, [gram], reading)
    check_reduced(gram.gram, "A^H·A")
    squares = passes.dense(dense, lambda: eigh(gram.gram, vectors=False)[0])
    with np.errstate(over="ignore"):
        roots: NDArray[Any] = size * np.sqrt(np.maximum(squares[::-1], 0))
        roots = roots.astype(_real(rows.dtype))
    check_reduced(roots, "a singular value")
    return roots


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.zeros(0, dtype).real.dtype


@contextmanager
def prepare(
    a: Any,
    out: Any,
    call: Call,
    *,
    full_matrices: bool = False,
    check_finite: bool = True,
    driver: str = "gesdd",
) -> Iterator[Prepared[tuple[Any, Any, Any]]]:
    """Yield one singular value decomposition, planned with two passes."""
    if not isinstance(driver, str):
        raise InputTypeError(f"lapack_driver must be a text, got {driver!r}")
    if driver not in _DRIVERS:
        raise InputError(f"lapack_driver must be one of {_DRIVERS}, got {driver!r}")
    outs = tuple(map(absolute, outputs_of(out, ("U", "s", "Vh"))))
    with open_matrix(a) as source, open_run(call) as opened:
        run, _ = resumed(call, place_of(outs), opened)
        _check_full(source, full=full_matrices)
        view, wide = tall_view(source)
        rows = TallRows(
            view, source.dtype.newbyteorder("="), check_finite=check_finite, transposed=wide
        )
        (m, n), k, dtype = source.shape, view.shape[1], rows.dtype
        results = (
            Result.of(outs[0], a, source, (m, k), dtype, order="C"),
            Result.of(outs[1], a, source, (k,), _real(dtype)),
            Result.of(outs[2], a, source, (k, n), dtype, order="F" if wide else "C"),
        )
        large = results[2 if wide else 0].output.matrix.dtype
        check_reread(large, dtype)
        plans = two_passes("svd", rows, (k,), large, source, run)
        facts = facts_of("svd", source.shape, dtype.name, run.options)
        facts["note"] = (
            f"where s[0]/s[-1] exceeds {view.shape[0]}, a third pass: A·V/s is orthogonal to "
            "s[0]/s[-1]·eps only, and U is formed from the reflectors of TSQR"
        )
        found = _Decomposition(source, rows, wide, results, plans, driver, run, call, facts)
        yield Prepared(JointPlan(facts, plans), found.run, run.session)


def _check_full(source: StoredMatrix, *, full: bool) -> None:
    m, n = source.shape
    if full and m != n:
        size = format_size(max(m, n) ** 2 * source.dtype.itemsize)
        raise InputError(
            f"full_matrices=True asks for a square matrix of order {max(m, n)}, {size}: pass "
            "full_matrices=False",
            shape=source.shape,
        )


@dataclass(frozen=True, slots=True)
class _Decomposition:
    """One decomposition that is planned."""

    source: StoredMatrix
    rows: TallRows
    wide: bool
    results: tuple[Result, Result, Result]
    plans: tuple[RowPlan, DensePlan, RowPlan]
    driver: str
    how: OpenRun
    call: Call
    facts: dict[str, Any]

    def run(self) -> tuple[Any, Any, Any]:
        """Compute and store the three results, and return them."""
        decisive = {
            "routine": "svd",
            "driver": self.driver,
            "check_finite": self.rows.check_finite,
        }
        place, inputs = place_of([each.given for each in self.results]), {"A": self.source}
        with ExitStack() as stack:
            durable = stack.enter_context(durable_rows(self.call, place, inputs, decisive))
            if durable is not None:
                durable.begin(self.plans[0], RunLimits.of(self.how))
            passes = Passes(self.how, sum(plan.flops for plan in self.plans), durable)
            large = 2 if self.wide else 0
            targets = open_results(stack, self.results, self.source, rows=durable, large=large)
            u, s, vh = (target.stored for target in targets)
            tall = TallSvd(self.rows, self.plans, self.driver, folder_of(self.source), self.how)
            found, facts = tall.run(passes, vh.T if self.wide else u)
            small = found.vh.T if self.wide else found.vh
            (u if self.wide else vh)[:, :] = small
            s[:, :] = found.s[:, np.newaxis]
            passes.finish(self.facts | facts)
        u, s, vh = map(Result.value, self.results, targets)
        return u, s, vh
