"""The run of one factorisation by slabs: planned, durable or not, reported."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from hdgemm.call.input_checks import check_reread
from hdgemm.call.recorder import Recorder
from hdgemm.errors import HdgemmError
from hdgemm.linalg.planning.devices import devices_of
from hdgemm.linalg.planning.slab import SlabPlan
from hdgemm.linalg.slabs.pipeline import SlabPipeline
from hdgemm.matrices.draft import allocate_rectangles, real_path
from hdgemm.matrices.filematrix import FileMatrix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.slabs.slab import Slab
    from hdgemm.linalg.storage import OpenOutput
    from hdgemm.matrices.stored import StoredMatrix


@contextmanager
def slab_run(
    a: StoredMatrix,
    out: StoredMatrix,
    target: OpenOutput,
    run: OpenRun,
    check: Callable[[Slab], None] | None,
    plan: SlabPlan,
) -> Iterator[SlabPipeline]:
    """Yield the pipeline of one factorisation, durable or not; report it on leaving.

    Parameters
    ----------
    a, out
        The matrix whose columns are factored, and where they are stored: `target`, or its
        transpose.
    check
        Called with each slab that is loaded.
    plan
        What is executed, but where an earlier run that goes on has a plan already.
    """
    checkpoint = target.checkpoint
    if checkpoint is not None and isinstance(checkpoint.plan, SlabPlan):
        plan = checkpoint.plan
    check_reread(out.dtype, np.dtype(plan.dtype))
    if target.new and plan.kind == "cholesky" and (checkpoint is None or checkpoint.plan is None):
        _allocate_slabs(target, out, plan)
    if checkpoint is not None:
        checkpoint.begin(plan, run.options)
    factored, final = (0, 0) if checkpoint is None else (checkpoint.done(0), checkpoint.done(1))
    before = plan.flops_of(plan.slabs[factored - 1].last) if factored else 0
    recorder = Recorder(run.callbacks, plan.flops, done=before, devices=plan.devices)
    pipeline = SlabPipeline(
        a,
        out,
        plan,
        recorder,
        check,
        checkpoint,
        devices=devices_of(plan, run),
        overwrites=not target.new,
    )
    try:
        with pipeline:
            yield pipeline
    except BaseException as error:
        if not target.new:
            say_state(error, pipeline.overwritten("columns" if out is target.stored else "rows"))
        raise
    resumption = None if checkpoint is None else checkpoint.resumption
    recorder.finish(plan, plan.bytes_from(factored, final), resumption)


def say_state(error: BaseException, state: str) -> None:
    """Add to an error what a failed run has left of the matrix that it overwrote."""
    if isinstance(error, HdgemmError):
        error.args = (f"{error}; {state}",)
    else:
        error.add_note(state)


def _allocate_slabs(target: OpenOutput, out: StoredMatrix, plan: SlabPlan) -> None:
    """Take disk space for the slabs of a new matrix, and leave a hole for the other triangle.

    `out` is the matrix or its transpose; an array is left as it is.
    """
    matrix, location = out.operand.matrix, target.location
    if not isinstance(matrix, FileMatrix):
        return
    path = matrix.path if location is None else real_path(location.path)
    if out.order == "F":
        rects = [(first, top, last - first, plan.m - top) for first, last, top in plan.slabs]
    else:
        rects = [(top, first, plan.m - top, last - first) for first, last, top in plan.slabs]
    allocate_rectangles(path, matrix, rects)
