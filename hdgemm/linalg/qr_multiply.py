"""Products with the Q of a QR factorisation, which is not formed: `qr_multiply`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError
from hdgemm.fortran import elimination_pairs
from hdgemm.linalg.durable_qr import DurableQr, checkpoint_of, copy_r
from hdgemm.linalg.input_checks import check_finite_slab
from hdgemm.linalg.joint_plan import facts_of
from hdgemm.linalg.operands import open_columns, open_matrix
from hdgemm.linalg.portions import Portions
from hdgemm.linalg.qr_run import QrRun
from hdgemm.linalg.recorder import Recorder, report_done
from hdgemm.linalg.run import Run, open_run
from hdgemm.linalg.slab_journal import Command
from hdgemm.linalg.slab_plan import SlabPlan
from hdgemm.linalg.slabs import SlabPipeline
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.product.aliasing import overlaps, same_elements
from hdgemm.product.target import is_location, result_at
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress

if TYPE_CHECKING:
    import threading

    from hdgemm.durable.run import Checkpointing
    from hdgemm.linalg.householder import Reflectors
    from hdgemm.linalg.slab import Slab
    from hdgemm.linalg.storage import Destination
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
        product = _Product(factor, target, left=left, conjugate=bool(conjugate) == left)
        if checkpoint is not False:
            found = product.run_durable(run, command, r_out)
        else:
            r = run.place_r(stack, r_out, run.k, target)
            _check_overlaps(factor, target, r)
            product.run(run, run.scratch(stack, target), r)
    result = target.result()
    r_found = found if checkpoint is not False else r.result()
    return (np.ravel(result) if vector else result), r_found


def _check_shapes(source: StoredMatrix, factor: StoredMatrix, *, left: bool) -> None:
    m, n = source.shape
    fits = factor.shape[0] in (m, min(m, n)) if left else factor.shape[1] == m
    if not fits:
        order = "Q·c" if left else "c·Q"
        raise InputError(f"c has shape {factor.shape}, a {m}×{n}: they do not fit for {order}")


def _check_overlaps(c: StoredMatrix, target: Destination, r: Destination) -> None:
    """Refuse results that overwrite elements of C before they are read."""
    mine, other = c.operand, target.stored.operand
    if overlaps(other.matrix, mine.matrix) and not same_elements(other, mine):
        raise InputError("the product overlaps c without being the same matrix: choose another out")
    if overlaps(r.stored.operand.matrix, mine.matrix):
        raise InputError("r overlaps c, which is read after R is stored: choose another out")


@dataclass(frozen=True, slots=True)
class _Product:
    """Q·C, or C·Q as the transpose of Q^T·C^T, by slabs of the columns of C or of C^T."""

    c: StoredMatrix
    target: Destination
    left: bool
    conjugate: bool

    def run(self, run: QrRun, v: StoredMatrix, r: Destination) -> None:
        """Factor, store R, and apply the reflectors in `v`."""
        reflectors = run.reflectors(v, new=not run.overwrite_a)
        applying = self._plan(run, reflectors)
        recorder = run.recorder(reflectors.plan, applying)
        run.factor(reflectors, r, recorder)
        self._apply(run, reflectors, applying, recorder)
        loaded = sum(applying.streamed_bytes()) + self.c.size * applying.itemsize
        run.finish(reflectors, r, recorder, loaded=loaded, stored=self._out.nbytes)

    def run_durable(self, run: QrRun, command: Command, r_out: Any) -> Any:
        """Factor durably, store R, and apply the reflectors to the slabs that are left; return R.

        R has its name before the product is finished: a finished product says that all is.
        """
        done, watch = checkpoint_of(self.target), run.how.watch
        if not is_location(r_out):
            raise InputError("checkpoint needs results in files: give locations of both in out")
        if done.finished:
            report_done(watch, done)
            return result_at(r_out)
        per_pair = flops_per_multiply_add(run.dtype.name)
        factoring = int(2 * per_pair * elimination_pairs(*run.source.shape))
        portions = Portions(watch, factoring + per_pair * self.c.size * run.k)
        run.how = run.how._replace(watch=portions.next(factoring))
        reflectors = DurableQr(run, command).reflectors(done)
        with ExitStack() as stack:
            r = run.place_r(stack, r_out, run.k, self.target)
            _check_overlaps(self.c, self.target, r)
            copy_r(run, reflectors.stored, r.stored, reflectors.plan)
        plan = done.plan
        applying = plan if isinstance(plan, SlabPlan) else self._plan(run, reflectors)
        done.begin(applying, run.how.options)
        start = done.done(0)
        recorder = Recorder(portions.next(applying.flops), applying.flops, devices=applying.devices)
        self._apply(run, reflectors, applying, recorder)
        columns = sum(slab.width for slab in applying.slabs[start:]) * applying.itemsize
        streamed = sum(applying.streamed_bytes()[start:])
        rows, stored = self._columns.shape[0], self._out.shape[0]
        recorder.finish(
            applying, {"load1": streamed + columns * rows, "store2": columns * stored},
            done.resumption,
        )  # fmt: skip
        portions.finish(facts_of("qr multiply", run.source.shape, run.dtype.name, run.how.options))
        return r.result()

    @property
    def _columns(self) -> StoredMatrix:
        return self.c if self.left else self.c.T

    @property
    def _out(self) -> StoredMatrix:
        return self.target.stored if self.left else self.target.stored.T

    @property
    def _trans(self) -> str:
        return "N" if self.left else "C"

    def _plan(self, run: QrRun, reflectors: Reflectors) -> SlabPlan:
        return run.plan_applied(
            reflectors, self._columns.shape[1], self._out, self._trans,
            durable=self.target.checkpoint is not None,
        )  # fmt: skip

    def _apply(
        self, run: QrRun, reflectors: Reflectors, applying: SlabPlan, recorder: Recorder
    ) -> None:
        columns, out = self._columns, self._out

        def load(slab: Slab) -> None:
            self._load(columns, slab, recorder)

        def store(slab: Slab) -> None:
            self._store(out, slab, recorder)

        with SlabPipeline(columns, out, applying, recorder, check_finite_slab,
                          self.target.checkpoint, stream=reflectors.stored, load=load, store=store,
                          devices=run.devices(applying)) as pipeline:  # fmt: skip
            reflectors.apply(pipeline, self._trans)

    def _load(self, columns: StoredMatrix, slab: Slab, recorder: Recorder) -> None:
        first, last, _ = slab.place
        top = slab.array[: columns.shape[0]]
        with recorder.operation("load1", slab.number, nbytes=top.nbytes):
            columns[:, first:last].read(top)
        slab.array[len(top) :] = 0
        self._conjugate(slab)

    def _store(self, out: StoredMatrix, slab: Slab, recorder: Recorder) -> None:
        first, last, _ = slab.place
        self._conjugate(slab)
        top = slab.array[: out.shape[0]]
        done = self.target.checkpoint
        with recorder.operation("store2", slab.number, nbytes=top.nbytes):
            if done is None:
                out[:, first:last] = top
            else:
                done.store(0, slab.number, slab.place, top, {})

    def _conjugate(self, slab: Slab) -> None:
        if self.conjugate and slab.array.dtype.kind == "c":
            np.conjugate(slab.array, out=slab.array)
