"""Products with the Q of a QR factorisation, which is not formed: `qr_multiply`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError
from hdgemm.linalg.durable_qr import DurableQr
from hdgemm.linalg.operands import open_columns, open_matrix
from hdgemm.linalg.q_product import QProduct
from hdgemm.linalg.qr_run import QrRun
from hdgemm.linalg.run import Run, open_run
from hdgemm.linalg.slab_journal import Command
from hdgemm.product.target import is_location
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress

if TYPE_CHECKING:
    import threading

    from hdgemm.durable.run import Checkpointing
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback, ReportCallback
    from hdgemm.run.session import Session


@shows_progress
def qr_multiply(
    a: Any,
    c: Any,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
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
) -> tuple[Any, Any]:
    """Return ``(c·Q, R)`` or ``(Q·c, R)`` for the QR factorisation of an m×n matrix of any size.

    The reflectors go to a scratch file, which needs as much space as A, in the folder of the
    result or of A.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`.
    c
        A vector, or a matrix as in `hdgemm.matmul`: p×m for "right"; k×p or m×p for "left", where
        k = min(m, n) and rows of zeros are added to k.
    mode
        ``"right"``: c·Q with the first k columns of Q. ``"left"``: Q·c, which has m rows.
    pivoting
        False.
    conjugate
        Take the complex conjugate of Q.
    overwrite_a
        The reflectors may be stored in place of `a`.
    overwrite_c
        Has no effect.
    out
        A pair (product, R) as in `qr`; None for new arrays.
    options, session, progress, observer, cancel, report
        As in `cholesky`.
    checkpoint, restart
        As in `cholesky`; the product and R must be files. The reflectors lie beside the product
        until the end.

    Returns
    -------
    cq, r : arrays
        The product, a vector where `c` is one, and R (k×n).

    Raises
    ------
    InputError
        When shapes do not fit together, or elements are not finite.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.
    """
    if mode not in ("left", "right"):
        raise InputError(f"mode must be 'left' or 'right', got {mode!r}")
    if pivoting:
        raise InputError("pivoting=True is not offered: it chooses among all columns at each step")
    if out is not None and not (isinstance(out, tuple | list) and len(out) == 2):
        raise InputError("out must be a pair (product, r)")
    cq_out, r_out = out or (None, None)
    if checkpoint is not False and not is_location(r_out):
        raise InputError("checkpoint needs results in files: give locations of both in out")
    left = mode == "left"
    watch = Watch.of(progress, observer, cancel, report)
    with ExitStack() as stack:
        source = stack.enter_context(open_matrix(a))
        factor, vector = open_columns(c, "c")
        stack.enter_context(factor)
        if vector and not left:
            factor = factor.T
        _check_shapes(source, factor, left=left)
        dtype = np.result_type(source.dtype, factor.dtype)
        opened = stack.enter_context(open_run(Run(options, session, watch)))
        run = QrRun(a, source, opened, dtype=dtype,
                    overwrite_a=overwrite_a and source.dtype == dtype)  # fmt: skip
        shape = (source.shape[0], factor.shape[1]) if left else (factor.shape[0], run.k)
        command = Command(
            "qr_multiply", {"mode": mode, "conjugate": bool(conjugate)}, checkpoint, restart,
            transposed=not left, matrices={"c": factor},
        )  # fmt: skip
        target = run.place(stack, cq_out, shape, command=command)
        product = QProduct(target, factor, left, conjugate=bool(conjugate) == left)
        if checkpoint is not False:
            found = DurableQr(run, command).multiply(product, r_out, run.k)
        else:
            r = run.place_r(stack, r_out, run.k, target)
            product.check_overlaps(r)
            place, new = run.scratch(stack, target)
            product.run(run, place, r, new=new)
    result = target.result()
    r_found = found if checkpoint is not False else r.result()
    return (np.ravel(result) if vector else result), r_found


def _check_shapes(source: StoredMatrix, factor: StoredMatrix, *, left: bool) -> None:
    m, n = source.shape
    fits = factor.shape[0] in (m, min(m, n)) if left else factor.shape[1] == m
    if not fits:
        order = "Q·c" if left else "c·Q"
        raise InputError(f"c has shape {factor.shape}, a {m}×{n}: they do not fit for {order}")
