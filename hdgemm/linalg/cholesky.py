"""Cholesky factorisation out of core: `cholesky`, `cho_factor`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.linalg.cholesky_elimination import TrapezoidElimination, factor_panel
from hdgemm.linalg.device_run import device_names, strategy_of
from hdgemm.linalg.elimination import queue_slab
from hdgemm.linalg.factor_plan import plan_in_array
from hdgemm.linalg.input_checks import check_finite_slab, input_unchanged
from hdgemm.linalg.operands import in_memory, open_square
from hdgemm.linalg.recorder import Recorder, report_done
from hdgemm.linalg.run import Run, folder_of, open_run
from hdgemm.linalg.slab import Slab
from hdgemm.linalg.slab_journal import Command
from hdgemm.linalg.slab_plan import Columns
from hdgemm.linalg.slab_run import say_state, slab_run
from hdgemm.linalg.storage import destination
from hdgemm.linalg.stored_factors import CholeskyFactor, save_factors
from hdgemm.product.arguments import flag
from hdgemm.product.target import result_at
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.durable.run import Checkpointing
    from hdgemm.linalg.storage import Destination
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback, ReportCallback
    from hdgemm.run.session import Session

#: Columns that are read at a time, so that one triangle of A is read.
_STRIP: Final = 512


@shows_progress
def cholesky(
    a: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: Any = None,
    options: Options | None = None,
    session: Session | None = None,
    client: Any = None,
    progress: ProgressCallback | bool | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    report: ReportCallback | None = None,
    checkpoint: Checkpointing = False,
    restart: bool = False,
) -> Any:
    """Return the Cholesky factor of a Hermitian positive definite matrix of any size.

    A = L·L^H for ``lower=True``, A = U^H·U otherwise. One triangle of A is read and multiplied,
    never both. Files pass through memory in slabs of columns (of rows for U) that fit
    `Options.host_memory`.

    Parameters
    ----------
    a
        A square matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the
        location of a file. Only the triangle that `lower` names is read.
    lower
        Read the lower triangle and compute L; otherwise the upper one and U.
    overwrite_a
        Without `out`, the factor may be stored in place of `a`, also where `a` is a file. A
        factorisation that fails then leaves `a` half overwritten.
    check_finite
        Raise `InputError` at the first NaN or Inf of the triangle.
    strategy
        With devices: ``"hybrid"`` factors diagonal blocks on the host; ``"native"`` runs every
        operation on the one device that `options` names, which holds the whole matrix.
    out
        An array, a stored matrix or view, or the location of a file, which appears when it is
        complete; None for a new array. New .npy files are column-major for L, row-major for U,
        so that slabs are contiguous.
    options
        `host_memory`, `threads`; ``tile=(mb, nb, kb)`` forces slabs of nb columns and stream
        blocks of kb columns. An array in RAM may be factored on several devices
        (``devices=("host", "opencl:0")``): by tasks, with panels of nb columns.
        For files, devices hold and update slabs.
    session, progress, observer, cancel
        As in `hdgemm.matmul`. Events have stage load1 (reads), mult1 (updates and panels) and
        store2; `unit` is the slab, `step` the block of earlier columns, 0 for the slab itself.
    client
        A `distributed.Client`, whose workers compute the factor: see `hdgemm.cluster.cholesky`.
    report
        Called with the `hdgemm.Report` when the factor is complete; ``report=reports.append``
        collects it. `phases` has the seconds of load, update, panel, store and interchange, and
        ``plan["expected_phase_seconds"]`` what was expected of each.
    checkpoint
        Keep a journal beside the factor (or at this path), so that the same call goes on after a
        crash; at most one slab is computed again, and the result has the same bits. The factor
        must be a file.
    restart
        Discard what an earlier run left, and begin again.

    Returns
    -------
    array
        The factor, zero in the other triangle; `out` where that is an array or a matrix, a
        read-only memmap for the location of a .npy file.

    Raises
    ------
    LinAlgError
        When A is not positive definite: `order` is that of the leading minor. It is a
        `SingularMatrixError`; nothing is published.
    InputError
        When A is not square, or not finite: `row` and `col`.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    Examples
    --------
    >>> hdgemm.linalg.cholesky("A.npy", lower=True, out="L.npy")
    """
    if client is not None:
        from hdgemm.cluster import cholesky as on_cluster

        found = on_cluster(
            a, lower, check_finite, client=client, out=out, options=options, progress=progress,
            observer=observer, cancel=cancel, checkpoint=checkpoint or True, restart=restart,
        )  # fmt: skip
        if report is not None:
            report(found)
        return result_at(out)
    run = Run(options, session, Watch.of(progress, observer, cancel, report))
    lower = flag(lower, "lower")
    command = Command("cholesky", {"lower": lower}, checkpoint, restart, not lower, True)
    call = _Call(lower, check_finite, run, clean=True, command=command, strategy=strategy)
    return call.compute(a, out, overwrite_a=overwrite_a)


@shows_progress
def cho_factor(
    a: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    out: Any = None,
    options: Options | None = None,
    session: Session | None = None,
    progress: ProgressCallback | bool | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    report: ReportCallback | None = None,
    checkpoint: Checkpointing = False,
    restart: bool = False,
) -> CholeskyFactor:
    """Return ``(c, lower)`` for `cho_solve`, with the Cholesky factor of `a` in one triangle of c.

    Parameters and errors are those of `cholesky`; the elements of the other triangle are
    undefined where `c` is an `out` that exists already, or `a` itself.
    """
    run = Run(options, session, Watch.of(progress, observer, cancel, report))
    lower = flag(lower, "lower")
    command = Command("cho_factor", {"lower": lower}, checkpoint, restart, not lower, True)
    call = _Call(lower, check_finite, run, clean=False, command=command)
    return CholeskyFactor(call.compute(a, out, overwrite_a=overwrite_a), lower)


def _strips(n: int) -> list[Columns]:
    """Return the columns of a lower triangle that are read at a time."""
    return [Columns(first, min(first + _STRIP, n), first) for first in range(0, n, _STRIP)]


class _Call:
    """One factorisation; U is computed as the transpose of the L of the transposed matrix."""

    def __init__(
        self, lower: bool, check_finite: bool, run: Run, *, clean: bool, command: Command,
        strategy: str = "hybrid",
    ) -> None:  # fmt: skip
        self._lower, self._run = lower, run
        check = partial(check_finite_slab, triangle=True, transposed=not lower)
        self._check = check if check_finite else None
        self._clean, self._command, self._strategy = clean, command, strategy

    def compute(self, a: Any, out: Any, *, overwrite_a: bool) -> Any:
        order = "F" if self._lower else "C"
        with (
            open_square(a) as source,
            open_run(self._run) as run,
            destination(
                out, a, source, order=order, overwrite_a=overwrite_a, command=self._command
            ) as target,
            input_unchanged(source, target.stored),
        ):
            matrix, factor = self._turned(source), self._turned(target.stored)
            array = in_memory(factor, source.dtype.newbyteorder("="))
            strategy = strategy_of(self._strategy, run.options, in_memory=array is not None)
            if array is not None:
                on_devices = strategy and partial(strategy, "cholesky", array, run)
                plan = plan_in_array(
                    "cholesky", array.shape, array.dtype, folder_of(source), run.options
                )
                recorder = Recorder(run.watch, plan.flops, devices=device_names(run.options))
                self._factor_array(matrix, array, on_devices, recorder, new=target.new)
                recorder.finish(plan, {"load1": sum(map(plan.nbytes, _strips(plan.n)))})
            elif (done := target.checkpoint) is not None and done.finished:
                report_done(run.watch, done)
            else:
                with slab_run("cholesky", matrix, factor, target, run, self._check) as pipeline:
                    method = TrapezoidElimination(pipeline)
                    for slab in pipeline.slabs():
                        queue_slab(pipeline, slab, method)
                    self._clear(target, factor, pipeline.plan.slabs)
            save_factors(target, "cholesky", {}, lower=self._lower)
        return target.result()

    def _turned(self, matrix: StoredMatrix) -> StoredMatrix:
        return matrix if self._lower else matrix.T

    def _factor_array(
        self,
        matrix: StoredMatrix,
        array: NDArray[Any],
        on_devices: Callable[[Recorder], object] | None,
        recorder: Recorder,
        *,
        new: bool,
    ) -> None:
        """Factor in a column-major array, which the result is; on the host without devices."""
        n = len(array)
        for place in _strips(n):
            first, last, _ = place
            slab = Slab(0, place, array[first:, first:last])
            with recorder.operation("load1", 0, nbytes=slab.array.nbytes):
                matrix[first:, first:last].read(slab.array)
            if self._check is not None:
                self._check(slab)
        try:
            if on_devices is None:
                factor_panel(array, 0, 0, recorder)
            else:
                on_devices(recorder)
        except BaseException as error:
            if not new:
                say_state(error, "the array that holds the factor is overwritten in part")
            raise
        for column in range(1, n if self._clean else 0):
            array[:column, column] = 0

    def _clear(self, target: Destination, factor: StoredMatrix, slabs: tuple[Columns, ...]) -> None:
        """Store zeros above the diagonal of a matrix that existed before."""
        if self._clean and not target.new:
            for slab in slabs:
                factor[: slab.first, slab.first : slab.last] = np.zeros((), factor.dtype)
