"""LU factorisation by slabs: updates, panels and interchanges of rows on chunks of columns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from hdgemm.fortran import elimination_pairs, laswp, trsm
from hdgemm.linalg.elimination import queue_slab
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.linalg.checkpoint import SlabCheckpoint
    from hdgemm.linalg.elimination import Chunk
    from hdgemm.linalg.recorder import Recorder
    from hdgemm.linalg.slabs import Block, Slab, SlabPipeline

#: Order of the triangular systems that the host solves, where devices compute the products.
_TRIANGLE: Final = 512
#: Overwrites a column-major panel by its factors; returns interchanges and the first zero pivot.
Elimination: TypeAlias = "Callable[[NDArray[Any]], tuple[NDArray[np.int64], int]]"


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
        Factors a chunk of columns.
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
        chunks = queue_slab(self._pipeline, slab, self)
        own = [chunk for chunk in chunks if chunk.place.first < last]
        for chunk in own[:-1]:
            chunk.then(partial(self._interchange_left, chunk, last), *own[-1].latest)

    def update(self, chunk: Chunk, block: Block, number: int) -> None:
        """Interchange rows of a chunk, compute the rows of U beside a block of L, and subtract
        their product below.
        """
        array = chunk.array
        first, last, _ = block.place
        width, place = last - first, (chunk.slab.number, number)
        # Rows of a stored slab are in the order in which the whole slab was factored.
        start, stop = self._slabs[block.slab][:2] if number else (first, last)
        if start == first:
            with self._pipeline.recorder.operation("mult1", place[0], block=number):
                laswp(array, self.pivots[start:stop], start)
        self._solve(place, block.array[:width], array[first:last])
        self._pipeline.products.add(
            place, -1.0, block.array[width:], array[first:last], array[last:]
        )

    def _solve(self, place: tuple[int, int], triangle: NDArray[Any], rows: NDArray[Any]) -> None:
        """Overwrite rows of a chunk by those of U; by halves, where devices compute products."""
        width = len(triangle)
        if self._pipeline.plan.devices and width > _TRIANGLE:
            half = width // 2
            self._solve(place, triangle[:half, :half], rows[:half])
            self._pipeline.products.add(
                place, -1.0, triangle[half:, :half], rows[:half], rows[half:]
            )
            self._solve(place, triangle[half:, half:], rows[half:])
            return
        flops = flops_per_multiply_add(rows.dtype.name) * rows.shape[1] * width**2 // 2
        with self._pipeline.recorder.operation("mult1", place[0], flops=flops, block=place[1]):
            trsm(triangle, rows, unit=True)

    def factor(self, chunk: Chunk) -> None:
        """Factor the rows of a chunk from its diagonal on."""
        first, last, _ = chunk.place
        found, info = factor_panel(
            chunk.array[first:], chunk.slab.number, self._pipeline.recorder, self._eliminate
        )
        self.pivots[first:last] = found + first
        if self._pipeline.plan.devices:
            left = chunk.slab.array[:, : first - chunk.slab.place.first]
            laswp(left, self.pivots[first:last], first)
        self.zero = self.zero or (info and info + first)
        chunk.slab.notes["zero"][...] = self.zero

    def _interchange_left(self, chunk: Chunk, last: int) -> None:
        """Apply the interchanges of the chunks right of one, up to column `last`."""
        first = chunk.place.last
        with self._pipeline.recorder.operation("mult1", chunk.slab.number):
            laswp(chunk.array, self.pivots[first:last], first)


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
    for slab in pipeline.below():
        _, last, top = slab.place
        with pipeline.recorder.operation("mult1", slab.number):
            laswp(slab.array, pivots[last:] - top, last - top)
