"""The run of one factorisation by slabs: planned, durable or not, reported."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import HdgemmError
from hdgemm.linalg.factor_plan import plan_for
from hdgemm.linalg.input_checks import check_reread
from hdgemm.linalg.recorder import Recorder
from hdgemm.linalg.slab_plan import SlabPlan
from hdgemm.linalg.slab_store import allocate_slabs
from hdgemm.linalg.slabs import SlabPipeline
from hdgemm.linalg.updates import devices_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hdgemm.linalg.run import OpenRun
    from hdgemm.linalg.slab import Slab
    from hdgemm.linalg.slab_plan import Kind
    from hdgemm.linalg.storage import Destination
    from hdgemm.matrices.stored import StoredMatrix


@contextmanager
def slab_run(
    kind: Kind,
    a: StoredMatrix,
    out: StoredMatrix,
    target: Destination,
    run: OpenRun,
    check: Callable[[Slab], None] | None,
    plan: SlabPlan | None = None,
    *,
    dtype: np.dtype[Any] | None = None,
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
        Of factors that stay in the array that `out` is; None plans slabs.
    dtype
        Of the factors; None for that of A.
    """
    checkpoint = target.checkpoint
    if checkpoint is not None and isinstance(checkpoint.plan, SlabPlan):
        plan = checkpoint.plan
    if plan is None:
        durable = checkpoint is not None
        plan = plan_for(kind, a, out, run, new=target.new, durable=durable, dtype=dtype)
    check_reread(out.dtype, np.dtype(plan.dtype))
    if target.new and kind == "cholesky" and (checkpoint is None or checkpoint.plan is None):
        allocate_slabs(target, out, plan)
    if checkpoint is not None:
        checkpoint.begin(plan, run.options)
    factored, final = (0, 0) if checkpoint is None else (checkpoint.done(0), checkpoint.done(1))
    before = plan.flops_of(plan.slabs[factored - 1].last) if factored else 0
    recorder = Recorder(run.watch, plan.flops, done=before, devices=plan.devices)
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
