"""How a tile is cut for its way through staging: whole stored rows, as many as a piece takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.pipeline.plan import Rect

if TYPE_CHECKING:
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


def pieces(rect: Rect, *, trans: bool, itemsize: int, most: int) -> list[Rect]:
    """Cut a tile along its stored rows into pieces of at most `most` bytes.

    A piece holds at least one stored row. Rectangles are in op-space; `trans` says that the
    tile is stored as its transpose.
    """
    stored_rows, stored_cols = (rect.cols, rect.rows) if trans else (rect.rows, rect.cols)
    step = max(1, most // max(1, stored_cols * itemsize))
    cuts = range(0, stored_rows, step)
    if trans:
        return [
            Rect(rect.row, rect.col + cut, rect.rows, min(step, rect.cols - cut)) for cut in cuts
        ]
    return [Rect(rect.row + cut, rect.col, min(step, rect.rows - cut), rect.cols) for cut in cuts]
