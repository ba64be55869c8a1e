"""Cholesky factorisation of trapezoids in memory: updates and panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hdgemm.fortran import SingularMatrixError, gemm, potrf, rank_k, trsm
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hdgemm.linalg.elimination import Chunk
    from hdgemm.linalg.recorder import Recorder
    from hdgemm.linalg.slabs import Block, SlabPipeline

#: Columns that LAPACK factors at once; wider trapezoids are halved.
_LEAF: Final = 128
#: Order of a diagonal block that syrk updates at once; larger ones are halved.
_SQUARE: Final = 512


def _flops(depth: int, width: int, rows: int, dtype: np.dtype[Any]) -> int:
    """Count the operations on a trapezoid: an update of some depth, or (0) its factorisation."""
    if depth:
        pairs = depth * (width * (rows - width) + width * (width + 1) / 2)
    else:
        pairs = width**3 / 6 + width**2 * (rows - width) / 2
    return int(flops_per_multiply_add(dtype.name) * pairs)


class TrapezoidElimination:
    """Elimination of the lower trapezoids of slabs."""

    def __init__(self, pipeline: SlabPipeline) -> None:
        self._recorder, self._products = pipeline.recorder, pipeline.products

    def update(self, chunk: Chunk, block: Block, number: int) -> None:
        """Subtract the product of earlier columns with their rows at the chunk's diagonal."""
        top, width = chunk.place.first - chunk.place.top, chunk.place.width
        part, left, place = chunk.array[top:], block.array[top:], (chunk.slab.number, number)
        self._update_diagonal(part[:width], left[:width], place)
        self._products.add(place, -1.0, left[width:], left[:width], part[width:], trans_b="C")

    def _update_diagonal(
        self, square: NDArray[Any], left: NDArray[Any], place: tuple[int, int]
    ) -> None:
        """Subtract L·L^H from the lower triangle of a diagonal block."""
        order, depth = left.shape
        if order > _SQUARE:
            half = order // 2
            self._update_diagonal(square[:half, :half], left[:half], place)
            self._products.add(
                place, -1.0, left[half:], left[:half], square[half:, :half], trans_b="C"
            )
            self._update_diagonal(square[half:, half:], left[half:], place)
            return
        flops = _flops(depth, order, order, square.dtype)
        with self._recorder.operation("mult1", place[0], flops=flops, block=place[1]):
            rank_k(-1.0, left, square)

    def factor(self, chunk: Chunk) -> None:
        """Factor the trapezoid of a chunk; clear what is above it."""
        top = chunk.place.first - chunk.place.top
        factor_panel(chunk.array[top:], chunk.place.first, chunk.slab.number, self._recorder)
        for column in range(chunk.place.width):
            chunk.array[: top + column, column] = 0


def _update(trapezoid: NDArray[Any], left: NDArray[Any], slab: int, recorder: Recorder) -> None:
    """Subtract L·L^H from a trapezoid; L has the rows of the trapezoid."""
    rows, width = trapezoid.shape
    flops = _flops(left.shape[1], width, rows, trapezoid.dtype)
    with recorder.operation("mult1", slab, flops=flops):
        rank_k(-1.0, left[:width], trapezoid[:width])
        gemm(-1.0, left[width:], left[:width], trapezoid[width:], trans_b="C")


def factor_panel(part: NDArray[Any], first: int, slab: int, recorder: Recorder) -> None:
    """Factor a trapezoid: recursively, so that most of the work is in large products.

    Its first column is column `first` of the matrix.
    """
    rows, width = part.shape
    if width > _LEAF:
        half = width // 2
        factor_panel(part[:, :half], first, slab, recorder)
        _update(part[half:, half:], part[half:, :half], slab, recorder)
        factor_panel(part[half:, half:], first + half, slab, recorder)
        return
    with recorder.operation("mult1", slab, flops=_flops(0, width, rows, part.dtype)):
        order = potrf(part[:width])
        if order:
            raise SingularMatrixError(
                f"a is not positive definite: its leading minor of order {first + order} is not",
                order=first + order,
            )
        trsm(part[:width], part[width:], side="R", trans="C")
