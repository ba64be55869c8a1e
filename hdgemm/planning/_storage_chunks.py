"""Operands stored in chunks: extents that end where chunks end, and the cost of other extents.

A compressed chunk is decoded as a whole, however few of its elements are used, and short rows of
any other chunk are read with the gaps between them. So the extents of tiles are multiples of a
chunk's, or equal parts of it where memory is too small for whole chunks, and the price of a shape
counts the elements of all chunks, or of all rows of chunks, that its tiles touch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

from hdgemm.machine.rates import REQUEST_BYTES
from hdgemm.matrices.filematrix import GAP
from hdgemm.planning.byte_counts import ceil_div, op_extents, round_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.pipeline.plan import Operand, OperandSpec, Problem
    from hdgemm.pipeline.tiles import Rect
    from hdgemm.planning.byte_counts import Count

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


def sides_moved_whole(problem: Problem, operand: Operand) -> list[tuple[int, int]]:
    """Return the sides of a chunk of which a part is not moved without the rest: 0 for rows and 1
    for columns, in op-space, and the extent of the chunk.
    """
    spec = problem.spec(operand)
    chunk = op_chunk(spec)
    if chunk is None:
        return []
    if spec.encoded:
        return list(enumerate(chunk))
    if operand == "C" or spec.place != "file" or _has_long_rows(spec):
        return []
    columns = 0 if spec.trans else 1
    return [(columns, chunk[columns])]


def _has_long_rows(spec: OperandSpec) -> bool:
    """Return whether a part of a chunk's columns is read row by row, without the gaps."""
    return spec.chunk is not None and not spec.encoded and spec.chunk[1] * spec.itemsize > GAP


def moved_area(problem: Problem, operand: Operand, rect: Rect) -> int:
    """Return the elements that are read, decoded or encoded for one tile."""
    whole, origins, area = op_extents(problem)[operand], op_origin(problem.spec(operand)), rect.area
    for side, step in sides_moved_whole(problem, operand):
        first, extent = ((rect.row, rect.rows), (rect.col, rect.cols))[side]
        end, origin = whole[side], origins[side]
        begin, until = first + origin, first + origin + extent
        area = area // extent * (min(end + origin, -(-until // step) * step) - begin // step * step)
    return area


def file_requests(spec: OperandSpec, rows: Count, cols: Count, whole: Count) -> Count:
    """Return the requests that a file needs for a rectangle, rows and columns as stored.

    Without chunks, rows of all `whole` columns are contiguous in the file. In chunks, the rows of
    each chunk are.
    """
    if spec.chunk is None:
        together = ceil_div(rows * cols * spec.itemsize, REQUEST_BYTES)
        return rows + (together - rows) * (cols == whole)
    high, wide = spec.chunk
    together = ceil_div(rows, high) * ceil_div(high * wide * spec.itemsize, REQUEST_BYTES)
    apart = (cols % wide > 0) * _has_long_rows(spec)
    return ceil_div(cols, wide) * (together + (rows - together) * apart)
