"""Householder reflectors in compact WY form: Q = I - V·T·V^H for a block of columns in memory.

V is unit lower trapezoidal and lies below the diagonal of the columns, R on and above it, as
LAPACK's geqrt stores them; T is upper triangular, with LAPACK's tau on its diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.fortran import elimination_pairs, geqrt, trmm
from hdgemm.linalg.slabs._column_span import add_product
from hdgemm.linalg.slabs.elimination import queue_slab
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from hdgemm.linalg._checkpoint import SlabCheckpoint
    from hdgemm.linalg.planning.slab import Columns, SlabPlan
    from hdgemm.linalg.slabs._column_span import ColumnSpan
    from hdgemm.linalg.slabs._resident import ResidentBlock
    from hdgemm.linalg.slabs.pipeline import SlabPipeline
    from hdgemm.linalg.slabs.slab import FactoredColumns
    from hdgemm.matrices.stored import StoredMatrix


class Reflectors:
    """Reflectors of a QR factorisation: V in a stored matrix, T in memory.

    Parameters
    ----------
    stored
        V lies below the diagonal of its first columns.
    plan
        Of the factorisation: T has the same blocks.
    """

    def __init__(self, stored: StoredMatrix, plan: SlabPlan) -> None:
        self.stored, self.plan = stored, plan
        self.blocks = plan.eliminating
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
        method = _Elimination(self, pipeline, "C")
        for slab in pipeline.slabs():
            first, last, _ = self.plan.eliminated(slab.place)
            if first < last:
                slab.notes["t"] = self._t[:, first:last]
            queue_slab(pipeline, slab, method)

    def apply(self, pipeline: SlabPipeline, trans: str) -> None:
        """Overwrite the slabs C of a pipeline by Q·C (trans N) or Q^H·C (trans C)."""
        method = _Elimination(self, pipeline, trans)
        for slab in pipeline.slabs():
            queue_slab(pipeline, slab, method)


@dataclass(frozen=True, slots=True)
class _Elimination:
    """Application of reflectors to the spans of a pipeline, and their factorisation."""

    reflectors: Reflectors
    pipeline: SlabPipeline
    trans: str

    def update(self, span: ColumnSpan, block: FactoredColumns, number: int) -> None:
        """Overwrite a span C by Q·C or Q^H·C, by the reflectors V of a block of columns.

        The upper triangle of V is not read.
        """
        v, t, c = block.array, self.reflectors.t(block.place), span.array[block.place.first :]
        width = v.shape[1]
        if not (width and c.shape[1]):
            return
        place, recorder = (span.slab.number, number), self.pipeline.recorder
        pairs = c.shape[1] * width**2 / 3  # in each of the three triangular products
        with self._operation(span, pairs, number):
            product = np.array(c[:width], order="F")
            trmm(v[:width], product, trans="C", unit=True)
        add_product(recorder, place, 1.0, v[width:], c[width:], product, trans_a="C")
        with self._operation(span, pairs, number):
            trmm(t, product, lower=False, trans=self.trans)
        add_product(recorder, place, -1.0, v[width:], product, c[width:])
        with self._operation(span, pairs, number):
            trmm(v[:width], product, unit=True)
            c[:width] -= product

    def squares(self, block: FactoredColumns) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the top of V^T, with its unit diagonal and zeros below it, and op(T)^T."""
        width, t = block.place.width, self.reflectors.t(block.place)
        head = np.triu(block.array[:width].T, 1)
        np.fill_diagonal(head, 1)
        return head, t.T if self.trans == "N" else t.conj()

    def update_resident(self, block: ResidentBlock, _number: int) -> float:
        """Do on a device what `update` does on the host: C^T := C^T - C^T·conj(V)·op(T)^T·V^T."""
        first, last, _ = block.columns.place
        v, c = block.source(first), block.target(first)
        width, count = last - first, block.width
        product, scaled = (block.scratch(name, count, width) for name in ("VC", "TVC"))
        block.multiply(1.0, c, v, product, beta=0.0, trans_b="C")
        block.multiply(1.0, product, block.triangle, scaled, beta=0.0)
        block.multiply(-1.0, scaled, v, c)
        return count * width * (2.0 * c.cols - width)

    def factor(self, span: ColumnSpan) -> None:
        """Factor a span from its diagonal on."""
        panel = span.array[span.place.first :]
        with self._operation(span, 2 * elimination_pairs(*panel.shape), 0):
            geqrt(panel, self.reflectors.t(span.place))

    def _operation(
        self, span: ColumnSpan, pairs: float, number: int
    ) -> AbstractContextManager[None]:
        flops = int(flops_per_multiply_add(self.reflectors.plan.dtype) * pairs)
        recorder = self.pipeline.recorder
        return recorder.operation("mult1", span.slab.number, flops=flops, block=number)
