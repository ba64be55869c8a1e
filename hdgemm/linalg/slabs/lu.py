"""LU factorisation by slabs: updates, panels and interchanges of rows on spans of columns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from hdgemm.fortran import elimination_pairs, gemm, laswp, trsm
from hdgemm.linalg.planning.slab import Columns
from hdgemm.linalg.slabs._column_span import ColumnSpan, add_product
from hdgemm.linalg.slabs.elimination import queue_slab
from hdgemm.pipeline.devices.interchanges import moves_of
from hdgemm.pipeline.devices.protocol import Triangle
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.linalg._checkpoint import SlabCheckpoint
    from hdgemm.linalg.slabs._resident import ResidentBlock
    from hdgemm.linalg.slabs.pipeline import SlabPipeline
    from hdgemm.linalg.slabs.slab import FactoredColumns, Slab

#: Overwrites a column-major panel by its factors; returns interchanges and the first zero pivot.
Elimination: TypeAlias = "Callable[[NDArray[Any]], tuple[NDArray[np.int64], int]]"

#: Order up to which trsm solves with a triangle; larger ones are halved. Of order 384 with 512
#: right-hand sides that takes 0.84 of the core time of one trsm, since gemm runs at twice its rate.
_SOLVED: Final = 96


def factor_slabs(pipeline: SlabPipeline, eliminate: Elimination) -> tuple[NDArray[np.int64], int]:
    """Factor all slabs; return the pivots, and the first zero pivot."""
    method = _ByColumns(pipeline, eliminate)
    for slab in pipeline.slabs():
        method.run(slab)
    return method.pivots, method.zero


class _ByColumns:
    """Elimination with pivoting; `zero` is the index of the first zero pivot.

    Parameters
    ----------
    eliminate
        Factors a span of columns.
    """

    def __init__(self, pipeline: SlabPipeline, eliminate: Elimination) -> None:
        self._pipeline, self._eliminate = pipeline, eliminate
        plan = pipeline.plan
        self._slabs = [plan.eliminated(slab) for slab in plan.slabs]
        self.pivots = np.zeros(plan.pivots, np.int64)
        self.zero = 0
        if pipeline.checkpoint is not None:
            pivots, self.zero = recorded(pipeline.checkpoint)
            self.pivots[: len(pivots)] = pivots

    def run(self, slab: Slab) -> None:
        """Queue the tasks of a slab."""
        first, last, _ = self._slabs[slab.number]
        if first < last:  # not right of the last pivot
            slab.notes.update(pivots=self.pivots[first:last], zero=np.array(self.zero))
        spans = queue_slab(self._pipeline, slab, self)
        own = [span for span in spans if span.place.first < last]
        # Updates of spans right of the last pivot read L in the order of its own span.
        updated = [done for span in spans[len(own) - 1 :] for done in span.latest]
        for span in own[:-1]:
            span.then(partial(self._interchange_left, span, last), *updated)

    def update(self, span: ColumnSpan, block: FactoredColumns, number: int) -> None:
        """Interchange rows of a span, compute the rows of U beside a block of L, and subtract
        their product below.
        """
        array, recorder = span.array, self._pipeline.recorder
        first, last, _ = block.place
        width, place = last - first, (span.slab.number, number)
        start, stop = self._interchanged(block, number)
        if start < stop:
            with recorder.operation("mult1", place[0], block=number):
                laswp(array, self.pivots[start:stop], start)
        rows = array[first:last]
        flops = flops_per_multiply_add(rows.dtype.name) * rows.shape[1] * width**2 // 2
        with recorder.operation("mult1", place[0], flops=flops, block=number):
            _solve(block.array[:width], rows)
        add_product(recorder, place, -1.0, block.array[width:], rows, array[last:])

    def _interchanged(self, block: FactoredColumns, number: int) -> tuple[int, int]:
        """Return the pivots to apply before a block: its slab's before the first block.

        Rows of a stored slab are in the order in which the whole slab was factored. A block of the
        same slab (number 0) has its own pivots.
        """
        first, last, _ = self._slabs[block.slab] if number else block.place
        return first, last if first == block.place.first else first

    def squares(self, _block: FactoredColumns) -> tuple[()]:
        """Devices need nothing beside a block."""
        return ()

    def update_resident(self, block: ResidentBlock, number: int) -> float:
        """Do on a device what `update` does on the host."""
        first, last, _ = block.columns.place
        start, stop = self._interchanged(block.columns, number)
        for part in self._pipeline.plan.parts(Columns(start, stop, 0)):
            block.permute(moves_of(self.pivots[part.first : part.last], part.first))
        rows, below = block.target(first, last), block.source(last)
        block.solve(block.source(first, last), rows, Triangle("R", lower=False, unit=True))
        if below.cols:
            block.multiply(-1.0, rows, below, block.target(last))
        width = last - first
        return block.width * (width**2 / 2 + width * below.cols)

    def factor(self, span: ColumnSpan) -> None:
        """Factor the rows of a span from its diagonal on."""
        first, last, _ = span.place
        found, info = factor_panel(
            span.array[first:], span.slab.number, self._pipeline.recorder, self._eliminate
        )
        self.pivots[first:last] = found + first
        if self._pipeline.plan.devices:
            left = span.slab.array[:, : first - span.slab.place.first]
            laswp(left, self.pivots[first:last], first)
        self.zero = self.zero or (info and info + first)
        span.slab.notes["zero"][...] = self.zero

    def _interchange_left(self, span: ColumnSpan, last: int) -> None:
        """Apply the interchanges of the spans right of one, up to column `last`."""
        first = span.place.last
        with self._pipeline.recorder.operation("mult1", span.slab.number):
            laswp(span.array, self.pivots[first:last], first)


def _solve(lower: NDArray[Any], rows: NDArray[Any]) -> None:
    """Solve L·X = B for a unit lower triangular L; X overwrites B."""
    order = len(rows)
    if order <= _SOLVED:
        trsm(lower, rows, unit=True)
        return
    half = order // 2
    _solve(lower[:half, :half], rows[:half])
    gemm(-1.0, lower[half:, :half], rows[:half], rows[half:])
    _solve(lower[half:, half:], rows[half:])


def recorded(checkpoint: SlabCheckpoint) -> tuple[NDArray[np.int64], int]:
    """Return the pivots of the slabs that are finished, and the first zero pivot among them."""
    notes = [notes for notes in checkpoint.notes() if notes]
    pivots = [np.empty(0, np.int64), *(note["pivots"] for note in notes)]
    return np.concatenate(pivots), notes[-1]["zero"].item() if notes else 0


def factor_panel(
    panel: NDArray[Any], slab: int, recorder: Recorder, eliminate: Elimination
) -> tuple[NDArray[np.int64], int]:
    """Factor columns; pivots are relative to their first row."""
    rows, width = panel.shape
    flops = int(flops_per_multiply_add(panel.dtype.name) * elimination_pairs(rows, width))
    with recorder.operation("mult1", slab, flops=flops):
        return eliminate(panel)


def interchange_stored(pipeline: SlabPipeline, pivots: NDArray[np.int64]) -> None:
    """Apply the interchanges of later slabs to the rows of L in earlier ones."""
    pipeline.recorder.phase = "interchange"

    def interchange(span: ColumnSpan, last: int) -> None:
        with pipeline.recorder.operation("mult1", span.slab.number):
            laswp(span.array, pivots[last:] - span.place.top, last - span.place.top)

    for slab in pipeline.below():
        for columns, _ in slab.loads:
            span = ColumnSpan(pipeline.team, slab, columns.first, columns.last)
            span.then(partial(interchange, span, slab.place.last))
