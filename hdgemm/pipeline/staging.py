"""How a tile is cut for its way through staging: whole stored rows, as many as a piece takes.

Of a chunked operand a piece takes whole chunks: cut within one, it would be decoded twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.pipeline.plan import Rect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.pipeline.plan import Operand, Plan

#: Where staging is device memory a piece needs no memory of its own; this keeps one operation
#: short enough to cancel, and long enough for several large requests.
UNIFIED_PIECE_BYTES: Final = 32 << 20

#: Staging and slots that take direct reads start at the file's own phase within a page.
PHASE_BYTES: Final = 4096


def piece_bytes(plan: Plan, operand: Operand) -> int:
    """Return the most bytes of one tile that one load1, load2, store1 or store2 moves."""
    ring = plan.down if operand == "C" else plan.up
    if ring.count == 0:
        return UNIFIED_PIECE_BYTES
    return ring.nbytes - (PHASE_BYTES if plan.problem.spec(operand).place == "file" else 0)


def pieces_of(plan: Plan, operand: Operand, rect: Rect) -> list[Rect]:
    """Cut one tile of a plan into the pieces in which the stages move it."""
    spec = plan.problem.spec(operand)
    return pieces(
        rect, trans=spec.trans, itemsize=plan.problem.itemsize, most=piece_bytes(plan, operand),
        chunk=spec.chunk, origin=spec.chunk_origin,
    )  # fmt: skip


def pieces(
    rect: Rect,
    *,
    trans: bool,
    itemsize: int,
    most: int,
    chunk: tuple[int, int] | None = None,
    origin: tuple[int, int] = (0, 0),
) -> list[Rect]:
    """Cut a tile along its stored rows into pieces of at most `most` bytes.

    A piece holds at least one stored row, of the tile or of a chunk. Rectangles are in op-space;
    `trans` says that the tile is stored as its transpose. Pieces of chunked operands end where
    chunks (stored rows and columns) end; one that holds less than a chunk is followed by the rest
    of that chunk. `origin` is the stored row and column of the operand's first element in its chunk.
    """
    stored = _turned(rect) if trans else rect
    if chunk is None or stored.rows * stored.cols * itemsize <= most:
        step = max(1, most // max(1, stored.cols * itemsize))
        found = list(_bands(stored, step, step, start=stored.row))
    else:
        row, col = origin
        shifted = stored._replace(row=stored.row + row, col=stored.col + col)
        found = [
            part._replace(row=part.row - row, col=part.col - col)
            for part in _whole_chunks(shifted, itemsize, most, *chunk)
        ]
    return [_turned(part) for part in found] if trans else found


def _whole_chunks(tile: Rect, itemsize: int, most: int, high: int, wide: int) -> Iterator[Rect]:
    if together := most // (min(high, tile.rows) * tile.cols * itemsize):
        yield from _bands(tile, high * together, high)
        return
    together = max(1, most // (min(high, tile.rows) * min(wide, tile.cols) * itemsize))
    for band in _bands(tile, high, high):
        for part in _bands(_turned(band), wide * together, wide):
            piece = _turned(part)
            step = max(1, most // (piece.cols * itemsize))
            yield from _bands(piece, step, step, start=piece.row)


def _bands(tile: Rect, step: int, grid: int, start: int | None = None) -> Iterator[Rect]:
    """Cut along the rows every `step`, from `start`, or else from the grid line above the tile."""
    first, last = tile.row, tile.row + tile.rows
    until = (first // grid * grid if start is None else start) + step
    while first < last:
        yield tile._replace(row=first, rows=min(until, last) - first)
        first, until = until, until + step


def _turned(rect: Rect) -> Rect:
    return Rect(rect.col, rect.row, rect.cols, rect.rows)
