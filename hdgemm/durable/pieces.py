"""The pieces in which a plan's C is stored, and what is known of them on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.durable.fingerprint import SAMPLE, checksum_of_start, stored_checksum
from hdgemm.durable.journal import redo_path
from hdgemm.durable.redo_log import RedoLog
from hdgemm.pipeline.plan import Rect
from hdgemm.pipeline.slots import pieces_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from hdgemm.matrices.base import Matrix
    from hdgemm.pipeline.plan import Plan

#: Most slabs whose old content is sampled; they are spread evenly over C.
_SAMPLES: Final = 4096
#: Rows and columns of the sampled grid at most.
_GRID: Final = 64


def slabs_of(plan: Plan) -> list[list[Rect]]:
    """Return for each work unit the rectangles in which store2 writes it."""
    return [pieces_of(plan, "C", unit.rect) for unit in plan.units]


def units_done(slabs: Sequence[Sequence[Rect]], done: Mapping[Rect, int]) -> set[int]:
    """Return the numbers of the work units all of whose slabs are done."""
    return {unit for unit, parts in enumerate(slabs) if all(part in done for part in parts)}


def damaged(matrix: Matrix, done: Mapping[Rect, int]) -> list[Rect]:
    """Read every slab that is done; return those whose checksum is not the recorded one."""
    # In the order of the file, so that a disk reads on and on.
    return [rect for rect in sorted(done) if stored_checksum(matrix, rect) != done[rect]]


def redo_size(plans: Sequence[Plan]) -> tuple[int, int]:
    """Return bytes and count of a redo log's slots: the pieces of one tile of each plan and one.

    One plan's pieces are known; of several devices that draw, any part of a tile may be one.
    """
    if len(plans) == 1:
        slabs = slabs_of(plans[0])
        most = max(slab.area for parts in slabs for slab in parts)
        return most * plans[0].problem.c.itemsize, 1 + max(map(len, slabs))
    most = max(plan.tile[0] * plan.tile[1] * plan.problem.c.itemsize for plan in plans)
    return most, 1 + sum(_pieces_of_a_tile(plan) for plan in plans)


def _pieces_of_a_tile(plan: Plan) -> int:
    rows, cols = (
        min(size, most)
        for size, most in zip(plan.tile[:2], (plan.problem.m, plan.problem.n), strict=True)
    )
    return len(pieces_of(plan, "C", Rect(0, 0, rows, cols)))


def redo_log(journal: Path, size: tuple[int, int], run: str, *, create: bool = False) -> RedoLog:
    """Open, or create, a redo log with slots of this size and count."""
    make = RedoLog.create if create else RedoLog
    return make(redo_path(journal), run, *size)


def sample_places(plan: Plan, *, shared: bool) -> list[Rect]:
    """Return the places of C whose old content is sampled: pieces, or a grid where tiles vary."""
    if not shared:
        return [part for parts in slabs_of(plan) for part in parts]
    m, n = plan.problem.m, plan.problem.n
    down, across = max(1, -(-m // _GRID)), max(SAMPLE, -(-n // _GRID))
    return [
        Rect(row, col, 1, min(SAMPLE, n - col))
        for row in range(0, m, down)
        for col in range(0, n, across)
    ]


def untouched(places: Iterable[Rect], done: Collection[Rect], *, shared: bool) -> list[Rect]:
    """Return the places that no finished piece overlaps; where tiles are fixed, pieces do not."""
    if not shared:
        return [place for place in places if place not in done]
    return [place for place in places if not any(overlap(place, rect) for rect in done)]


def apply(redo: RedoLog, matrix: Matrix) -> dict[Rect, int]:
    """Write to C what the log keeps, durably; return those slabs with their checksums."""
    applied = {}
    for kept in redo.kept():
        data = redo.load(kept, matrix.dtype).reshape(kept.rect.rows, kept.rect.cols)
        matrix.write(kept.rect.row, kept.rect.col, data)
        applied[kept.rect] = kept.crc
    if applied:
        matrix.flush()
    return applied


def overlap(x: Rect, y: Rect) -> bool:
    """Say whether two rectangles have an element in common."""
    rows = x.row < y.row + y.rows and y.row < x.row + x.rows
    return rows and x.col < y.col + y.cols and y.col < x.col + x.cols


def sample(matrix: Matrix, rects: Sequence[Rect]) -> list[list[int]]:
    """Return ``[row, col, crc]`` of the first elements of pieces spread over C, as they are now."""
    step = -(-len(rects) // _SAMPLES)
    return [[rect.row, rect.col, checksum_of_start(matrix, rect)] for rect in rects[::step]]


def begins_otherwise(
    matrix: Matrix, samples: Iterable[Sequence[int]], untouched: Iterable[Rect]
) -> list[Rect]:
    """Return the slabs among `untouched` that no longer begin as they did when sampled."""
    known = {(row, col): crc for row, col, crc in samples}
    return [
        rect
        for rect in untouched
        if (crc := known.get((rect.row, rect.col))) is not None
        and checksum_of_start(matrix, rect) != crc
    ]
