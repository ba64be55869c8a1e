"""A durable run that stores one matrix.

Order of what becomes durable:

1. the draft (its space, its name) and the redo log, before the journal's first record;
2. a piece of the result, before its record; or, where it overwrites what it was computed from, the
   piece in the redo log, before its record, before its first byte in the result;
3. all of the result and the note that it is about to be published, before the rename;
4. the rename, before the note that the run is finished.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from hdgemm.durable.earlier_run import BEGIN_AGAIN, DamagedError, EarlierRun
from hdgemm.durable.fingerprint import as_stored, checksum, differences, fingerprint
from hdgemm.durable.journal import redo_path
from hdgemm.durable.pieces import Entry, changed_samples, damaged, sample
from hdgemm.durable.redo_log import RedoLog
from hdgemm.durable.run import JournaledRun
from hdgemm.errors import InputError
from hdgemm.matrices.filelocks import wait_for_writers
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.pipeline.tiles import Rect
from hdgemm.report import Resumption

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from hdgemm.durable.fingerprint import Fingerprint
    from hdgemm.durable.identity import Identity
    from hdgemm.durable.place import Checkpointing, ResultPlace
    from hdgemm.matrices.base import Matrix, Operand
    from hdgemm.matrices.draft import Draft


class Checkpoint(JournaledRun):
    """A run with a journal and one result, which is published when it is complete.

    Takes the parameters of `JournaledRun`.

    Attributes
    ----------
    output
        The result as the run writes it.
    finished
        An earlier run has finished: there is nothing to do.
    damaged
        Pieces that an earlier run had finished and that have changed since.

    Raises
    ------
    InputError
        Also when what the earlier run left is gone.
    DamagedError
        When the result was changed, and cannot be computed again from what is there.
    """

    output: Operand

    def __init__(
        self,
        identity: Identity,
        place: ResultPlace,
        checkpoint: Checkpointing,
        *,
        restart: bool = False,
    ) -> None:
        self._draft: Draft[Any] | None = None
        self._redo: RedoLog | None = None
        self.finished = False
        self.damaged: list[Rect] = []
        #: Parts of the result in all, and those that an earlier run had finished.
        self._parts = self._kept = 0
        super().__init__(identity, place, checkpoint, restart=restart)

    def close(self) -> None:
        """Close the files; a draft without a record is removed."""
        with closing(self._journal):
            if self._redo is not None:
                self._redo.close()
            if self._draft is not None and not self._journal.empty:
                self._draft.matrix.close()
            elif self._draft is not None:
                self._draft.discard()
        self._draft = self._redo = None

    def discard(self) -> None:
        """Remove journal, draft, redo log and work files: the next run begins again."""
        if self._draft is not None:
            self._draft.discard()
            self._draft = None
        super().discard()

    def _check_restart(self) -> None:
        if not self.place.updates or self.place.in_place is None:
            return
        earlier = EarlierRun.read(self.path, self._journal.records)
        if earlier is None or earlier.result is not None:
            return
        if changed_samples(self.place.in_place.matrix, earlier.samples):
            raise InputError(
                f"{self.place.path} is half updated by the run of {self.path}: finish it with the "
                "same command, or restore its old elements first"
            )

    def _open(self) -> None:
        earlier = self.earlier
        if earlier is not None and earlier.result is not None:
            self.output = self._check_finished(earlier.result)
            self.finished = True
            self._clean()
            return
        self.output = self._open_output()
        if isinstance(matrix := self.output.matrix, FileMatrix):
            wait_for_writers(matrix)
        if earlier is not None:
            self._recover(earlier)

    def _check_finished(self, then: Fingerprint) -> Operand:
        found = self.place.in_place or self.place.finished()
        changes = differences("it", then, {} if found is None else fingerprint(found))
        if changes or found is None:
            raise InputError(
                f"{self.place.path} was finished, but is no longer what the run left: "
                f"{'; '.join(changes)}; {BEGIN_AGAIN}"
            )
        return found

    def _open_output(self) -> Operand:
        """Return the result: in its place, its draft, or as a run that was cut off published it."""
        place, earlier = self.place, self.earlier
        if place.in_place is not None:
            return place.in_place
        self._draft = place.create(self.path) if earlier is None else place.reopen(self.path)
        if self._draft is not None:
            return self._draft.operand
        found = place.finished() if earlier is not None and earlier.publishing else None
        if found is None:
            raise InputError(
                f"{place.part(self.path)}, the unfinished result that goes with {self.path}, is "
                f"gone; {BEGIN_AGAIN}"
            )
        return found

    def _recover(self, earlier: EarlierRun) -> None:
        """Write to the result what the redo log keeps, and compare all pieces with their records.

        A piece that has changed is computed again where that is possible.
        """
        place, matrix, pieces = self.place, self.output.matrix, self.pieces
        overwrites = place.updates or pieces.overwritten
        published = self._draft is None and place.in_place is None
        if self._journal.damaged and overwrites:
            raise DamagedError(
                f"{self.path} is damaged in lines {self._journal.damaged}: which parts of "
                f"{place.path} are overwritten cannot be told; restore its old elements, then "
                f"{BEGIN_AGAIN}",
                lines=self._journal.damaged,
                path=str(self.path),
            )
        standing = pieces.standing()
        if earlier.redo[1] and not published and redo_path(self.path).exists():
            with closing(RedoLog(self.path, earlier.run, *earlier.redo)) as log:
                log.apply(matrix, standing)
        self.damaged = damaged(matrix, standing)
        if self.damaged and published:  # all pieces were recorded before the rename
            raise InputError(f"{place.path} was published, and has changed since; {BEGIN_AGAIN}")
        if self.damaged and overwrites:
            raise _damaged_error(matrix, self.damaged[0], "after it was stored")
        if place.updates and (changed := changed_samples(matrix, earlier.samples, standing)):
            raise _damaged_error(matrix, changed[0], "by something else than the run")
        self.undo(self._lost(self.damaged))
        if published:
            self.finish()

    def _lost(self, rects: list[Rect]) -> list[Rect]:
        """Return the pieces that must be computed again because these have changed."""
        return rects

    def _begin(self, plan: Any, rects: Sequence[Rect] = (), redo: tuple[int, int] = (0, 0)) -> None:
        """Begin, or go on.

        Parameters
        ----------
        plan
            Of a new run, in plain values; one that goes on has the plan of `earlier`.
        rects
            Places of which the old content is sampled where it is updated.
        redo
            Bytes and count of the slots of the redo log; a count of 0 for none.
        """
        redo = redo if self.earlier is None else self.earlier.redo
        if redo[1]:
            make = RedoLog.create if self.earlier is None else RedoLog
            self._redo = make(self.path, self.run, *redo)
        new_update = self.place.updates and self.earlier is None
        samples = sample(self.output.matrix, rects) if new_update else []
        self.start(plan, samples, redo)

    def _store(
        self,
        rects: Sequence[Rect],
        part: Callable[[Rect], NDArray[Any]],
        notes: Mapping[str, Any],
        pass_number: int = 0,
    ) -> None:
        """Store pieces, whose elements `part` returns, and record them together, durably."""
        matrix, pieces = self.output.matrix, dict[Rect, int]()
        redo = self._redo if self.place.updates or pass_number else None
        entry = Entry(pieces, notes, pass_number)
        if redo is not None:
            for slot, rect in enumerate(rects):
                pieces[rect] = redo.keep(slot, rect, as_stored(part(rect), matrix.dtype))
            self.record([entry])
        for rect in rects:
            tile = as_stored(part(rect), matrix.dtype)
            pieces[rect] = checksum(tile)
            matrix.write(rect.row, rect.col, tile)
        matrix.flush()
        if redo is None:
            self.record([entry])

    def finish(self) -> None:
        """Publish the result, and note that the run is finished."""
        if self.finished:
            return
        found: Operand | None = self.output
        if self._draft is not None:
            self._journal.append([{"publishing": self._draft.part.name}])
            self._draft.publish()
            self._draft = None
            found = self.place.finished()
        else:
            self.output.matrix.flush()
        if found is None:
            raise InputError(f"{self.place.path} vanished as soon as it was published")
        self._journal.append([{"finished": fingerprint(found)}])
        self.finished = True
        self._clean()

    def _clean(self) -> None:
        """Remove what a finished run does not need."""
        self.place.clean(self.path)
        self.place.remove_work()

    @property
    def resumption(self) -> Resumption:
        """How much of an earlier run this run found finished."""
        return Resumption(str(self.path), self._parts, self._kept, len(self.damaged), self.finished)


def _damaged_error(matrix: Matrix, rect: Rect, how: str) -> DamagedError:
    return DamagedError(
        f"{matrix.name} was changed {how}, in rows {rect.row} to {rect.row + rect.rows - 1}, "
        f"columns {rect.col} to {rect.col + rect.cols - 1}: the run cannot go on from what is "
        f"there; restore the old elements, then {BEGIN_AGAIN}",
        path=matrix.name,
        rect=tuple(rect),
    )
