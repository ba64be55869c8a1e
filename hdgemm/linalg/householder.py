"""Householder reflectors in compact WY form: Q = I - V·T·V^H for a block of columns in memory.

V is unit lower trapezoidal and lies below the diagonal of the columns, R on and above it, as
LAPACK's geqrt stores them; T is upper triangular, with LAPACK's tau on its diagonal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.fortran import gemm, geqrt, trmm
from hdgemm.linalg.slab_plan import elimination_pairs
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from hdgemm.linalg.checkpoint import SlabCheckpoint
    from hdgemm.linalg.slab_plan import Columns, SlabPlan
    from hdgemm.linalg.slabs import Slab, SlabPipeline
    from hdgemm.matrices.stored import StoredMatrix


def apply_reflectors(v: NDArray[Any], t: NDArray[Any], c: NDArray[Any], trans: str) -> None:
    """Overwrite C by Q·C (trans N) or Q^H·C (trans C); V's upper triangle is not read."""
    width = v.shape[1]
    if not (width and c.shape[1]):
        return
    top, bottom = c[:width], c[width:]
    product = np.array(top, order="F")
    trmm(v[:width], product, trans="C", unit=True)
    gemm(1.0, v[width:], bottom, product, trans_a="C")
    trmm(t, product, lower=False, trans=trans)
    gemm(-1.0, v[width:], product, bottom)
    trmm(v[:width], product, unit=True)
    top -= product


class Reflectors:
    """Reflectors of a QR factorisation: V in a stored matrix, T in memory.

    Parameters
    ----------
    stored
        V lies below the diagonal of its first columns.
    plan
        Of the factorisation: its blocks are those of T.
    """

    def __init__(self, stored: StoredMatrix, plan: SlabPlan) -> None:
        self.stored, self.plan = stored, plan
        self.blocks = tuple(block for slab in plan.slabs for block in plan.parts(slab))
        self._t = np.zeros((plan.block, plan.pivots), plan.dtype, "F")

    def t(self, place: Columns) -> NDArray[Any]:
        """Return T of the reflectors in some columns."""
        return self._t[: place.width, place.first : place.last]

    @property
    def tau(self) -> NDArray[Any]:
        """LAPACK's tau: the diagonals of all T."""
        diagonals = [np.diagonal(self.t(block)) for block in self.blocks]
        return np.concatenate([np.empty(0, self._t.dtype), *diagonals])

    def restore(self, checkpoint: SlabCheckpoint) -> None:
        """Take T of the slabs that an earlier run has factored."""
        first = 0
        for notes in checkpoint.notes():
            if notes:
                t = notes["t"].reshape(len(self._t), -1)
                self._t[:, first : first + t.shape[1]] = t
                first += t.shape[1]

    def factor(self, pipeline: SlabPipeline) -> None:
        """Factor the slabs of a matrix; `stored` is where the pipeline stores them."""
        for slab in pipeline.slabs():
            self._apply_to(slab, pipeline, "C")
            for place in self.plan.parts(slab.place):
                first, last = (column - slab.place.first for column in place[:2])
                panel, rest = slab.array[place.first :, first:last], slab.array[:, last:]
                pairs = 2 * elimination_pairs(*panel.shape)
                with self._operation(pipeline, slab, pairs):
                    geqrt(panel, self.t(place))
                with self._operation(pipeline, slab, _pairs(panel, rest)):
                    apply_reflectors(panel, self.t(place), rest[place.first :], "C")
            first, last, _ = self.plan.eliminated(slab.place)
            if first < last:
                slab.notes["t"] = self._t[:, first:last]

    def apply(self, pipeline: SlabPipeline, trans: str) -> None:
        """Overwrite the slabs C of a pipeline by Q·C (trans N) or Q^H·C (trans C)."""
        for slab in pipeline.slabs():
            self._apply_to(slab, pipeline, trans)

    def _apply_to(self, slab: Slab, pipeline: SlabPipeline, trans: str) -> None:
        for number, block in enumerate(pipeline.earlier(slab), 1):
            with self._operation(pipeline, slab, _pairs(block.array, slab.array), number):
                t = self.t(block.place)
                apply_reflectors(block.array, t, slab.array[block.place.first :], trans)

    def _operation(
        self, pipeline: SlabPipeline, slab: Slab, pairs: float, block: int = 0
    ) -> AbstractContextManager[None]:
        flops = int(flops_per_multiply_add(self.plan.dtype) * pairs)
        return pipeline.recorder.operation("mult1", slab.number, flops=flops, block=block)


def _pairs(v: NDArray[Any], c: NDArray[Any]) -> int:
    """Count the multiply-adds of reflectors that are applied to columns."""
    rows, width = v.shape
    pairs: int = c.shape[1] * width * (2 * rows - width)
    return pairs
