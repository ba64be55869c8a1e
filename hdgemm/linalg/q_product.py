"""Q from its stored reflectors: Q itself, and the products Q·C and C·Q."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hdgemm.errors import InputError
from hdgemm.linalg.input_checks import check_finite_slab
from hdgemm.linalg.slab_plan import Columns, SlabPlan
from hdgemm.linalg.slabs import SlabPipeline
from hdgemm.linalg.updates import devices_of
from hdgemm.product.aliasing import overlaps, same_elements

if TYPE_CHECKING:
    from hdgemm.linalg.householder import Reflectors
    from hdgemm.linalg.qr_run import QrRun
    from hdgemm.linalg.recorder import Recorder
    from hdgemm.linalg.slab import Slab
    from hdgemm.linalg.slab_plan import Kind
    from hdgemm.linalg.storage import Destination
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.pipeline.plan import Stage


@dataclass(frozen=True, slots=True)
class QProduct:
    """Q·C, or C·Q as the transpose of Q^T·C^T, by slabs of the columns of C or of C^T.

    Parameters
    ----------
    target
        Where the product is stored.
    c
        None for the identity: the product is Q, or its first columns.
    left
        Q is the left factor.
    conjugate
        Conjugate C when it is loaded, and the product when it is stored.
    """

    target: Destination
    c: StoredMatrix | None = None
    left: bool = True
    conjugate: bool = False

    def run(self, run: QrRun, v: StoredMatrix, r: Destination, *, new: bool) -> None:
        """Factor, store R, and apply the reflectors, which are stored in `v`, a `new` matrix."""
        reflectors = run.reflectors(v, r, new=new)
        plan = self.plan(run, reflectors)
        recorder = run.recorder(reflectors.plan, plan)
        run.factor(reflectors, r, recorder)
        self.apply(run, reflectors, plan, recorder)
        factoring, moved = reflectors.plan, self.moved(plan, 0)
        planned = {stage: factoring.planned_bytes[stage] + moved[stage] for stage in moved}
        recorder.finish(factoring, planned)

    def check_overlaps(self, r: Destination) -> None:
        """Refuse results that overwrite elements of C before they are read."""
        if self.c is None:
            return
        mine, other = self.c.operand, self.target.stored.operand
        if overlaps(other.matrix, mine.matrix) and not same_elements(other, mine):
            raise InputError(
                "the product overlaps c without being the same matrix: choose another out"
            )
        if overlaps(r.stored.operand.matrix, mine.matrix):
            raise InputError("r overlaps c, which is read after R is stored: choose another out")

    def flops(self, run: QrRun) -> int:
        """Return the floating-point operations of the product, without the factorisation."""
        kind: Kind = "form q" if self.c is None else "apply q"
        plan = SlabPlan.of_array(kind, run.source.shape[0], self._out.shape[1], run.dtype.name)
        return replace(plan, reflectors=(Columns(0, run.k, 0),)).flops

    def plan(self, run: QrRun, reflectors: Reflectors) -> SlabPlan:
        """Return the slabs of the product."""
        return run.plan_applied(
            reflectors, self._out.shape[1], self._out, None if self.c is None else self._trans,
            durable=self.target.checkpoint is not None,
        )  # fmt: skip

    def moved(self, plan: SlabPlan, start: int) -> dict[Stage, int]:
        """Return the bytes that are read and written where `start` slabs are stored already."""
        rows = 0 if self.c is None else self.c.shape[0 if self.left else 1]
        columns = sum(slab.width for slab in plan.slabs[start:]) * plan.itemsize
        streamed = sum(plan.streamed_bytes()[start:])
        return {"load1": streamed + columns * rows, "store2": columns * self._out.shape[0]}

    def apply(self, run: QrRun, reflectors: Reflectors, plan: SlabPlan, recorder: Recorder) -> None:
        """Compute and store the slabs of the product that are not stored yet."""
        load, store, check = _load_identity, None, None
        if self.c is not None:
            columns = self.c if self.left else self.c.T
            load = partial(self._load, columns, recorder)
            store = partial(self._store, recorder)
            check = partial(check_finite_slab, transposed=not self.left, name="c")
        with SlabPipeline(
            self._out, self._out, plan, recorder, check, self.target.checkpoint,
            stream=reflectors.stored, load=load, store=store, devices=devices_of(plan, run.how),
        ) as pipeline:  # fmt: skip
            reflectors.apply(pipeline, self._trans)

    @property
    def _out(self) -> StoredMatrix:
        return self.target.stored if self.left else self.target.stored.T

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

    def _store(self, recorder: Recorder, slab: Slab) -> None:
        first, last, _ = slab.place
        self._conjugate(slab)
        top = slab.array[: self._out.shape[0]]
        done = self.target.checkpoint
        with recorder.operation("store2", slab.number, nbytes=top.nbytes):
            if done is None:
                self._out[:, first:last] = top
            else:
                done.store(0, slab.number, slab.place, top, {})

    def _conjugate(self, slab: Slab) -> None:
        if self.conjugate and slab.array.dtype.kind == "c":
            np.conjugate(slab.array, out=slab.array)


def _load_identity(slab: Slab) -> None:
    """Fill a slab with columns of the identity."""
    slab.array[...] = 0
    np.fill_diagonal(slab.array[slab.place.first :], 1)
