"""QR factorisation out of core: `qr`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError
from hdgemm.linalg.device_qr import on_disk, qr_on_devices
from hdgemm.linalg.device_run import strategy_of
from hdgemm.linalg.durable_qr import DurableQr
from hdgemm.linalg.operands import open_matrix
from hdgemm.linalg.q_product import QProduct
from hdgemm.linalg.qr_plan import adds_r, rows_of_r, tall_plan
from hdgemm.linalg.qr_run import QrRun
from hdgemm.linalg.row_checkpoint import durable_rows
from hdgemm.linalg.run import Run, folder_of, open_run
from hdgemm.linalg.slab_journal import Command
from hdgemm.linalg.stored_factors import QRFactors, reserve_beside, save_factors
from hdgemm.linalg.tsqr import RowReduction
from hdgemm.matrices.operands import open as open_stored
from hdgemm.product.target import single
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress

if TYPE_CHECKING:
    import threading

    from hdgemm.durable.run import Checkpointing
    from hdgemm.linalg.row_plan import RowPlan
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback, ReportCallback
    from hdgemm.run.session import Session


@shows_progress
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
    options: Options | None = None,
    session: Session | None = None,
    progress: ProgressCallback | bool | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    report: ReportCallback | None = None,
    checkpoint: Checkpointing = False,
    restart: bool = False,
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
        A pair (Q, R), one R for "r", a pair (QR, R) or QR alone for "raw". Each is an array, a
        stored matrix or view, or the location of a file, which appears when it is complete; None
        for a new array. New .npy files are column-major. For a .npy or raw file of "raw" tau is
        saved beside it, as ``QR.tau.npy`` for ``QR.npy``.
    options, session, progress, observer, cancel, report
        As in `cholesky`. For TSQR ``tile=(mb, nb, kb)`` forces blocks of mb rows.
    checkpoint, restart
        As in `cholesky`; Q and R must be files. The reflectors lie beside Q (or R) until the end,
        which takes m·k elements of disk space.

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

    Notes
    -----
    The R of a matrix with at least 4 rows for each column is computed by TSQR, in one pass over the
    rows, where R fits the memory. The signs of its rows are not those of LAPACK.

    Examples
    --------
    >>> (r,) = hdgemm.linalg.qr("A.npy", mode="r", out="R.npy")
    """
    if mode not in ("full", "economic", "r", "raw"):
        raise InputError(f"mode must be 'full', 'economic', 'r' or 'raw', got {mode!r}")
    if pivoting:
        raise InputError("pivoting=True is not offered: it chooses among all columns at each step")
    asked = Run(options, session, Watch.of(progress, observer, cancel, report))
    q_out, r_out = _outputs(out, mode)
    command = Command("qr", {}, checkpoint, restart)
    with open_matrix(a) as source, open_run(asked) as opened:
        added = adds_r(out, folder_of(source), overwrite_a=overwrite_a)
        with_r = mode != "raw" or r_out is not None or added
        factor = strategy_of(strategy, opened.options, in_memory=not on_disk(a, out))
        if factor is not None:
            return qr_on_devices(
                source, (q_out, r_out), mode, factor, opened, check_finite=check_finite
            )
        run = QrRun(a, source, opened, check_finite=check_finite,
                    overwrite_a=overwrite_a and mode in ("r", "raw"))  # fmt: skip
        return _on_host(run, (q_out, r_out), mode, command, with_r=with_r)


def _on_host(
    run: QrRun, out: tuple[Any, Any], mode: str, command: Command, *, with_r: bool
) -> tuple[Any, ...]:
    """Factor by TSQR or by slabs."""
    q_out, r_out = out
    if mode == "r":
        plan = tall_plan(run.source.shape, run.dtype, folder_of(run.source), run.how)
        if plan is not None:
            return (_r_of_tall(run, plan, r_out, command),)
    if mode == "raw" and not with_r:
        return _raw(run, q_out, command), None
    if command.checkpoint is not False:
        return DurableQr(run, command).run(q_out, r_out, mode)
    if mode == "r":
        return (_r(run, r_out),)
    if mode == "raw":
        return _raw_and_r(run, q_out, r_out)
    return _q_and_r(run, q_out, r_out, full=mode == "full")


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


def _raw(run: QrRun, q_out: Any, command: Command) -> QRFactors:
    with ExitStack() as stack:
        target = run.place(stack, q_out, run.source.shape, over_a=run.overwrite_a, command=command)
        reserve_beside(target, "tau", run.source, run.dtype.itemsize)
        tau = run.factor_alone(target).tau
        save_factors(target, "qr", {"tau": tau})
    return QRFactors(target.result(), tau)


def _raw_and_r(run: QrRun, q_out: Any, r_out: Any) -> tuple[QRFactors, Any]:
    with ExitStack() as stack:
        r = run.place_r(stack, r_out, run.k)
        target = run.place(stack, q_out, run.source.shape, r, over_a=run.overwrite_a)
        reserve_beside(target, "tau", run.source, run.dtype.itemsize)
        reflectors = run.factor_with_r(target.stored, r, new=target.new)
        save_factors(target, "qr", {"tau": reflectors.tau})
    return QRFactors(target.result(), reflectors.tau), r.result()


def _q_and_r(run: QrRun, q_out: Any, r_out: Any, *, full: bool) -> tuple[Any, Any]:
    """Store the reflectors where Q goes, and then Q over them, from right to left."""
    m = run.source.shape[0]
    columns = m if full else run.k
    with ExitStack() as stack:
        r = run.place_r(stack, r_out, columns)
        target = run.place(stack, q_out, (m, columns), r)
        QProduct(target).run(run, target.stored, r, new=target.new)
    return target.result(), r.result()


def _r(run: QrRun, r_out: Any) -> Any:
    with ExitStack() as stack:
        r = run.place_r(stack, r_out, rows_of_r(run.source.shape, r_out))
        place, new = run.scratch(stack, r)
        run.factor_with_r(place, r, new=new)
    return r.result()


def _r_of_tall(run: QrRun, plan: RowPlan, r_out: Any, command: Command) -> Any:
    """Store the R of a tall matrix, in one pass over its rows."""
    with ExitStack() as stack:
        durable = stack.enter_context(durable_rows(
            command.checkpoint, r_out, {"A": run.source}, {"routine": "qr"}, command.restart
        ))  # fmt: skip
        r = run.place_r(stack, r_out, rows_of_r(run.source.shape, r_out))
        if durable is not None:
            plan = durable.plan or plan
            durable.begin(plan)
        nothing = open_stored(np.empty((plan.m, 0), run.dtype))
        reduction = RowReduction(run.source, nothing, plan, run.how.watch,
                                 check_finite=run.check_finite, checkpoint=durable)  # fmt: skip
        r.stored[: plan.n, :] = reduction.run().r
        if not r.new:
            r.stored[plan.n :, :] = np.zeros((), run.dtype)
    return r.result()
