"""Cholesky factorisation of trapezoids in memory: updates and panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hdgemm.fortran import cholesky_pairs, rank_k, trsm
from hdgemm.linalg.slabs._column_span import add_product
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.tasks.kernels import factor_diagonal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.linalg.slabs._column_span import ColumnSpan
    from hdgemm.linalg.slabs._resident import ResidentBlock
    from hdgemm.linalg.slabs.pipeline import SlabPipeline
    from hdgemm.linalg.slabs.slab import FactoredColumns

#: Columns that LAPACK factors at once; wider trapezoids are halved.
_LEAF: Final = 128
#: Order of a diagonal block that syrk updates at once; larger ones are halved.
_SQUARE: Final = 512


class TrapezoidElimination:
    """Elimination of the lower trapezoids of slabs."""

    def __init__(self, pipeline: SlabPipeline) -> None:
        self._recorder = pipeline.recorder

    def update(self, span: ColumnSpan, block: FactoredColumns, number: int) -> None:
        """Subtract the product of earlier columns with their rows at the span's diagonal."""
        top = span.place.first - span.place.top
        place = span.slab.number, number
        _subtract(span.array[top:], block.array[top:], place, self._recorder)

    def factor(self, span: ColumnSpan) -> None:
        """Factor the trapezoid of a span; clear what is above it."""
        top = span.place.first - span.place.top
        factor_panel(span.array[top:], span.place.first, span.slab.number, self._recorder)
        for column in range(span.place.width):
            span.array[: top + column, column] = 0

    def squares(self, _block: FactoredColumns) -> tuple[()]:
        """Devices need nothing beside a block."""
        return ()

    def update_resident(self, block: ResidentBlock, _number: int) -> float:
        """Do on a device what `update` does on the host, for each strip from its diagonal on.

        Elements above the diagonal of a strip may be changed: a device multiplies by a part of a
        packed operand from a multiple of its granularity on.
        """
        work, depth, pairs = block.held.work, block.columns.place.width, 0.0
        top, step = block.columns.place.top, work.device.spec.granularity[1]
        start = max(top, block.cols[0])
        after = block.held.order()
        packed = work.packed("B", block.source(start), after)
        for part in block.parts():
            skip = (part.first - start) // step * step
            left = work.packed("A", block.source(part.first, part.last), after, "C")
            right = packed._replace(col=packed.col + skip, cols=packed.cols - skip)
            target = block.target(start + skip, cols=part)
            work.completions.append(work.device.gemm(-1.0, left, right, 1.0, target, after))
            rows, width = block.held.plan.m - part.first, part.width
            pairs += depth * (width * (width + 1) / 2 + width * (rows - width))
        return pairs


def _subtract(
    trapezoid: NDArray[Any], left: NDArray[Any], place: tuple[int, int], recorder: Recorder
) -> None:
    """Subtract L·L^H from a lower trapezoid; L has the rows of the trapezoid."""
    width = trapezoid.shape[1]
    _subtract_square(trapezoid[:width], left[:width], place, recorder)
    add_product(recorder, place, -1.0, left[width:], left[:width], trapezoid[width:], trans_b="C")


def _subtract_square(
    square: NDArray[Any], left: NDArray[Any], place: tuple[int, int], recorder: Recorder
) -> None:
    """Subtract L·L^H from the lower triangle of a square."""
    order, depth = left.shape
    if order > _SQUARE:
        half = order // 2
        _subtract(square[:, :half], left, place, recorder)
        _subtract_square(square[half:, half:], left[half:], place, recorder)
        return
    flops = flops_per_multiply_add(square.dtype.name) * depth * order * (order + 1) // 2
    with recorder.operation("mult1", place[0], flops=flops, block=place[1]):
        rank_k(-1.0, left, square)


def factor_panel(part: NDArray[Any], first: int, slab: int, recorder: Recorder) -> None:
    """Factor a trapezoid: recursively, so that most of the work is in large products.

    Its first column is column `first` of the matrix.
    """
    rows, width = part.shape
    if width > _LEAF:
        half = width // 2
        factor_panel(part[:, :half], first, slab, recorder)
        left, right = part[half:, :half], part[half:, half:]
        _subtract(right, left, (slab, 0), recorder)
        factor_panel(right, first + half, slab, recorder)
        return
    flops = int(flops_per_multiply_add(part.dtype.name) * cholesky_pairs(rows, width))
    with recorder.operation("mult1", slab, flops=flops):
        factor_diagonal(part[:width], first)
        trsm(part[:width], part[width:], side="R", trans="C")
