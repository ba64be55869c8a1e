"""QR factorisation out of core: `qr`."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import open_matrix
from hdgemm.call.prepared import Prepared
from hdgemm.call.recorder import report_done
from hdgemm.call.run import folder_of, open_run
from hdgemm.errors import InputError
from hdgemm.linalg._checkpoint import Command
from hdgemm.linalg._q_product import QProduct
from hdgemm.linalg._qr_factorisation import TALL, QrFactorisation
from hdgemm.linalg.devices.qr import on_disk, qr_on_devices
from hdgemm.linalg.devices.run import strategy_of
from hdgemm.linalg.planning.factors import plan_in_array
from hdgemm.linalg.planning.passes import row_devices
from hdgemm.linalg.rows.checkpoint import durable_rows
from hdgemm.linalg.rows.pass_executor import passes_move
from hdgemm.linalg.rows.r_factor import RFactor
from hdgemm.linalg.rows.row_pass import RowPass
from hdgemm.linalg.rows.source import TallRows
from hdgemm.linalg.stored_factors import QRFactors, reserve_beside, save_factors
from hdgemm.product.target import is_location, single

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias, Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Place, Source, Stored, Where
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.storage import Output
    from hdgemm.matrices.stored import StoredMatrix

    #: The place of a result that is no new array.
    Destination: TypeAlias = NDArray[Any] | StoredMatrix | Where


@overload
def qr(
    a: Source,
    overwrite_a: bool = False,
    lwork: int | None = None,
    mode: Literal["full", "economic"] = "full",
    pivoting: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def qr(
    a: Source,
    overwrite_a: bool = False,
    lwork: int | None = None,
    mode: Literal["full", "economic"] = "full",
    pivoting: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: tuple[None, Destination],
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], Stored]: ...
@overload
def qr(
    a: Source,
    overwrite_a: bool = False,
    lwork: int | None = None,
    mode: Literal["full", "economic"] = "full",
    pivoting: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: tuple[Place, None],
    **keywords: Unpack[DurableKeywords],
) -> tuple[Stored, NDArray[Any]]: ...
@overload
def qr(
    a: Source,
    overwrite_a: bool = False,
    lwork: int | None = None,
    mode: Literal["full", "economic"] = "full",
    pivoting: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: tuple[Place, Place],
    **keywords: Unpack[DurableKeywords],
) -> tuple[Stored, Stored]: ...
@overload
def qr(
    a: Source,
    overwrite_a: bool = False,
    lwork: int | None = None,
    *,
    mode: Literal["r"],
    pivoting: bool = False,
    check_finite: bool = True,
    strategy: str = "hybrid",
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any]]: ...
@overload
def qr(
    a: Source,
    overwrite_a: bool = False,
    lwork: int | None = None,
    *,
    mode: Literal["r"],
    pivoting: bool = False,
    check_finite: bool = True,
    strategy: str = "hybrid",
    out: Place,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Stored]: ...
@overload
def qr(
    a: Source,
    overwrite_a: Literal[False] = False,
    lwork: int | None = None,
    *,
    mode: Literal["raw"],
    pivoting: bool = False,
    check_finite: bool = True,
    strategy: str = "hybrid",
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[QRFactors[NDArray[Any]], NDArray[Any]]: ...
@overload
def qr(
    a: Source,
    overwrite_a: bool = False,
    lwork: int | None = None,
    *,
    mode: Literal["raw"],
    pivoting: bool = False,
    check_finite: bool = True,
    strategy: str = "hybrid",
    out: tuple[Place, None] | None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[QRFactors[Stored], NDArray[Any] | None]: ...
@overload
def qr(
    a: Source,
    overwrite_a: bool = False,
    lwork: int | None = None,
    *,
    mode: Literal["raw"],
    pivoting: bool = False,
    check_finite: bool = True,
    strategy: str = "hybrid",
    out: tuple[Place, Destination],
    **keywords: Unpack[DurableKeywords],
) -> tuple[QRFactors[Stored], Stored]: ...
@overload
def qr(
    a: Source,
    overwrite_a: bool = False,
    lwork: int | None = None,
    *,
    mode: Literal["raw"],
    pivoting: bool = False,
    check_finite: bool = True,
    strategy: str = "hybrid",
    out: Destination,
    **keywords: Unpack[DurableKeywords],
) -> tuple[QRFactors[Stored], None]: ...
@overload
def qr(
    a: Any,
    overwrite_a: bool = False,
    lwork: int | None = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Any, ...]: ...
@public_call(DurableKeywords, callers_arrays=True)
def qr(
    a: Any,
    overwrite_a: bool = False,
    lwork: int | None = None,  # noqa: ARG001 - SciPy's argument: memory is `host_memory`
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Any, ...]:
    """Return the QR factorisation A = Q·R of an m×n matrix of any size, by Householder reflectors.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a
        file.
    overwrite_a
        For "raw" without `out`, and for "r", the reflectors may be stored in place of `a`, also
        where `a` is a file. A factorisation that fails then leaves `a` half overwritten.
    lwork
        Has no effect.
    mode
        ``"full"``: Q is m×m and R m×n. ``"economic"``: Q is m×k and R k×n, k = min(m, n).
        ``"r"``: R only. ``"raw"``: the reflectors as LAPACK's geqrf returns them.
    pivoting
        False.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    strategy
        With devices: ``"hybrid"`` factors panels on the host; ``"native"`` factors on the one
        device that `options` names, which holds the whole matrix. The host forms Q.
    out
        A pair (Q, R), one R for "r", a pair (QR, R) for "raw". Each is an array, a stored matrix or
        view, or the location of a file, which appears when it is complete; None for a new array.
        For "raw" QR alone, or (QR, None), returns None for R, which QR holds. New .npy files are
        column-major. For a .npy or raw file of "raw" tau is saved beside it, as ``QR.tau.npy`` for
        ``QR.npy``.
    options
        As in `cholesky`. For TSQR ``tile=(mb, nb, kb)`` forces blocks of mb rows.
    checkpoint
        As in `cholesky`; Q and R must be files. The reflectors lie beside Q (or R) until the end,
        which takes m·k elements of disk space.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    Q, R : arrays
        For "full" and "economic"; ``(R,)`` for "r". A new file of "r" has the k rows of R that are
        not zero; a new array has all m.
    (QR, tau), R : tuple of arrays, and array or None
        For "raw". R is None where `out` is QR alone, and where a file is overwritten.

    Raises
    ------
    InputError
        When A is not finite: `row` and `col`.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    qr_multiply : c·Q or Q·c, without Q.
    lstsq : Least squares.

    Notes
    -----
    The R of a matrix with at least 4 rows for each column is computed by TSQR, in one pass over the
    rows, where R fits the memory. The signs of its rows may differ from LAPACK's.

    References
    ----------
    E. D'Azevedo, J. Dongarra: The design and implementation of the parallel out-of-core
    ScaLAPACK LU, QR, and Cholesky factorization routines, 2000 (left-looking slabs).

    J. Demmel, L. Grigori, M. Hoemmen, J. Langou: Communication-optimal parallel and sequential
    QR and LU factorizations, 2012 (TSQR).

    Examples
    --------
    >>> (r,) = hdgemm.linalg.qr("A.npy", mode="r", out="R.npy")
    """
    with prepare(
        a,
        out,
        Call.of(**keywords),
        overwrite_a=overwrite_a,
        mode=mode,
        pivoting=pivoting,
        check_finite=check_finite,
        strategy=strategy,
    ) as prepared:
        return prepared.run()


@contextmanager
def prepare(
    a: Any,
    out: Any,
    call: Call,
    *,
    overwrite_a: bool = False,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
    strategy: str = "hybrid",
) -> Iterator[Prepared[tuple[Any, ...]]]:
    """Yield one QR factorisation, planned."""
    if mode not in ("full", "economic", "r", "raw"):
        raise InputError(f"mode must be 'full', 'economic', 'r' or 'raw', got {mode!r}")
    if pivoting:
        raise InputError("pivoting=True is not offered: it chooses among all columns at each step")
    q_out, r_out = _outputs(out, mode)
    with open_matrix(a) as source, open_run(call) as run:
        on_devices = strategy_of(strategy, run.options, in_memory=not on_disk(a, out))
        if on_devices is not None:
            dtype = source.dtype.newbyteorder("=")
            plan = plan_in_array("qr", source, dtype, None, run.options)
            outs = q_out, r_out
            yield Prepared(
                plan,
                partial(qr_on_devices, source, plan, outs, mode, on_devices, run, check_finite),
                run.session,
            )
            return
        over_a = overwrite_a and mode in ("r", "raw")
        qr = QrFactorisation(a, source, run, check_finite=check_finite, overwrite_a=over_a)
        in_file = folder_of(source) is not None
        # Reflectors in a new array, or over an array A, come with R.
        adds_r = mode == "raw" and out is None and not (overwrite_a and in_file)
        yield _on_host(qr, (q_out, r_out), mode, call, adds_r=adds_r)


def _on_host(
    qr: QrFactorisation, outs: tuple[Any, Any], mode: str, call: Call, *, adds_r: bool
) -> Prepared[tuple[Any, ...]]:
    """Prepare TSQR, or reflectors by slabs."""
    q_out, r_out = outs
    rows = qr.plan_tall() if mode == "r" else None
    if rows is not None:
        return _tall(qr, rows, r_out, Command("qr", {}, call.checkpoint, call.restart))
    if mode == "r" and passes_move():
        raise InputError(_not_tall(qr.source.shape))
    durable = call.checkpoint is not False
    if mode == "raw" and r_out is None and not adds_r:
        return _raw(qr, q_out, Command("qr", {}, call.checkpoint, call.restart))
    if durable and (not is_location(r_out) or (mode != "r" and not is_location(q_out))):
        raise InputError("checkpoint needs results in files: give locations of Q and R in out")
    name = {"economic": "q"}.get(mode, mode)
    command = Command("qr", {"mode": name}, call.checkpoint, call.restart) if durable else None
    if mode == "r":
        return _r(qr, r_out, command)
    if mode == "raw":
        return _raw_and_r(qr, q_out, r_out, command)
    m = qr.source.shape[0]
    columns = m if mode == "full" else qr.k
    output = qr.output(q_out, (m, columns), command=command)
    return QProduct(qr, output, qr.output_r(r_out, columns)).prepared()


def _not_tall(shape: tuple[int, int]) -> str:
    """Return why a QR factorisation does not run on a cluster."""
    m, n = shape
    return (
        f"qr of a {m}×{n} matrix does not run on a cluster: R is found in one pass over the rows "
        f"of matrices with at least {TALL} rows for each column, on the host, whose R fits the "
        "memory; factor it on one machine"
    )


def _outputs(out: Any, mode: str) -> tuple[Any, Any]:
    """Return where Q (or the reflectors) and R go."""
    if mode == "r":
        return None, single(out)
    if isinstance(out, tuple | list) and len(out) == 2:
        return out[0], out[1]
    if mode == "raw":
        return single(out), None
    if out is not None:
        raise InputError(f"out must be a pair (q, r) for mode={mode!r}")
    return None, None


def _raw(qr: QrFactorisation, q_out: Any, command: Command) -> Prepared[tuple[Any, ...]]:
    """Prepare reflectors without R."""
    output = qr.output(q_out, qr.source.shape, over_a=qr.overwrite_a, command=command)
    plan = qr.plan(output)

    def run() -> tuple[Any, ...]:
        with ExitStack() as stack:
            target = qr.place(stack, output)
            reserve_beside(target, "qr", qr.source, qr.dtype.itemsize)
            tau = qr.factor_alone(target, plan).tau
            save_factors(target, "qr", {"tau": tau})
        return QRFactors(target.result(), tau), None

    return Prepared(plan, run, qr.how.session)


def _raw_and_r(
    qr: QrFactorisation, q_out: Any, r_out: Any, command: Command | None
) -> Prepared[tuple[Any, ...]]:
    """Prepare reflectors and R; a durable run copies R afterwards, and again after a crash."""
    durable = command is not None
    output = qr.output(
        q_out, qr.source.shape, over_a=qr.overwrite_a and not durable, command=command
    )
    r_output = qr.output_r(r_out, qr.k)
    plan = qr.plan(output) if durable else qr.plan_with_r(output, r_output)

    def run() -> tuple[Any, ...]:
        with ExitStack() as stack:
            r = None if durable else qr.place(stack, r_output)
            target = qr.place(stack, output, r)
            reserve_beside(target, "qr", qr.source, qr.dtype.itemsize, r_out)
            if r is None:
                qr.require_space(r_output.out, qr.k)
                reflectors = qr.factor_alone(target, plan)
                r = qr.place(stack, r_output, target)
                qr.copy_r(target.stored, r.stored, reflectors.plan)
            else:
                reflectors = qr.factor_with_r(target.stored, r, plan)
            save_factors(target, "qr", {"tau": reflectors.tau})
        return QRFactors(target.result(), reflectors.tau), r.result()

    return Prepared(plan, run, qr.how.session)


def _r(qr: QrFactorisation, r_out: Any, command: Command | None) -> Prepared[tuple[Any, ...]]:
    """Prepare R alone, by slabs."""
    if command is None:
        r_output = qr.output_r(r_out, _rows_of_r(qr.source.shape, r_out))
        if r_output.in_array and r_output.form.shape == qr.source.shape and not qr.overwrite_a:
            return _r_over_reflectors(qr, r_output)
        place = qr.scratch(r_output)
        plan = qr.plan_with_r(place, r_output)
    else:
        r_output = qr.output(r_out, (qr.k, qr.source.shape[1]), command=command)
        work = qr.work(r_output)
        plan = qr.plan(work)

    def run() -> tuple[Any, ...]:
        with ExitStack() as stack:
            r = qr.place(stack, r_output)
            done = r.checkpoint
            if done is None:
                qr.factor_with_r(qr.place(stack, place, r).stored, r, plan)
            elif done.finished:
                report_done(qr.how.callbacks, done.plan, done.resumption)
            else:
                qr.copy_r_durably(done, qr.factor_durably(work, plan))
        return (r.result(),)

    return Prepared(plan, run, qr.how.session)


def _r_over_reflectors(qr: QrFactorisation, output: Output) -> Prepared[tuple[Any, ...]]:
    """Prepare R in an array that holds the reflectors meanwhile."""
    plan = qr.plan(output)

    def run() -> tuple[Any, ...]:
        with ExitStack() as stack:
            r = qr.place(stack, output)
            qr.factor_alone(r, plan)
            for column in range(output.form.shape[1]):
                r.stored[column + 1 :, column : column + 1] = np.zeros((), qr.dtype)
        return (r.result(),)

    return Prepared(plan, run, qr.how.session)


def _tall(
    qr: QrFactorisation, rows: RowPlan, r_out: Any, command: Command
) -> Prepared[tuple[Any, ...]]:
    """Prepare the R of a tall matrix, in one pass over its rows."""
    # The n rows of a new array lie together: pages of its other rows, of zeros, are not touched.
    order = "C" if r_out is None else "F"
    r_output = qr.output_r(r_out, _rows_of_r(qr.source.shape, r_out), order)

    def run() -> tuple[Any, ...]:
        with ExitStack() as stack:
            inputs = {"A": qr.source}
            durable = stack.enter_context(durable_rows(command, r_out, inputs, {"routine": "qr"}))
            r, plan = qr.place(stack, r_output, run=durable), rows
            if durable is not None:
                plan = durable.plan or rows
                durable.begin(plan)
            found = RFactor(plan.n, qr.dtype)
            source = TallRows(qr.source, qr.dtype, check_finite=qr.check_finite)
            RowPass(
                source,
                [found],
                plan,
                qr.how.callbacks,
                checkpoint=durable,
                devices=row_devices(plan.devices, qr.how),
            ).run()
            r.stored[: plan.n, :] = found.r
            if not r.new:
                r.stored[plan.n :, :] = np.zeros((), qr.dtype)
        return (r.result(),)

    return Prepared(rows, run, qr.how.session)


def _rows_of_r(shape: tuple[int, int], r_out: Any) -> int:
    """Return the rows of R alone: all m in an array, the k that are not zero in a file."""
    m = shape[0]
    given = r_out is not None and (is_location(r_out) or open_matrix(r_out, "out").shape[0] != m)
    return min(shape) if given else m
