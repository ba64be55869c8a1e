"""Whether the bytes of C on disk are still those that a durable run stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hdgemm.durable.earlier_run import EarlierRun
from hdgemm.durable.pieces import damaged
from hdgemm.durable.place import ResultPlace
from hdgemm.errors import InputError
from hdgemm.matrices.fingerprint import file_of, home_of
from hdgemm.matrices.location import parse_location
from hdgemm.matrices.operands import open_operand

if TYPE_CHECKING:
    import os

    from hdgemm.pipeline.tiles import Rect


@dataclass(frozen=True)
class Audit:
    """C against its journal: the number of stored pieces that were read, and those whose checksum
    is not the recorded one, in stored rows and columns.
    """

    journal: str
    pieces: int
    damaged: tuple[Rect, ...]

    @property
    def passed(self) -> bool:
        """No piece is damaged."""
        return not self.damaged

    def __str__(self) -> str:
        if self.passed:
            return f"all {self.pieces} stored pieces are as {self.journal} has them"
        places = ", ".join(
            f"rows {r.row} to {r.row + r.rows - 1}, columns {r.col} to {r.col + r.cols - 1}"
            for r in self.damaged[:5]
        )
        more = f" and {len(self.damaged) - 5} more" if len(self.damaged) > 5 else ""
        return (
            f"{len(self.damaged)} of {self.pieces} stored pieces differ from {self.journal}: "
            f"{places}{more}"
        )


def audit(c: str | os.PathLike[str], journal: str | os.PathLike[str] | None = None) -> Audit | None:
    """Read a matrix that a durable run wrote, and compare it with the checksums of its journal, by
    default the one beside it; None where it has no journal.

    Raises `InputError` when the journal is another matrix's, or of a run that has not begun.
    """
    operand = open_operand(c, what="c")
    where = parse_location(c)
    if journal is None and home_of(operand.matrix) is None:
        return None
    place = ResultPlace(where, operand.shape, operand.matrix.dtype)
    here = place.target()
    if file_of(operand.matrix) is not None:  # the run may have written into the existing file
        here = ResultPlace.of_existing(operand, updates=False).target() | here
    path = place.journal() if journal is None else Path(journal)
    if journal is None and not (path.exists() and path.stat().st_size):
        return None  # an empty one is the lock of a run whose journal is elsewhere
    earlier = EarlierRun.at(path)
    if earlier is None:
        raise InputError(f"{path} is no journal of a run that has begun")
    target = earlier.identity.target
    known = set(target) - {"name", "updates", "in_place"}
    if any(target[field] != here.get(field) for field in known):
        raise InputError(f"{path} is the journal of another matrix than {c}")
    pieces = earlier.pieces.standing()
    found = damaged(operand.matrix, pieces)
    return Audit(str(path), len(pieces), tuple(found))
