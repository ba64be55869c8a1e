"""One QR factorisation: where its results go, its plans, its reflectors and R.

A durable factorisation stores the reflectors in a file beside the result, copies R from it in one
pass, and forms Q in a file of its own, slab by slab. The file of reflectors is removed at the end.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from hdgemm.call.input_checks import check_reread, input_unchanged
from hdgemm.call.operands import open_matrix
from hdgemm.call.recorder import Recorder, report_done
from hdgemm.call.run import folder_of, machine_of
from hdgemm.durable.place import ResultPlace
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.linalg._checkpoint import Command
from hdgemm.linalg.planning.devices import devices_of, slab_devices
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.planning.rows import r_factor_work
from hdgemm.linalg.planning.search import Storage, plan_slabs
from hdgemm.linalg.planning.slab import SlabPlan
from hdgemm.linalg.rows.source import TallRows
from hdgemm.linalg.slabs.householder import Reflectors
from hdgemm.linalg.slabs.pipeline import SlabPipeline
from hdgemm.linalg.slabs.run import slab_run
from hdgemm.linalg.slabs.slab import check_finite_slab
from hdgemm.linalg.storage import Output, ScratchFile, check_apart, plan_for, scratch_folder
from hdgemm.machine.limits import host_bytes
from hdgemm.matrices.draft import require_space
from hdgemm.matrices.location import Location
from hdgemm.product.aliasing import overlaps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.call.run import OpenRun
    from hdgemm.durable.run import JournaledRun
    from hdgemm.linalg._checkpoint import SlabCheckpoint
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.planning.slab import Kind
    from hdgemm.linalg.slabs.slab import Slab
    from hdgemm.linalg.storage import OpenOutput
    from hdgemm.matrices.stored import StoredMatrix

#: Rows for each column from which R is computed by TSQR.
TALL: Final = 4


class QrFactorisation:
    """One QR factorisation; `how` has the session, options and callbacks of its call.

    Parameters
    ----------
    a, source
        The matrix as the caller gave it, and opened.
    overwrite_a
        The reflectors may be stored over A.
    dtype
        Of reflectors and results; None for the dtype of A.
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

    def within(self, how: OpenRun) -> Self:
        """Return the same factorisation in another run."""
        found = copy(self)
        found.how = how
        return found

    def output(
        self,
        out: Any,
        shape: tuple[int, int],
        *,
        over_a: bool = False,
        order: str = "F",
        command: Command | None = None,
    ) -> Output:
        """Describe a result; without `out`, `over_a` puts it in the place of A."""
        return Output.of(
            out,
            self._a,
            self.source,
            order=order,
            overwrite_a=over_a,
            dtype=self.dtype,
            shape=shape,
            command=command,
        )

    def output_r(self, out: Any, rows: int, order: str = "F") -> Output:
        """Describe R."""
        return self.output(out, (rows, self.source.shape[1]), order=order)

    def scratch(self, beside: Output) -> Output:
        """Describe the place of reflectors that are not a result: over A, or a matrix of k columns
        in the folder of a result or of A, or in memory.
        """
        if self.overwrite_a:
            return self.output(None, self.source.shape, over_a=True)
        folder = beside.folder
        file = None if folder is None else ScratchFile(scratch_folder(folder))
        return self.output(file, (self.source.shape[0], self.k))

    def work(self, result: Output) -> Output:
        """Describe the file of a durable run's reflectors, which lies beside its result."""
        if not isinstance(result.out, Location):
            raise InputError("checkpoint needs results in files: give locations of Q and R in out")
        place = ResultPlace.aside(result.out, result.form.shape, self.dtype)
        return self.output(
            place.work(".qr.npy"), self.source.shape, command=Command("qr", {}, checkpoint=True)
        )

    def place(
        self,
        stack: ExitStack,
        output: Output,
        other: OpenOutput | None = None,
        run: JournaledRun | None = None,
    ) -> OpenOutput:
        """Open a result; it is published when the stack is left without an error.

        `run` is the durable run, where neither result is kept by it.

        Raises
        ------
        InputError
            When it overlaps `other`, another result.
        """
        if isinstance(output.out, ScratchFile):
            stack.enter_context(output.out)
        if other is not None:
            run = other.checkpoint
        target = stack.enter_context(output.opened(run=run))
        self._changes_a |= overlaps(target.stored.operand.matrix, self.source.operand.matrix)
        stack.enter_context(self._input_unchanged(target))
        if other is not None:
            check_apart(target, other)
        return target

    @contextmanager
    def _input_unchanged(self, target: OpenOutput) -> Iterator[None]:
        """Raise on leaving when the file of A changed, unless a result goes there."""
        with ExitStack() as check:
            check.enter_context(input_unchanged(self.source, target.stored))
            yield
            if self._changes_a:
                check.pop_all()

    def plan(self, output: Output) -> SlabPlan:
        """Return the slabs of reflectors without R."""
        return plan_for("qr", self.source, output, self.how)

    def plan_with_r(self, output: Output, r: Output) -> SlabPlan:
        """Return the slabs of reflectors and R: the bytes of both are stored."""
        plan, kept = self.plan(output), output.form.shape[1]
        rows = r.form.shape[0]
        stored = sum(
            stored_rows(x.last, plan.pivots, rows, new=r.new) * x.width for x in plan.slabs
        )
        beside = stored - plan.m * max(0, plan.n - kept)
        # R is taken from the slabs in memory when it is stored.
        return replace(plan, beside=beside * plan.itemsize, held=False)

    def plan_tall(self) -> RowPlan | None:
        """Return the plan of R by TSQR; None where the matrix is not tall, and where R does not fit
        the memory.

        Raises
        ------
        DoesNotFitError
            When the memory of a device is too small: slabs take more of it.
        """
        m, n = self.source.shape
        if m < TALL * n or not n:
            return None
        try:
            shape = TallRows(self.source, self.dtype).shape
            return rows_for(shape, [r_factor_work(shape)], folder_of(self.source), self.how)
        except DoesNotFitError as error:
            if "device" in error.numbers:
                raise
            return None

    def plan_product(
        self,
        factoring: SlabPlan,
        reflectors: StoredMatrix,
        columns: int,
        output: Output,
        out: StoredMatrix,
        trans: str | None,
        rows: tuple[int, int],
    ) -> SlabPlan:
        """Return the plan to form Q, or to apply Q (trans N) or Q^H (C) to some columns.

        Parameters
        ----------
        factoring, reflectors
            The plan of the reflectors, and where they are stored.
        output, out
            The result, and the matrix of it whose columns are computed: it, or its transpose.
        rows
            Rows of a slab that are loaded, and that are stored.
        """
        recorded = output.recorded_plan()
        if isinstance(recorded, SlabPlan):
            return recorded
        options = self.how.options
        shape = factoring.m, reflectors.shape[1]
        kind: Kind = "apply q" if trans else "form q"
        plan = plan_slabs(
            kind,
            columns,
            factoring.dtype,
            host_bytes(options),
            machine_of(shape, self.dtype, folder_of(out, reflectors), self.how),
            rows=factoring.m,
            width=options.tile and options.tile[1],
            block=factoring.block,
            storage=Storage(out.chunks is None),
            durable=output.durable,
            reflectors=replace(factoring.eliminating, backwards=trans != "C"),
            devices=slab_devices((factoring.m, columns), factoring.dtype, self.how),
        )
        return replace(plan, moved_rows=rows)

    def recorder(self, *plans: SlabPlan) -> Recorder:
        """Return the recorder of one or more passes."""
        devices = {name for plan in plans for name in plan.devices}
        return Recorder(
            self.how.callbacks, sum(plan.flops for plan in plans), devices=sorted(devices)
        )

    def factor_with_r(self, v: StoredMatrix, r: OpenOutput, plan: SlabPlan) -> Reflectors:
        """Compute and report the reflectors, which are stored in `v`, and R."""
        reflectors, recorder = Reflectors(v, plan), self.recorder(plan)
        self.factor(reflectors, r, recorder)
        recorder.finish(plan)
        return reflectors

    def factor(self, reflectors: Reflectors, r: OpenOutput, recorder: Recorder) -> None:
        """Compute the reflectors and R."""
        check_reread(reflectors.stored.dtype, self.dtype)
        with SlabPipeline(
            self.source,
            reflectors.stored,
            reflectors.plan,
            recorder,
            check_finite_slab if self.check_finite else None,
            store=partial(self._store, recorder, reflectors.stored, r),
            devices=devices_of(reflectors.plan, self.how),
        ) as pipeline:
            reflectors.factor(pipeline)

    def factor_alone(self, target: OpenOutput, plan: SlabPlan) -> Reflectors:
        """Compute the reflectors, without R; durably where the target is, and report it."""
        done = target.checkpoint
        if done is not None and done.finished and isinstance(done.plan, SlabPlan):
            reflectors = Reflectors(target.stored, done.plan)
            reflectors.restore(done)
            report_done(self.how.callbacks, done.plan, done.resumption)
            return reflectors
        check = check_finite_slab if self.check_finite else None
        with slab_run(self.source, target.stored, target, self.how, check, plan) as pipeline:
            reflectors = Reflectors(target.stored, pipeline.plan)
            if done is not None:
                reflectors.restore(done)
            reflectors.factor(pipeline)
        return reflectors

    def factor_durably(
        self, work: Output, plan: SlabPlan, needed: tuple[Any, int] | None = None
    ) -> Reflectors:
        """Return the reflectors, which lie in a file beside the result until its end.

        `needed` is the location of R and its rows, for which there must be space: R is stored after
        the factorisation.
        """
        with ExitStack() as stack:
            target = self.place(stack, work)
            if needed is not None:
                self.require_space(*needed)
            reflectors = self.factor_alone(target, plan)
        reflectors.stored = open_matrix(work.out)
        return reflectors

    def require_space(self, r_out: Location, rows: int) -> None:
        """Raise where R will not fit its disk."""
        if not r_out.url:
            require_space(r_out.path, rows * self.source.shape[1] * self.dtype.itemsize)

    def copy_r(self, v: StoredMatrix, r: StoredMatrix, plan: SlabPlan) -> None:
        """Store R, which lies on and above the diagonal of the reflectors, slab by slab."""
        recorder = Recorder(self.how.callbacks, 0)
        for first, last, _ in plan.slabs:
            recorder.check_cancel()
            r[:, first:last] = upper_columns(v, r.shape[0], first, last)

    def copy_r_durably(self, done: SlabCheckpoint, reflectors: Reflectors) -> None:
        """Store the slabs of R that are left, from the reflectors."""
        factoring, recorder = reflectors.plan, Recorder(self.how.callbacks, 0)
        plan = done.plan
        if not isinstance(plan, SlabPlan):
            plan = SlabPlan(
                "copy",
                self.k,
                factoring.n,
                factoring.dtype,
                factoring.slabs,
                factoring.block,
                1,
                factoring.host_bytes,
                devices=factoring.devices,
            )
        done.begin(plan, self.how.options)
        for number in range(done.done(0), len(plan.slabs)):
            place = plan.slabs[number]
            recorder.check_cancel()
            part = upper_columns(reflectors.stored, plan.m, place.first, place.last)
            done.store(0, place, part, {})

    def _store(self, recorder: Recorder, v: StoredMatrix, r: OpenOutput, slab: Slab) -> None:
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


def stored_rows(last: int, pivots: int, rows: int, *, new: bool) -> int:
    """Return how many of R's rows are stored up to some column: all where it has old elements."""
    return min(last, pivots) if new else rows


def checkpoint_of(target: OpenOutput) -> SlabCheckpoint:
    """Return the durable run that stores a result."""
    if target.checkpoint is None:
        raise InputError("the result is not durable")
    return target.checkpoint


def upper_columns(v: StoredMatrix, rows: int, first: int, last: int) -> Any:
    """Return some columns of R from the matrix that has the reflectors below it."""
    part = np.zeros((rows, last - first), v.dtype.newbyteorder("="), "F")
    top = min(rows, last, v.shape[0])
    v[:top, first:last].read(part[:top])
    for column in range(last - first):
        part[first + column + 1 :, column] = 0
    return part
