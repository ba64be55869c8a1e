"""The pieces in which a plan's C is stored, and what is known of them on disk."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.durable.checksums import stored_checksum
from hdgemm.durable.redo_log import RedoLog
from hdgemm.pipeline.staging import pieces_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from hdgemm.matrices.base import Matrix
    from hdgemm.pipeline.plan import Plan, Rect

#: Slabs whose old content is sampled, spread evenly, and the elements of each sample.
_SAMPLES: Final = 4096
_SAMPLE: Final = 512


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


def redo_path(journal: Path) -> Path:
    """Return the name of the redo log that goes with a journal."""
    return journal.with_name(journal.name + ".redo")


def redo_log(journal: Path, plan: Plan, run: str, *, create: bool = False) -> RedoLog:
    """Open, or create, a redo log for the slabs of one tile of a plan and one more."""
    slabs = slabs_of(plan)
    most = max(slab.rows * slab.cols for parts in slabs for slab in parts)
    make = RedoLog.create if create else RedoLog
    return make(redo_path(journal), run, most * plan.problem.c.itemsize, 1 + max(map(len, slabs)))


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


def sample(matrix: Matrix, slabs: Iterable[Sequence[Rect]]) -> list[list[int]]:
    """Return ``[row, col, crc]`` of the beginnings of slabs spread over C, as they are now."""
    rects = [part for parts in slabs for part in parts]
    step = -(-len(rects) // _SAMPLES)
    return [[rect.row, rect.col, _begins(matrix, rect)] for rect in rects[::step]]


def begins_otherwise(
    matrix: Matrix, samples: Iterable[Sequence[int]], untouched: Iterable[Rect]
) -> list[Rect]:
    """Return the slabs among `untouched` that no longer begin as they did when sampled."""
    known = {(row, col): crc for row, col, crc in samples}
    return [
        rect
        for rect in untouched
        if (crc := known.get((rect.row, rect.col))) is not None and _begins(matrix, rect) != crc
    ]


def _begins(matrix: Matrix, rect: Rect) -> int:
    row: np.ndarray[Any, Any] = np.empty(
        (1, min(rect.cols, _SAMPLE)), matrix.dtype.newbyteorder("=")
    )
    matrix.read(rect.row, rect.col, row)
    return zlib.crc32(row.view(np.uint8).data)
