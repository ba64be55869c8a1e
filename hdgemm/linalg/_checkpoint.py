"""Durable runs by slabs: the same command goes on after the last slab that is recorded.

A slab is stored in pieces, in the order of its pass. Its notes are small arrays that the rest of
the run needs: pivots of LU, T of QR.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hdgemm.durable.checkpoint import Checkpoint
from hdgemm.durable.earlier_run import EarlierRun, refuse
from hdgemm.durable.identity import Identity
from hdgemm.linalg.planning.search import PIECE_BYTES
from hdgemm.linalg.planning.slab import SlabPlan
from hdgemm.linalg.planning.solve import SolvePlan
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.pipeline.tiles import Rect
from hdgemm.run.members import update_devices
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.durable.place import Checkpointing, ResultPlace
    from hdgemm.linalg.planning.slab import Columns
    from hdgemm.matrices.base import Operand
    from hdgemm.options import Options

    #: Small arrays that belong to a slab.
    Notes = Mapping[str, NDArray[Any]]

#: Plans of durable runs: factorisations, and solves.
AnyPlan: TypeAlias = SlabPlan | SolvePlan


@dataclass(frozen=True, slots=True)
class Command:
    """The call of a routine as a journal identifies it, and how the run is recorded.

    Parameters
    ----------
    routine, arguments
        Its name, and arguments that decide the result.
    checkpoint
        False for none; True for a journal beside the output, or the journal's path.
    restart
        Discard what an earlier run left.
    transposed
        The slabs are rows of the output: the transpose is factored.
    triangle
        Only the slabs' own rows are stored: a new file has no disk space for the others.
    matrices
        Further inputs by name, beside the matrix that is cut into slabs.
    """

    routine: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Checkpointing = False
    restart: bool = False
    transposed: bool = False
    triangle: bool = False
    matrices: Mapping[str, StoredMatrix] = field(default_factory=dict)

    def identity(self, source: StoredMatrix, place: ResultPlace) -> Identity:
        """Return what must be the same when the run goes on; `source` is cut into slabs."""
        inputs = {name: matrix.operand for name, matrix in self.matrices.items()}
        inputs |= {} if place.updates else {"A": source.operand}
        return Identity.of(self.routine, self.arguments, inputs, place)


class SlabCheckpoint(Checkpoint):
    """A durable run by slabs.

    Parameters
    ----------
    command
        What is computed.
    source
        A.
    place
        Where the result goes; `updates` where that is A itself.

    Attributes
    ----------
    stored
        The output, opened for writing.
    plan
        The slabs; None before the first run has begun.
    """

    def __init__(self, command: Command, source: StoredMatrix, place: ResultPlace) -> None:
        self._command, self._piece_bytes = command, PIECE_BYTES
        self.plan: AnyPlan | None = None
        identity = command.identity(source, place)
        super().__init__(identity, place, command.checkpoint, restart=command.restart)
        self.stored = StoredMatrix(self.output, writable=not self.finished)
        self._parts = 0 if self.plan is None else len(self.plan.slabs)
        self._kept = self.done(0)

    def _open(self) -> None:
        if self.earlier is not None:
            self.plan = plan_of(self.path, self.earlier)
            self._piece_bytes = self.earlier.plan["piece_bytes"]
        super()._open()

    def _lost(self, rects: list[Rect]) -> list[Rect]:
        """Return the pieces of the slabs from the first changed one on."""
        changed, entries = set(rects), self.pieces.entries()
        first = (number for number, each in enumerate(entries) if changed & each.pieces.keys())
        return [rect for entry in entries[next(first, len(entries)) :] for rect in entry.pieces]

    def begin(self, plan: AnyPlan, options: Options) -> None:
        """Prepare journal and redo log for a plan: the earlier run's, if there is one.

        Raises
        ------
        InputError
            When the options exclude the earlier run's plan.
        """
        if self.plan is not None:
            refuse(self.path, _excluded_by(self.plan, options))
        plan = self.plan = self.plan or plan
        self._parts = len(plan.slabs)
        places = [*(plan.slabs if self.place.updates else ()), *plan.interchanged]
        slabs = [self._cut(place) for place in places]
        most = max((rect.area for rects in slabs for rect in rects), default=0)
        redo = most * self.output.matrix.dtype.itemsize, max(map(len, slabs), default=0)
        own = [rect for place in plan.slabs for rect in self._cut(place)]
        self._begin({"slabs": plan.to_dict(), "piece_bytes": self._piece_bytes}, own, redo)

    def done(self, pass_number: int) -> int:
        """Return how many slabs of a pass are finished."""
        return len(self.pieces.entries(pass_number))

    def notes(self) -> list[Notes]:
        """Return what was recorded with each slab of the first pass."""
        return [
            {name: _decode(array) for name, array in entry.notes.items()}
            for entry in self.pieces.entries()
        ]

    def store(self, pass_number: int, place: Columns, array: NDArray[Any], notes: Notes) -> None:
        """Store the next slab of a pass durably, and record it."""
        trans = self._columns.trans

        def part(rect: Rect) -> NDArray[Any]:
            first, width = (rect.row, rect.rows) if trans else (rect.col, rect.cols)
            columns = array[:, first - place.first : first - place.first + width]
            return columns.T if trans else columns

        encoded = {name: _encode(array) for name, array in notes.items()}
        self._store(self._cut(place), part, encoded, pass_number)

    @property
    def _columns(self) -> Operand:
        """The matrix whose columns are the slabs: the output, or its transpose."""
        return self.output.transposed() if self._command.transposed else self.output

    def _cut(self, place: Columns) -> list[Rect]:
        return pieces_of(place, self._columns, self._piece_bytes)


def pieces_of(place: Columns, columns: Operand, most: int) -> list[Rect]:
    """Cut a slab, columns of a matrix, into pieces of at most `most` bytes, or of one column.

    They are rectangles of the matrix as it is stored, from left to right.
    """
    first, last, top = place
    rows = columns.shape[0] - top
    step = max(1, most // max(1, rows * columns.matrix.dtype.itemsize))
    spans = [(col, min(step, last - col)) for col in range(first, last, step)]
    if columns.trans:
        return [Rect(col, top, cols, rows) for col, cols in spans]
    return [Rect(top, col, rows, cols) for col, cols in spans]


def plan_of(path: Path, earlier: EarlierRun) -> AnyPlan:
    """Return the plan of an earlier run.

    Raises
    ------
    InputError
        When the journal is of a run of another kind.
    """
    if not isinstance(earlier.plan, dict) or "slabs" not in earlier.plan:
        raise earlier.of_other_kind(path)
    values = earlier.plan["slabs"]
    return (SolvePlan if values["kind"] == "solve" else SlabPlan).from_dict(values)


def recorded_plan(path: Path) -> AnyPlan | None:
    """Return the plan of the run of the journal at a path; None where there is none.

    Raises
    ------
    InputError
        When the journal is of a run of another kind.
    """
    earlier = EarlierRun.at(path)
    return None if earlier is None else plan_of(path, earlier)


def _excluded_by(plan: AnyPlan, options: Options) -> list[str]:
    """Say in words why options do not allow a plan."""
    limit, found = options.host_bytes, []
    if limit is not None and plan.host_bytes > limit:
        held, now_allowed = format_size(plan.host_bytes), format_size(limit)
        found.append(f"the plan holds {held}, allowed are now {now_allowed}")
    now = update_devices(options)
    if isinstance(plan, SlabPlan) and plan.slabs and plan.devices != now:
        then = ", ".join(plan.devices) or "the host"
        found.append(f"updates ran on {then}, not on {', '.join(now) or 'the host'}")
    width = max((slab.width for slab in plan.slabs), default=0)
    if options.tile is not None:
        columns = plan.p if isinstance(plan, SolvePlan) else plan.n
        asked = min(options.tile[1], columns), options.tile[2]
        if asked != (width, plan.block):
            found.append(f"slabs and blocks had {width} and {plan.block} columns, not {asked}")
    return found


def _encode(array: NDArray[Any]) -> list[str]:
    return [array.dtype.str, base64.b64encode(array.tobytes()).decode()]


def _decode(values: Sequence[str]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(values[1]), values[0])
