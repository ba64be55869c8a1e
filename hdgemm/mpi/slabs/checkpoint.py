"""Durable factorisations by slabs over MPI: rank 0 keeps the journal, all ranks store the pieces.

A slab is stored by strips of whole columns, one of each rank in a turn. All of its strips are
recorded together, with its pivots, when they are durable: an interrupted run loses one slab. The
last pass of LU applies the interchanges of later panels to the rows of L: it overwrites the strips
turn by turn, with a slot of the redo log for each rank.
"""

from __future__ import annotations

import base64
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdgemm.cluster.references import Reference
from hdgemm.durable.checkpoint import Checkpoint
from hdgemm.durable.earlier_run import BEGIN_AGAIN, EarlierRun
from hdgemm.durable.fingerprint import as_stored, checksum
from hdgemm.durable.identity import Identity
from hdgemm.durable.pieces import Entry
from hdgemm.durable.place import ResultPlace
from hdgemm.durable.redo_log import RedoLog
from hdgemm.errors import InputError
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.mpi._redistribution import Place, gather
from hdgemm.mpi._results import open_made
from hdgemm.mpi._strips import Rectangle, Strips
from hdgemm.mpi.processes import together
from hdgemm.mpi.slabs.plan import BySlabs
from hdgemm.pipeline.tiles import Rect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix, Operand
    from hdgemm.matrices.location import Location
    from hdgemm.mpi._part import Part
    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.variant import Variant


class SlabCall(NamedTuple):
    """What identifies a run: its function, A, the place of the factors, grid, blocks, arguments.

    With `flipped`, the file has the transpose of the factor that is computed. Its columns lie
    together in either file: one is column-major, the other row-major.
    """

    routine: str
    a: StoredMatrix
    place: Location
    dtype: np.dtype[Any]
    variant: Variant
    arguments: Mapping[str, object]
    flipped: bool = False
    restart: bool = False


def by_slabs(world: Communicator, place: Location) -> BySlabs:
    """Say on all ranks when to factor by slabs: always where an interrupted run has done so."""
    found = BySlabs.WHERE_LARGER
    with together(world):
        if world.rank == 0:
            journal = ResultPlace.aside(place, (1, 1), np.dtype("f8")).journal()
            earlier = EarlierRun.at(journal)
            if earlier is not None and _is_plan(earlier.plan):
                found = BySlabs.ALWAYS
    return BySlabs(world.collect(found)[0])


def _is_plan(plan: Any) -> bool:
    return isinstance(plan, dict) and {"width", "strip"} <= plan.keys()


class SlabCheckpoint(Checkpoint):
    """The journal of one run, and the file of its factors; on rank 0 alone."""

    def __init__(self, call: SlabCall) -> None:
        order = "C" if call.flipped else "F"
        if call.flipped and call.place.kind.order(call.place, order) != order:
            raise InputError(
                f"{call.place} is column-major, and slabs of U are whole rows, each of which one "
                "rank stores: leave out :F, give out as a .npy file, or give host_memory for the "
                "whole matrix",
                path=str(call.place.path),
            )
        place = ResultPlace.aside(call.place, call.a.shape, call.dtype, order)
        dealt = {"grid": list(call.variant.grid), "nb": call.variant.nb}
        arguments = {**dealt, **call.arguments}
        identity = Identity.of(f"mpi.{call.routine}", arguments, {"A": call.a.operand}, place)
        super().__init__(identity, place, checkpoint=True, restart=call.restart)
        if self.earlier is not None and not _is_plan(self.earlier.plan):
            self.close()
            raise InputError(f"{self.path} is the journal of a run without slabs; {BEGIN_AGAIN}")

    def begin(self, plan: Mapping[str, int], redo: tuple[int, int]) -> tuple[int, int]:
        """Begin, or go on; return bytes and count of the slots of the redo log."""
        self._begin(dict(plan), redo=redo)
        return redo if self.earlier is None else self.earlier.redo

    @property
    def plan(self) -> Mapping[str, int] | None:
        """The plan of the earlier run; None for the first one."""
        return None if self.earlier is None else self.earlier.plan

    def _lost(self, rects: list[Rect]) -> list[Rect]:
        """Return the pieces of the slabs from the first changed one on."""
        changed, entries = set(rects), self.pieces.entries()
        slabs = [entry.notes["slab"] for entry in entries if changed & entry.pieces.keys()]
        first = min(slabs, default=len(entries))
        return [rect for each in entries if each.notes["slab"] >= first for rect in each.pieces]

    def state(self) -> _State:
        """Return what all ranks have to know."""
        entries = self.pieces.entries()
        pivots = {}
        for entry in entries:
            for first, rows in entry.notes.get("pivots", {}).items():
                pivots[int(first)] = np.frombuffer(base64.b64decode(rows), np.int64)
        notes = [entry.notes for entry in entries]
        return _State(
            self.finished,
            dict(self.plan or {}),
            notes[-1]["slab"] + 1 if notes else 0,
            pivots,
            next((note["zero"] for note in notes if note["zero"]), 0),
            [sorted(entry.pieces) for entry in entries],
            len(self.pieces.entries(1)),
        )

    def add(self, turns: Sequence[Sequence[tuple[Rect, int]]], notes: Mapping[str, Any]) -> None:
        """Record a slab, whose strips are durable."""
        shown = {key: notes[key] for key in ("slab", "zero")}
        entries = [Entry(dict(turn), notes if at == 0 else shown) for at, turn in enumerate(turns)]
        self.record(entries)

    def replace(self, pieces: Sequence[tuple[Rect, int]]) -> None:
        """Record strips of the last pass, which are durable in the redo log."""
        self.record([Entry(dict(pieces), {}, 1)])


class _State(NamedTuple):
    """Finished parts of an earlier run: its slabs, pivots, strips, and turns of the last pass."""

    finished: bool
    plan: dict[str, int]
    slabs: int
    pivots: dict[int, NDArray[np.int64]]
    zero: int
    turns: list[list[Rect]]
    replaced: int

    @property
    def whole_pivots(self) -> NDArray[np.int64]:
        """The interchanges of all panels, one after the other."""
        return np.concatenate([self.pivots[first] for first in sorted(self.pivots)])


@dataclass
class DurableFactors:
    """The file of the factors, as each rank has opened it, and what of it is finished.

    Parameters
    ----------
    world
        The ranks.
    checkpoint
        On rank 0; None on the others.
    operand
        The file, opened for writing.
    state
        What is finished.
    flipped
        The file has the transpose of the factor.
    redo
        The redo log, once the run has begun.
    """

    world: Communicator
    checkpoint: SlabCheckpoint | None
    operand: Operand
    state: _State
    flipped: bool = False
    redo: RedoLog | None = None

    @classmethod
    def open(cls, world: Communicator, call: SlabCall, stack: ExitStack) -> DurableFactors:
        """Open the journal on rank 0 and the file on all; `stack` closes them.

        Raises
        ------
        InputError
            On all ranks, where the journal belongs to another command, or another run holds it.
        """
        checkpoint = None
        with together(world):
            if world.rank == 0:
                checkpoint = stack.enter_context(SlabCheckpoint(call))
        found = None
        with together(world):
            if checkpoint is not None:
                found = Reference.of(checkpoint.output, "out"), checkpoint.state()
        reference, state = world.collect(found)[0]
        with together(world):
            if checkpoint is not None:
                operand = checkpoint.output
            else:
                operand = open_made(reference, stack, writable=not state.finished)
        return cls(world, checkpoint, operand, state, call.flipped)

    @property
    def stored(self) -> StoredMatrix:
        """The file."""
        return StoredMatrix(self.operand, writable=not self.state.finished)

    @property
    def factor(self) -> StoredMatrix:
        """The factor that is computed, whose columns are a slab's."""
        return self.stored.T if self.flipped else self.stored

    def begin(self, plan: Mapping[str, int], strip: int, stack: ExitStack) -> None:
        """Record the plan of a new run; open its redo log on all ranks.

        Parameters
        ----------
        strip
            Bytes of the largest strip; 0 where nothing will be overwritten.
        stack
            Closes the log.
        """
        found: tuple[Path, str, tuple[int, int]] | None = None
        with together(self.world):
            if (journal := self.checkpoint) is not None:
                redo = journal.begin(plan, (strip, self.world.size if strip else 0))
                found = journal.path, journal.run, redo
        path, run, (size, count) = self.world.collect(found)[0]
        with together(self.world):
            if count:
                self.redo = stack.enter_context(closing(RedoLog(path, run, size, count)))

    def store(
        self,
        part: Part,
        number: int,
        first: int,
        pivots: Mapping[int, NDArray[np.int64]],
        zero: int,
    ) -> None:
        """Store a slab, durably, from column `first` on, and record it."""
        matrix = self.operand.matrix
        own: list[tuple[Rect, int]] = []

        def write(strip: Rectangle, array: NDArray[Any]) -> None:
            tile = as_stored(array, matrix.dtype)
            rect = Rect(first + strip.row, strip.col, strip.rows, strip.cols)
            matrix.write(rect.row, rect.col, tile)
            own.append((rect, checksum(tile)))

        shape = part.cols.extent, part.rows.extent
        strips = Strips.of(shape, part.a.itemsize, self.world.size, whole=True)
        self._all_write(strips, part, write, matrix)
        turns = [
            [each for each in turn if each is not None]
            for turn in zip_longest(*self.world.collect(own))
        ]
        encoded = {
            str(at): base64.b64encode(rows.tobytes()).decode() for at, rows in pivots.items()
        }
        with together(self.world):
            if self.checkpoint is not None:
                self.checkpoint.add(turns, {"slab": number, "zero": zero, "pivots": encoded})
        self.state.turns.extend([rect for rect, _ in turn] for turn in turns)
        self.state.pivots.update(pivots)
        self.state = self.state._replace(slabs=number + 1, zero=zero)

    def _all_write(
        self,
        strips: Strips,
        part: Part,
        write: Callable[[Rectangle, NDArray[Any]], None],
        matrix: Matrix,
    ) -> None:
        """Write strips on all ranks; return when they are durable. Raises on all ranks."""
        failed: list[Exception] = []

        def attempt(strip: Rectangle, array: NDArray[Any]) -> None:
            try:
                if not failed:
                    write(strip, array)
            except Exception as error:  # noqa: BLE001 - raised by all ranks, below
                failed.append(error)

        gather(strips, Place(part, trans=True), attempt)
        with together(self.world):
            if failed:
                raise failed[0]
            matrix.flush()

    def replace(self, change: Callable[[Rectangle, NDArray[Any]], None]) -> None:
        """Overwrite all strips by what `change` makes of them: the last pass."""
        for turn in self.state.turns[self.state.replaced :]:
            self._replace_turn(turn, change)

    def _replace_turn(
        self, turn: Sequence[Rect], change: Callable[[Rectangle, NDArray[Any]], None]
    ) -> None:
        world, matrix = self.world, self.operand.matrix
        own = turn[world.rank] if world.rank < len(turn) else None
        tile, kept = None, None
        with together(world):
            if own is not None and self.redo is not None:
                array = np.empty((own.rows, own.cols), matrix.dtype.newbyteorder("="))
                matrix.read(own.row, own.col, array)
                change(Rectangle(*own), array)
                tile = as_stored(array, matrix.dtype)
                kept = own, self.redo.keep(world.rank, own, tile)
        everyone = [each for each in world.collect(kept) if each is not None]
        with together(world):
            if self.checkpoint is not None:
                self.checkpoint.replace(everyone)
        with together(world):
            if own is not None and tile is not None:
                matrix.write(own.row, own.col, tile)
                matrix.flush()
