"""Finding out what of an earlier run's work still stands, and mending what can be mended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdgemm.durable.journal import redo_path
from hdgemm.durable.pieces import (
    apply,
    begins_otherwise,
    damaged,
    redo_log,
    sample_places,
    untouched,
)
from hdgemm.durable.previous_run import BEGIN_AGAIN, DamagedError, Earlier
from hdgemm.errors import InputError

if TYPE_CHECKING:
    from hdgemm.durable.destination import Destination
    from hdgemm.durable.journal import Journal
    from hdgemm.matrices.base import Matrix
    from hdgemm.pipeline.plan import Rect


def recover(
    journal: Journal, earlier: Earlier, matrix: Matrix, destination: Destination
) -> tuple[dict[Rect, int], list[Rect]]:
    """Check every recorded slab against C; complete a C that is updated from the redo log.

    Returns the slabs that stand, with their checksums, and those that must be computed again. A C
    that is updated in place and differs from what the journal says cannot be: `DamagedError`.
    """
    places = [] if earlier.plan is None else sample_places(earlier.plan, shared=earlier.shared)
    known = earlier.done.keys() if earlier.shared else set(places)
    done = {rect: crc for rect, crc in earlier.done.items() if rect in known}
    if destination.updates:
        _check_journal(journal)
        done |= _redo(journal, earlier, matrix)
    bad = damaged(matrix, done)
    if destination.updates:
        sampled = {(row, col) for row, col, _ in earlier.samples}
        places = [place for place in places if (place.row, place.col) in sampled]
        others = begins_otherwise(
            matrix, earlier.samples, untouched(places, done, shared=earlier.shared)
        )
        if bad or others:
            raise _damaged_error(
                matrix,
                (bad + others)[0],
                "after it was stored" if bad else "by something else than the run",
            )
    return {rect: crc for rect, crc in done.items() if rect not in bad}, bad


def check_restart(journal: Journal, destination: Destination) -> None:
    """Raise `InputError` rather than begin again on a C that is half updated."""
    if not destination.updates or destination.in_place is None or not journal.records:
        return
    earlier = Earlier.read(journal.path, journal.records)
    if earlier is None or earlier.finished is not None:
        return
    places = sample_places(earlier.device_plan, shared=earlier.shared)
    if begins_otherwise(destination.in_place.matrix, earlier.samples, places):
        raise InputError(
            f"{destination.path} is half updated by the run of {journal.path}: finish it with the "
            "same command, or restore the old C first"
        )


def _redo(journal: Journal, earlier: Earlier, matrix: Matrix) -> dict[Rect, int]:
    """Write to C what the redo log keeps, and record it."""
    if not redo_path(journal.path).exists():
        return {}
    log = redo_log(journal.path, earlier.redo, earlier.run)
    try:
        applied = apply(log, matrix)
    finally:
        log.close()
    journal.append([{"done": [*rect, crc]} for rect, crc in applied.items()])
    return applied


def _check_journal(journal: Journal) -> None:
    if journal.damaged:
        raise DamagedError(
            f"{journal.path} is damaged in lines {journal.damaged}: which tiles of C are updated "
            f"cannot be told; restore the old C, then {BEGIN_AGAIN}",
            lines=journal.damaged,
            path=str(journal.path),
        )


def _damaged_error(matrix: Matrix, rect: Rect, how: str) -> DamagedError:
    return DamagedError(
        f"{matrix.name} was changed {how}, in rows {rect.row} to {rect.row + rect.rows - 1}, "
        f"columns {rect.col} to {rect.col + rect.cols - 1}: its old values are gone, so it cannot "
        f"be updated again; restore the old C, then {BEGIN_AGAIN}",
        path=matrix.name,
        rect=tuple(rect),
    )
