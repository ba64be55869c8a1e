"""Operands stored in chunks: extents that end where chunks end, and the cost of other extents.

A compressed chunk is decoded as a whole, however few of its elements are used. So the extents of
tiles are multiples of a chunk's, or equal parts of it where memory is too small for whole chunks,
and the price of a shape counts the elements of all chunks that its tiles touch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

from hdgemm.planning.byte_counts import op_extents, round_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.pipeline.plan import Operand, OperandSpec, Problem
    from hdgemm.pipeline.tiles import Rect

Dimension = Literal["m", "n", "k"]

#: The operands that each dimension belongs to, as rows (0) or columns (1) in op-space. Where the
#: chunks of two operands have no common multiple of a useful size, the first operand counts:
#: inputs are read more often than C is written.
_SIDES: Final[dict[Dimension, tuple[tuple[Operand, int], ...]]] = {
    "m": (("A", 0), ("C", 0)),
    "n": (("B", 1), ("C", 1)),
    "k": (("A", 1), ("B", 0)),
}


def op_chunk(spec: OperandSpec) -> tuple[int, int] | None:
    """Return an operand's chunk in op-space, None where it has none."""
    return spec.chunk[::-1] if spec.chunk is not None and spec.trans else spec.chunk


def op_origin(spec: OperandSpec) -> tuple[int, int]:
    """Return the row and column in op-space of the first element within its chunk."""
    return spec.chunk_origin[::-1] if spec.trans else spec.chunk_origin


def chunk_along(problem: Problem, dimension: Dimension) -> int:
    """Return the extent at whose multiples a dimension is best cut, 1 where any cut will do.

    A chunk that spans the whole dimension has no boundary inside.
    """
    extent = {"m": problem.m, "n": problem.n, "k": problem.k}[dimension]
    found = [
        chunk[side]
        for operand, side in _SIDES[dimension]
        if (chunk := op_chunk(problem.spec(operand))) is not None and 1 < chunk[side] < extent
    ]
    if not found:
        return 1
    both = math.lcm(*found)
    # A common multiple far above both would cost more memory than reading some chunks twice.
    return both if both <= min(extent, 2 * max(found)) else found[0]


def aligned(size: int, chunk: int) -> int:
    """Return an extent near `size` that is a multiple of `chunk` or an equal part of it."""
    if chunk == 1:
        return size
    if size >= chunk:
        return int(round_up(size, chunk))
    parts = 1 << int(math.log2(chunk / size))
    while chunk % parts:
        parts //= 2
    return chunk // parts


def align_all(found: Sequence[int], chunk: int, extent: int) -> list[int]:
    """Return the aligned extents, each once, largest first."""
    return sorted({min(extent, aligned(size, chunk)) for size in found}, reverse=True)


def decoded_area(problem: Problem, operand: Operand, rect: Rect) -> int:
    """Return the elements of all chunks that one tile touches; its own where nothing is encoded."""
    spec = problem.spec(operand)
    chunk = op_chunk(spec)
    if chunk is None or not spec.encoded:
        return rect.area
    whole = op_extents(problem)[operand]
    area = 1
    for first, extent, step, end, origin in zip(
        (rect.row, rect.col), (rect.rows, rect.cols), chunk, whole, op_origin(spec), strict=True
    ):
        begin, until = first + origin, first + origin + extent
        area *= min(end + origin, -(-until // step) * step) - begin // step * step
    return area
