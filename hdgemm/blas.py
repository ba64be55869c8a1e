"""The public calls: check, plan, run, return C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.product.stacks import matmul_plain, matmul_stacked
from hdgemm.run.call import Call
from hdgemm.run.engine import best_device

if TYPE_CHECKING:
    import threading

    from hdgemm.durable.run import Checkpointing
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import Plan
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback
    from hdgemm.report import Report

#: Multiply-adds from which an accelerator is worth a question.
_LARGE: Final = 5 * 10**9


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    options: Options | None = None,
    progress: ProgressCallback | None = None,
    observer: Observer | None = None,
    checkpoint: Checkpointing = False,
    restart: bool = False,
) -> Any:
    """Return A·B by `numpy.matmul`'s rules, for matrices of any size.

    Parameters
    ----------
    a, b
        Arrays of float32, float64, complex64 or complex128 with any strides, memmaps, or paths
        of .npy files; 1-D and stacked arrays follow NumPy's rules.
    out
        An array, a memmap, or the path of a .npy file, which appears when it is whole.
    options
        Memory, devices, strategy; see `Options`.
    progress, observer
        Called with snapshots of the run, and with each of its events.
    checkpoint
        Keep a journal beside C (or at this path), so that the same call goes on where it was cut
        off; C must be a file. See `hdgemm.durable`.
    restart
        Forget what an earlier run left, and begin again.

    Returns
    -------
    array
        `out` where it is an array; a read-only memmap of it where it is a path.

    Raises
    ------
    InputError
        Shapes, dtypes or files that cannot be multiplied; before anything is written.
    DoesNotFitError
        No plan fits the limits.
    """
    if checkpoint:
        call = Call.of(a, b, out=out)
        call.run(options, progress=progress, observer=observer,
                 checkpoint=checkpoint, restart=restart)  # fmt: skip
        return call.result()
    if options is None and progress is None and observer is None and not _wants_device(a, b):
        plain = matmul_plain(a, b, out)
        if plain is not None:
            return plain

    def product(x: Any, y: Any, target: Any) -> Any:
        call = Call.of(x, y, out=target)
        call.run(options, progress=progress, observer=observer)
        return call.result()

    return matmul_stacked(a, b, out, product)


def dgemm(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans_a: int = False,
    trans_b: int = False,
    overwrite_c: int = False,
    *,
    out: Any = None,
    options: Options | None = None,
    progress: ProgressCallback | None = None,
    observer: Observer | None = None,
    checkpoint: Checkpointing = False,
    restart: bool = False,
) -> Any:
    """Return C := alpha·op(A)·op(B) + beta·C, argument for argument as SciPy's `dgemm`.

    Parameters
    ----------
    alpha, beta
        Numbers. beta = 0 never reads C; alpha = 0 never reads A or B.
    a, b, c
        op(A) is m×k, op(B) k×n and C m×n: arrays of any strides, memmaps, or paths of .npy
        files. All four BLAS dtypes work; mixed ones are promoted as NumPy does.
    trans_a, trans_b
        0: as it is; 1: transposed; 2: conjugate transposed.
    overwrite_c
        C's memory may be taken for the result.
    out
        Where the result goes: an array, a memmap, a path, or `c` itself.
    options, progress, observer, checkpoint, restart
        As in `matmul`.

    Returns
    -------
    array
        The result; `out` where it is an array, a read-only memmap of it where it is a path.

    Raises
    ------
    InputError
        Arguments that do not fit together; before anything is written.
    DoesNotFitError
        No plan fits the limits.
    """
    if out is None and overwrite_c and _can_hold(c, a, b):
        out = c
    call = Call.of(a, b, alpha=alpha, beta=beta, c=c, trans_a=trans_a, trans_b=trans_b, out=out)
    call.run(options, progress=progress, observer=observer,
             checkpoint=checkpoint, restart=restart)  # fmt: skip
    return call.result()


def multiply(
    a: Any,
    b: Any,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    c: Any = None,
    trans_a: int = False,
    trans_b: int = False,
    out: Any = None,
    options: Options | None = None,
    progress: ProgressCallback | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    checkpoint: Checkpointing = False,
    restart: bool = False,
) -> Report:
    """Do what `dgemm` does, and return the run's `Report` instead of C.

    Parameters
    ----------
    cancel
        Set it to stop the run after at most one operation per stage.

    Raises
    ------
    CancelledRunError
        When `cancel` was set; a C that is not finished is never published.
    """
    call = Call.of(a, b, alpha=alpha, beta=beta, c=c, trans_a=trans_a, trans_b=trans_b, out=out)
    return call.run(options, progress=progress, observer=observer, cancel=cancel,
                    checkpoint=checkpoint, restart=restart)  # fmt: skip


def execute(
    plan: Plan,
    a: Any,
    b: Any,
    c: Any,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    *,
    trans_a: int = False,
    trans_b: int = False,
    progress: ProgressCallback | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
) -> Report:
    """Run a plan on operands: C := alpha·op(A)·op(B) + beta·C, updated in place.

    Parameters
    ----------
    plan
        From `plan_gemm`. Where these operands lie or are stored in another way than it was made
        for, it is made anew with the same device, limits, strategy and tile; the report says
        which plan ran.
    c
        An array, a memmap, or a path; a path is created where beta = 0.

    Returns
    -------
    Report
        What was measured.
    """
    call = Call.of(
        a, b, alpha=alpha, beta=beta, c=None if beta == 0 else c,
        trans_a=trans_a, trans_b=trans_b, out=c,
    )  # fmt: skip
    return call.run(None, plan=plan, progress=progress, observer=observer, cancel=cancel)


def _wants_device(a: Any, b: Any) -> bool:
    """Say whether arrays in RAM should go to an accelerator, asking drivers only if it may pay."""
    size = getattr(a, "size", 0) * (b.shape[-1] if getattr(b, "ndim", 0) > 1 else 1)
    return size >= _LARGE and best_device() != "host"


def _can_hold(c: Any, a: Any, b: Any) -> bool:
    return (
        isinstance(c, np.ndarray)
        and c.flags.writeable
        and all(isinstance(x, np.ndarray) for x in (a, b))
        and c.dtype == np.result_type(a, b, c)
        and c.dtype.isnative
    )
