"""LU factorisation out of core with partial pivoting: `lu_factor`."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import LinAlgWarning

from hdgemm.errors import InputError
from hdgemm.fortran import getrf
from hdgemm.linalg.device_run import device_names, strategy_of
from hdgemm.linalg.factor_plan import mirrored, plan_in_array
from hdgemm.linalg.input_checks import check_finite_slab, input_unchanged
from hdgemm.linalg.lu_elimination import factor_panel, factor_slabs, interchange_stored, recorded
from hdgemm.linalg.operands import in_memory, open_matrix
from hdgemm.linalg.planning import slabs_fit
from hdgemm.linalg.recorder import Recorder, report_done
from hdgemm.linalg.row_blocks import factor_row_blocks
from hdgemm.linalg.run import Run, folder_of, open_run
from hdgemm.linalg.slab import Slab
from hdgemm.linalg.slab_journal import Command
from hdgemm.linalg.slab_plan import Columns, SlabPlan
from hdgemm.linalg.slab_run import slab_run
from hdgemm.linalg.storage import destination
from hdgemm.linalg.stored_factors import LUFactors, reserve_beside, save_factors
from hdgemm.linalg.updates import host_bytes
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress
from hdgemm.tasks.tournament import LEAF, PANEL, factor_tournament

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.durable.run import Checkpointing
    from hdgemm.linalg.lu_elimination import Elimination
    from hdgemm.linalg.run import OpenRun
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback, ReportCallback
    from hdgemm.run.session import Session
    from hdgemm.tasks.algorithms import Factorised


@shows_progress
def lu_factor(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    pivoting: str = "partial",
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
) -> LUFactors:
    """Return ``(lu, piv)``, the LU factorisation P·A = L·U of an m×n matrix of any size.

    With partial pivoting, the pivot of each column is its largest element over all remaining rows,
    as in LAPACK, whatever the slabs.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the
        location of a file.
    overwrite_a
        Without `out`, the factors may be stored in place of `a`, also where `a` is a file. A
        factorisation that fails then leaves `a` half overwritten.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    pivoting
        ``"partial"``, or ``"tournament"``: the pivots of a panel are chosen by a binary tree of row
        blocks (CALU), with devices by tasks on all cores of the host. It also factors matrices of
        which not even a few columns fit the memory, by blocks of rows; these runs take no
        `checkpoint`. Elements of L may then be larger than 1.
    strategy
        With devices: ``"hybrid"`` factors panels on the host; ``"native"`` runs every operation on
        the one device that `options` names, which holds the whole matrix.
    out
        An array, a stored matrix or view, or the location of a file, which appears when it is
        complete; None for a new array. New .npy files are column-major. For a .npy or raw file
        the pivots are saved beside it, as ``LU.piv.npy`` for ``LU.npy``; `hdgemm.linalg.open`
        opens both again.
    options, session, progress, observer, cancel, report, checkpoint, restart
        As in `cholesky`.

    Returns
    -------
    lu : array
        U in the upper triangle and the unit lower triangular L, without its diagonal, below; as
        `cholesky` returns its factor.
    piv : array of int64
        Row i was interchanged with row ``piv[i]``. `scipy.linalg.lu_solve` takes both.

    Warns
    -----
    LinAlgWarning
        When a pivot is exactly zero; the factorisation goes on, as SciPy's.

    Raises
    ------
    InputError
        When A is not finite: `row` and `col`.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    Examples
    --------
    >>> lu, piv = hdgemm.linalg.lu_factor("A.npy", out="LU.npy")
    """
    arguments = {} if pivoting == "partial" else {"pivoting": pivoting}
    lu, pivots, zero = factor(
        a, out, Run(options, session, Watch.of(progress, observer, cancel, report)),
        overwrite_a=overwrite_a, check_finite=check_finite, pivoting=pivoting,
        strategy=strategy, command=Command("lu_factor", arguments, checkpoint, restart),
    )  # fmt: skip
    if zero:
        warnings.warn(
            f"Diagonal number {zero} is exactly zero. Singular matrix.", LinAlgWarning, stacklevel=3
        )
    return LUFactors(lu, pivots)


def factor(
    a: Any,
    out: Any,
    asked: Run | OpenRun,
    *,
    overwrite_a: bool = False,
    check_finite: bool = True,
    pivoting: str = "partial",
    strategy: str = "hybrid",
    command: Command | None = None,
    plan: SlabPlan | None = None,
) -> tuple[Any, NDArray[np.int64], int]:
    """Return factors, pivots, and the 1-based index of the first zero pivot, 0 without one.

    `plan` is that of factors that stay in memory (`plan_in_memory`); None chooses one.
    """
    if pivoting not in ("partial", "tournament"):
        raise InputError(f"pivoting must be 'partial' or 'tournament', got {pivoting!r}")
    with (
        open_matrix(a) as source,
        open_run(asked) as run,
        destination(out, a, source, order="F", overwrite_a=overwrite_a, command=command) as target,
        input_unchanged(source, target.stored),
    ):
        reserve_beside(target, "piv", source, np.dtype(np.int64).itemsize)
        array = in_memory(target.stored, source.dtype.newbyteorder("="))
        eliminate = _elimination(pivoting, run.options.tile)
        mirror = mirrored(source)
        # Of the two places of an element, the first one that is found is in the lower triangle.
        upper = mirror is not None and mirror.lower == source.operand.trans
        check = partial(check_finite_slab, transposed=upper) if check_finite else None
        chosen = strategy_of(strategy, run.options, in_memory=array is not None)
        if array is not None and plan is None:
            name = "lu" if pivoting == "partial" else "calu"
            on_devices = chosen and partial(chosen, name, array, run)
            pivots, zero = _factor_array(source, array, run, eliminate, on_devices, check)
        elif (done := target.checkpoint) is not None and done.finished:
            pivots, zero = recorded(done)
            report_done(run.watch, done)
        elif pivoting == "tournament" and not slabs_fit(
            source.shape, source.dtype.name, host_bytes(run.options), run.options.tile
        ):
            pivots, zero = factor_row_blocks(source, target, run, check)
        else:
            with slab_run("lu", source, target.stored, target, run, check, plan) as pipeline:
                pivots, zero = factor_slabs(pipeline, eliminate)
                interchange_stored(pipeline, pivots)
        save_factors(target, "lu", {"piv": pivots})
    return target.result(), pivots, zero


def _elimination(pivoting: str, tile: tuple[int, int, int] | None) -> Elimination:
    """Return the factorisation of a panel; a tile (mb, nb, kb) forces leaves of mb rows, kb
    columns.
    """
    if pivoting == "partial":
        return getrf
    leaf, _, panel = tile or (LEAF, 0, PANEL)
    return partial(factor_tournament, panel=panel, leaf=leaf)


def _factor_array(
    source: StoredMatrix,
    array: NDArray[Any],
    run: OpenRun,
    eliminate: Elimination,
    on_devices: Callable[[Recorder], Factorised] | None,
    check: Callable[[Slab], None] | None,
) -> tuple[NDArray[np.int64], int]:
    """Factor in a column-major array, which the result is; on the host without devices."""
    plan = plan_in_array("lu", array.shape, array.dtype, folder_of(source), run.options)
    recorder = Recorder(run.watch, plan.flops, devices=device_names(run.options))
    with recorder.operation("load1", 0, nbytes=array.nbytes):
        source.read(array)
    if check is not None:
        check(Slab(0, Columns(0, plan.n, 0), array))
    if on_devices is None:
        found = factor_panel(array, 0, recorder, eliminate)
    else:
        factors = on_devices(recorder)
        found = factors.pivots, next(iter(factors.zeros), 0)
    recorder.finish(plan)
    return found
