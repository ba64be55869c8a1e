"""The pieces of a result: finished rectangles as a journal records them, and what is on disk."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.durable.fingerprint import SAMPLE, checksum_of_start, stored_checksum
from hdgemm.pipeline.tiles import Rect

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hdgemm.matrices.base import Matrix

#: Most places whose old content is sampled; they are spread evenly over a matrix.
_SAMPLES: Final = 4096


class Entry(NamedTuple):
    """Pieces that were recorded together, with their checksums: all are durable, or none is.

    `notes` are plain values of whoever computed them, `pass_number` the pass over the result.
    """

    pieces: Mapping[Rect, int]
    notes: Mapping[str, Any] = {}
    pass_number: int = 0

    def to_record(self) -> dict[str, Any]:
        """Return the record of a journal: runs of neighbouring pieces of equal extents."""
        record: dict[str, Any] = {"done": _runs(self.pieces)}
        if self.notes:
            record["notes"] = self.notes
        return record | ({"pass": self.pass_number} if self.pass_number else {})

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Entry:
        """Return the entry of such a record."""
        pieces = {rect: crc for run in record["done"] for rect, crc in _pieces(*run)}
        return cls(pieces, record.get("notes", {}), record.get("pass", 0))


class FinishedPieces:
    """What a run has finished: the entries of each of its passes, in their order.

    The entries of a later pass take the place of the first entries of the pass before it.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._passes: defaultdict[int, list[Entry]] = defaultdict(list)
        for record in records:
            if "done" in record:
                self.add(Entry.of(record))
            elif "undone" in record:
                self.undo(Rect(*rect) for rect in record["undone"])

    def __bool__(self) -> bool:
        return any(self._passes.values())

    def entries(self, pass_number: int = 0) -> Sequence[Entry]:
        """Return the entries of a pass."""
        return self._passes[pass_number]

    @property
    def overwritten(self) -> bool:
        """Whether a later pass has replaced pieces of an earlier one."""
        return any(entries for number, entries in self._passes.items() if number)

    def add(self, entry: Entry) -> None:
        """Add an entry to its pass."""
        self._passes[entry.pass_number].append(entry)

    def undo(self, rects: Iterable[Rect]) -> None:
        """Forget pieces; an entry that loses all its pieces is forgotten."""
        gone = set(rects)
        for number, entries in self._passes.items():
            left = []
            for entry in entries:
                pieces = {rect: crc for rect, crc in entry.pieces.items() if rect not in gone}
                if pieces or not entry.pieces:
                    left.append(entry._replace(pieces=pieces))
            self._passes[number] = left

    def standing(self) -> dict[Rect, int]:
        """Return the pieces that are in the result now, with their checksums."""
        return {
            rect: crc
            for number in sorted(self._passes)
            for entry in self._passes[number][len(self._passes.get(number + 1, ())) :]
            for rect, crc in entry.pieces.items()
        }


def _runs(pieces: Mapping[Rect, int]) -> list[list[Any]]:
    """Return runs ``[row, col, rows, cols, height, width, checksums]``: rectangles that are cut
    into pieces of this height and width, the last of which may be smaller.
    """
    runs: list[list[Any]] = []
    for rect, crc in sorted(pieces.items(), key=lambda item: (item[0].col, item[0].row)):
        if runs and _extend(runs[-1], rect):
            runs[-1][6].append(crc)
        else:
            runs.append([*rect, rect.rows, rect.cols, [crc]])
    return runs


def _extend(run: list[Any], rect: Rect) -> bool:
    """Add a piece below or right of a run to its extents; return whether it continues the run."""
    row, col, rows, cols, height, width, _ = run
    below = rect[:2] == (row + rows, col) and rect.rows <= height and rect.cols == cols == width
    right = rect[:2] == (row, col + cols) and rect.cols <= width and rect.rows == rows == height
    if below and not rows % height:
        run[2] += rect.rows
    elif right and not cols % width:
        run[3] += rect.cols
    else:
        return False
    return True


def _pieces(
    row: int, col: int, rows: int, cols: int, height: int, width: int, checksums: Sequence[int]
) -> Iterator[tuple[Rect, int]]:
    rects = (
        Rect(top, left, min(height, row + rows - top), min(width, col + cols - left))
        for top in range(row, row + max(1, rows), max(1, height))
        for left in range(col, col + max(1, cols), max(1, width))
    )
    return zip(rects, checksums, strict=True)


def damaged(matrix: Matrix, pieces: Mapping[Rect, int]) -> list[Rect]:
    """Read all pieces; return those whose checksum is not the recorded one."""
    # In the order of the file, so that a disk reads on and on.
    return [rect for rect in sorted(pieces) if stored_checksum(matrix, rect) != pieces[rect]]


def overlap(x: Rect, y: Rect) -> bool:
    """Say whether two rectangles have an element in common."""
    rows = x.row < y.row + y.rows and y.row < x.row + x.rows
    return rows and x.col < y.col + y.cols and y.col < x.col + x.cols


def sample(matrix: Matrix, rects: Sequence[Rect]) -> list[list[int]]:
    """Return ``[row, col, cols, crc]`` of the first elements of rectangles spread over a matrix."""
    step = max(1, -(-len(rects) // _SAMPLES))
    return [
        [rect.row, rect.col, min(rect.cols, SAMPLE), checksum_of_start(matrix, rect)]
        for rect in rects[::step]
    ]


def changed_samples(
    matrix: Matrix, samples: Iterable[Sequence[int]], finished: Collection[Rect] = ()
) -> list[Rect]:
    """Return the places outside the finished pieces that are not as they were when sampled."""
    row, col, rows, cols = np.array([*finished], np.int64).reshape(-1, 4).T
    found = []
    for top, left, width, crc in samples:
        written = (row <= top) & (top < row + rows) & (col < left + width) & (left < col + cols)
        place = Rect(top, left, 1, width)
        if not written.any() and checksum_of_start(matrix, place) != crc:
            found.append(place)
    return found
