"""One QR factorisation: places of its results, plans, reflectors and R, and the report."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.linalg.factor_plan import plan_for
from hdgemm.linalg.householder import Reflectors
from hdgemm.linalg.input_checks import check_finite_slab, check_reread, input_unchanged
from hdgemm.linalg.planning import Storage, plan_slabs
from hdgemm.linalg.qr_plan import ReflectorsOfR, stored_rows, with_r
from hdgemm.linalg.recorder import Recorder, report_done
from hdgemm.linalg.run import folder_of, machine_of
from hdgemm.linalg.slab_plan import SlabPlan
from hdgemm.linalg.slab_run import slab_run
from hdgemm.linalg.slabs import SlabPipeline
from hdgemm.linalg.storage import check_apart, destination, scratch_matrix
from hdgemm.linalg.updates import devices_of, host_bytes, slab_devices
from hdgemm.product.aliasing import overlaps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.linalg.run import OpenRun
    from hdgemm.linalg.slab import Slab
    from hdgemm.linalg.slab_journal import Command
    from hdgemm.linalg.storage import Destination
    from hdgemm.matrices.stored import StoredMatrix


class QrRun:
    """One QR factorisation; `how` has the session, options and watch of its call.

    Parameters
    ----------
    a, source
        The matrix as the caller gave it, and opened.
    overwrite_a
        A place may be that of A.
    dtype
        Of reflectors and results; None for that of A.
    """

    def __init__(
        self,
        a: Any,
        source: StoredMatrix,
        how: OpenRun,
        *,
        check_finite: bool = True,
        overwrite_a: bool = False,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        self._a, self.source, self.how, self.check_finite = a, source, how, check_finite
        self.overwrite_a = self._changes_a = overwrite_a
        self.dtype = (source.dtype if dtype is None else dtype).newbyteorder("=")
        self.k = min(source.shape)

    def place(
        self,
        stack: ExitStack,
        out: Any,
        shape: tuple[int, int],
        other: Destination | None = None,
        *,
        over_a: bool = False,
        command: Command | None = None,
    ) -> Destination:
        """Return where a result goes; it is published when the stack is left without an error.

        Parameters
        ----------
        over_a
            Without `out` it goes to the place of A.
        command
            The durable run that this is a part of, if any.

        Raises
        ------
        InputError
            When it overlaps `other`, the place of another result.
        """
        target = stack.enter_context(
            destination(
                out, self._a, self.source, order="F", overwrite_a=over_a, dtype=self.dtype,
                shape=shape, command=command,
            )
        )  # fmt: skip
        self._changes_a |= overlaps(target.stored.operand.matrix, self.source.operand.matrix)
        stack.enter_context(self._input_unchanged(target))
        if other is not None:
            check_apart(target, other)
        return target

    @contextmanager
    def _input_unchanged(self, target: Destination) -> Iterator[None]:
        """Raise on leaving when the file of A changed, unless a result goes there."""
        with ExitStack() as check:
            check.enter_context(input_unchanged(self.source, target.stored))
            yield
            if self._changes_a:
                check.pop_all()

    def place_r(
        self, stack: ExitStack, out: Any, rows: int, other: Destination | None = None
    ) -> Destination:
        """Return where R goes."""
        return self.place(stack, out, (rows, self.source.shape[1]), other)

    def scratch(self, stack: ExitStack, result: Destination) -> tuple[StoredMatrix, bool]:
        """Return a place for reflectors that are not a result, and whether it is new."""
        place = ReflectorsOfR.of(
            self.source.shape, folder_of(result.stored, self.source),
            overwrite_a=self.overwrite_a, durable=False,
        )  # fmt: skip
        if place.over_a:
            target = self.place(stack, None, self.source.shape, result, over_a=True)
            return target.stored, target.new
        shape = self.source.shape[0], place.columns
        return stack.enter_context(scratch_matrix(place.folder, shape, self.dtype)), True

    def reflectors(self, stored: StoredMatrix, r: Destination, *, new: bool) -> Reflectors:
        """Return the reflectors to be computed, planned with R; V is stored in some matrix."""
        plan = plan_for("qr", self.source, stored, self.how, new=new, dtype=self.dtype)
        plan = with_r(plan, stored.shape[1], r.stored.shape[0], new=r.new)
        return Reflectors(stored, plan)

    def plan_applied(
        self,
        reflectors: Reflectors,
        columns: int,
        out: StoredMatrix,
        trans: str | None = None,
        *,
        durable: bool = False,
    ) -> SlabPlan:
        """Return the plan to form Q, or to apply Q (trans N) or Q^H (C) to some columns.

        A `durable` run keeps a checkpoint.
        """
        plan, blocks, options = reflectors.plan, reflectors.blocks, self.how.options
        machine = machine_of(
            reflectors.stored.shape, np.dtype(plan.dtype), folder_of(out, reflectors.stored),
            self.how,
        )  # fmt: skip
        return plan_slabs(
            "apply q" if trans else "form q", columns, plan.dtype, host_bytes(options), machine,
            rows=plan.m, width=options.tile and options.tile[1], block=plan.block,
            storage=Storage(out.chunks is None), durable=durable,
            reflectors=blocks if trans == "C" else blocks[::-1],
            devices=slab_devices((plan.m, columns), plan.dtype, self.how),
        )  # fmt: skip

    def recorder(self, *plans: SlabPlan) -> Recorder:
        """Return the recorder of one or more passes."""
        devices = {name for plan in plans for name in plan.devices}
        return Recorder(self.how.watch, sum(plan.flops for plan in plans), devices=sorted(devices))

    def factor_with_r(self, v: StoredMatrix, r: Destination, *, new: bool) -> Reflectors:
        """Compute and report the reflectors, which are stored in `v`, a `new` matrix, and R."""
        reflectors = self.reflectors(v, r, new=new)
        recorder = self.recorder(reflectors.plan)
        self.factor(reflectors, r, recorder)
        recorder.finish(reflectors.plan)
        return reflectors

    def factor(self, reflectors: Reflectors, r: Destination, recorder: Recorder) -> None:
        """Compute the reflectors and R."""
        check_reread(reflectors.stored.dtype, self.dtype)
        store = partial(self._store, recorder, reflectors.stored, r)
        check = check_finite_slab if self.check_finite else None
        with SlabPipeline(
            self.source, reflectors.stored, reflectors.plan, recorder, check, store=store,
            devices=devices_of(reflectors.plan, self.how),
        ) as pipeline:  # fmt: skip
            reflectors.factor(pipeline)

    def factor_alone(self, target: Destination) -> Reflectors:
        """Compute the reflectors, without R; durably where the target is, and report it."""
        done = target.checkpoint
        if done is not None and done.finished and isinstance(done.plan, SlabPlan):
            reflectors = Reflectors(target.stored, done.plan)
            reflectors.restore(done)
            report_done(self.how.watch, done)
            return reflectors
        check = check_finite_slab if self.check_finite else None
        with slab_run(
            "qr", self.source, target.stored, target, self.how, check, dtype=self.dtype
        ) as pipeline:
            reflectors = Reflectors(target.stored, pipeline.plan)
            if done is not None:
                reflectors.restore(done)
            reflectors.factor(pipeline)
        return reflectors

    def _store(self, recorder: Recorder, v: StoredMatrix, r: Destination, slab: Slab) -> None:
        """Store a slab's reflectors, and then the columns of R above them."""
        first, last, _ = slab.place
        kept = slab.array[:, : max(0, min(last, v.shape[1]) - first)]
        if kept.size:
            with recorder.operation("store2", slab.number, nbytes=kept.nbytes):
                v[:, first : first + kept.shape[1]] = kept
        rows = stored_rows(last, self.k, r.stored.shape[0], new=r.new)
        for column in range(slab.place.width):
            slab.array[first + column + 1 : rows, column] = 0
        if rows:
            with recorder.operation("store2", slab.number, nbytes=slab.array[:rows].nbytes):
                r.stored[:rows, first:last] = slab.array[:rows]
