"""Q from its stored reflectors: Q itself, and the products Q·C and C·Q."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.recorder import Recorder, report_done
from hdgemm.call.run import plan_parts
from hdgemm.call.run_sequence import RunSequence
from hdgemm.errors import InputError
from hdgemm.linalg._qr_factorisation import checkpoint_of
from hdgemm.linalg.planning.devices import devices_of
from hdgemm.linalg.slabs.householder import Reflectors
from hdgemm.linalg.slabs.pipeline import SlabPipeline
from hdgemm.linalg.slabs.slab import check_finite_slab
from hdgemm.product.aliasing import overlaps, same_elements
from hdgemm.product.target import result_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg._qr_factorisation import QrFactorisation
    from hdgemm.linalg.planning.slab import SlabPlan
    from hdgemm.linalg.slabs.slab import Slab
    from hdgemm.linalg.storage import OpenOutput, Output
    from hdgemm.matrices.stored import StoredMatrix


@dataclass(frozen=True, slots=True)
class QProduct:
    """Q·C, or C·Q as the transpose of Q^T·C^T, by slabs of the columns of C or of C^T.

    Parameters
    ----------
    qr
        The factorisation.
    output
        Where the product goes.
    r_output
        Where R goes.
    c
        None for the identity: the product is Q, or its first columns.
    left
        Q is the left factor.
    conjugate
        Conjugate C when it is loaded, and the product when it is stored.
    """

    qr: QrFactorisation
    output: Output
    r_output: Output
    c: StoredMatrix | None = None
    left: bool = True
    conjugate: bool = False

    def prepared(self) -> Prepared[tuple[Any, Any]]:
        """Plan the factorisation and the product; the run returns the product and R."""
        if self.output.durable:
            return self._prepared_durably()
        place = self.output if self.c is None else self.qr.scratch(self.output)
        factoring, multiplying = self._plans(
            lambda qr: qr.plan_with_r(place, self.r_output), place.matrix
        )
        plan = JointPlan(self._facts, (factoring, multiplying))

        def run() -> tuple[Any, Any]:
            with ExitStack() as stack:
                r = self.qr.place(stack, self.r_output)
                target = self.qr.place(stack, self.output, r)
                self._check_overlaps(target, r)
                own = place is self.output
                v = target if own else self.qr.place(stack, place, target)
                recorder = self.qr.recorder(factoring, multiplying)
                reflectors = Reflectors(v.stored, factoring)
                self.qr.factor(reflectors, r, recorder)
                self._apply(reflectors, multiplying, recorder, target)
                recorder.finish(plan)
            return target.result(), r.result()

        return Prepared(plan, run, self.qr.how.session)

    def _prepared_durably(self) -> Prepared[tuple[Any, Any]]:
        """R has its name before the product is finished: a finished product says that all is."""
        qr, rows = self.qr, self.r_output.form.shape[0]
        work = qr.work(self.output)
        factoring, multiplying = self._plans(lambda qr: qr.plan(work), work.matrix)

        def run() -> tuple[Any, Any]:
            with ExitStack() as stack:
                target = qr.place(stack, self.output)
                done = checkpoint_of(target)
                if done.finished:
                    report_done(qr.how.callbacks, done.plan, done.resumption)
                    found = result_at(self.r_output.out)
                else:
                    found = self._run_durably(target, work, factoring, multiplying, rows)
            return target.result(), found

        plan = JointPlan(self._facts, (factoring, multiplying))
        return Prepared(plan, run, qr.how.session)

    def _run_durably(
        self,
        target: OpenOutput,
        work: Output,
        factoring: SlabPlan,
        multiplying: SlabPlan,
        rows: int,
    ) -> Any:
        """Factor, store R, and compute the slabs of the product that are left; return R."""
        done, how = checkpoint_of(target), self.qr.how
        runs = RunSequence(how.callbacks, factoring.flops + multiplying.flops)
        qr = self.qr.within(how._replace(callbacks=runs.next(factoring.flops)))
        reflectors = qr.factor_durably(work, factoring, (self.r_output.out, rows))
        with ExitStack() as stack:
            r = qr.place(stack, self.r_output, target)
            self._check_overlaps(target, r)
            qr.copy_r(reflectors.stored, r.stored, reflectors.plan)
        done.begin(multiplying, qr.how.options)
        start = done.done(0)
        recorder = Recorder(
            runs.next(multiplying.flops), multiplying.flops, devices=multiplying.devices
        )
        self._apply(reflectors, multiplying, recorder, target)
        recorder.finish(multiplying, multiplying.bytes_from(start, 0), done.resumption)
        runs.finish(self._facts)
        return r.result()

    @property
    def _facts(self) -> dict[str, Any]:
        """Kind and shape of the whole, for its report."""
        kind = "qr" if self.c is None else "qr multiply"
        qr = self.qr
        return facts_of(kind, qr.source.shape, qr.dtype.name, qr.how.options)

    def _plans(
        self, factoring_plan: Callable[[QrFactorisation], SlabPlan], reflectors: StoredMatrix
    ) -> tuple[SlabPlan, SlabPlan]:
        """Return the slabs of the factorisation and of the product."""

        def plans(run: OpenRun) -> tuple[SlabPlan, SlabPlan]:
            qr = self.qr.within(run)
            factoring = factoring_plan(qr)
            return factoring, self._plan(qr, factoring, reflectors)

        m, n = self.qr.source.shape
        what = f"{self._facts['kind']} of a {m}×{n} {self.qr.dtype} matrix"
        return plan_parts(what, plans, self.qr.how)

    def _plan(self, qr: QrFactorisation, factoring: SlabPlan, reflectors: StoredMatrix) -> SlabPlan:
        """Return the slabs of the product."""
        out = self._columns_of(self.output.matrix)
        loaded = 0 if self.c is None else self.c.shape[0 if self.left else 1]
        return qr.plan_product(
            factoring,
            reflectors,
            out.shape[1],
            self.output,
            out,
            None if self.c is None else self._trans,
            (loaded, out.shape[0]),
        )

    def _check_overlaps(self, target: OpenOutput, r: OpenOutput) -> None:
        """Refuse results that overwrite elements of C before they are read."""
        if self.c is None:
            return
        mine, other = self.c.operand, target.stored.operand
        if overlaps(other.matrix, mine.matrix) and not same_elements(other, mine):
            raise InputError(
                "the product overlaps c without being the same matrix: choose another out"
            )
        if overlaps(r.stored.operand.matrix, mine.matrix):
            raise InputError("r overlaps c, which is read after R is stored: choose another out")

    def _apply(
        self, reflectors: Reflectors, plan: SlabPlan, recorder: Recorder, target: OpenOutput
    ) -> None:
        """Compute and store the slabs of the product that are not stored yet."""
        out, load, check = self._columns_of(target.stored), _load_identity, None
        store = None
        if self.c is not None:
            columns = self.c if self.left else self.c.T
            load = partial(self._load, columns, recorder)
            store = partial(self._store, out, target, recorder)
            check = partial(check_finite_slab, transposed=not self.left, name="c")
        with SlabPipeline(
            out,
            out,
            plan,
            recorder,
            check,
            target.checkpoint,
            stream=reflectors.stored,
            load=load,
            store=store,
            devices=devices_of(plan, self.qr.how),
        ) as pipeline:
            reflectors.apply(pipeline, self._trans)

    def _columns_of(self, product: StoredMatrix) -> StoredMatrix:
        """Return the matrix whose columns are computed: the product, or its transpose."""
        return product if self.left else product.T

    @property
    def _trans(self) -> str:
        return "N" if self.left else "C"

    def _load(self, columns: StoredMatrix, recorder: Recorder, slab: Slab) -> None:
        first, last, _ = slab.place
        top = slab.array[: columns.shape[0]]
        with recorder.operation("load1", slab.number, nbytes=top.nbytes):
            columns[:, first:last].read(top)
        slab.array[len(top) :] = 0
        self._conjugate(slab)

    def _store(self, out: StoredMatrix, target: OpenOutput, recorder: Recorder, slab: Slab) -> None:
        first, last, _ = slab.place
        self._conjugate(slab)
        top, done = slab.array[: out.shape[0]], target.checkpoint
        with recorder.operation("store2", slab.number, nbytes=top.nbytes):
            if done is None:
                out[:, first:last] = top
            else:
                done.store(0, slab.place, top, {})

    def _conjugate(self, slab: Slab) -> None:
        if self.conjugate and slab.array.dtype.kind == "c":
            np.conjugate(slab.array, out=slab.array)


def _load_identity(slab: Slab) -> None:
    """Fill a slab with columns of the identity."""
    slab.array[...] = 0
    np.fill_diagonal(slab.array[slab.place.first :], 1)
