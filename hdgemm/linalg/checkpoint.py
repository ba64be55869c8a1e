"""A durable factorisation: finished slabs are recorded, and the same command goes on from them.

Order of what becomes durable:

1. the draft and the redo log, with their space, before the journal's first record;
2. a slab in the output, before its record; or, where the slab overwrites what it was computed
   from, the slab in the redo log, before its record, before the first byte in the output;
3. all of the output and the note that it is about to be published, before the rename;
4. the rename, before the note that the run is finished.
"""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self

from hdgemm.durable.fingerprint import differences, fingerprint
from hdgemm.durable.journal import redo_path
from hdgemm.durable.pieces import redo_log
from hdgemm.durable.previous_run import BEGIN_AGAIN, say_kept
from hdgemm.durable.redo_log import close_run
from hdgemm.errors import InputError
from hdgemm.linalg.planning.search import PIECE_BYTES
from hdgemm.linalg.slab_journal import EarlierRun, StoredSlab, damaged_error, refuse
from hdgemm.linalg.slab_store import SlabStore
from hdgemm.matrices.files import sync
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.report import Resumption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hdgemm.durable.destination import Destination
    from hdgemm.durable.redo_log import RedoLog
    from hdgemm.linalg.planning.slab import Columns
    from hdgemm.linalg.slab_journal import AnyPlan, Command, Notes
    from hdgemm.matrices.base import Operand
    from hdgemm.matrices.draft import Draft
    from hdgemm.options import Options


class SlabCheckpoint:
    """A factorisation that an interrupted run can resume; open it as a context manager.

    Parameters
    ----------
    command
        What is computed.
    source
        A.
    destination
        Where the factors go; `updates` where that is A itself.
    order
        ``"F"`` or ``"C"``, for new .npy files.

    Attributes
    ----------
    destination
        As given.
    stored
        The output, opened for writing.
    finished
        An earlier run has finished: there is nothing to do.
    plan
        The slabs; None before the first run has begun.

    Raises
    ------
    InputError
        When the journal belongs to another command, another run holds it, or what the earlier run
        left is gone.
    DamagedError
        When the output was changed, and cannot be computed again from what is there.
    """

    stored: StoredMatrix

    def __init__(
        self, command: Command, source: StoredMatrix, destination: Destination, order: str
    ) -> None:
        self._command, self.destination = command, destination
        self._draft: Draft[Any] | None = None
        self._earlier: EarlierRun | None = None
        self._redo: RedoLog | None = None
        self.finished = self._begun = False
        self.plan: AnyPlan | None = None
        self._passes: tuple[list[StoredSlab], ...] = ([], [])
        self._kept = self._damaged = 0
        self._identity = command.identity(source, destination)
        self._journal = destination.open_journal(destination.journal_at(command.checkpoint))
        try:
            self._open(order)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        """Close the files; after an `InputError` remove a run that has finished nothing."""
        if self._begun and isinstance(error, InputError):
            if not any(self._passes):
                self._journal.clear()
            if any(self._passes) or self.destination.work_files():
                say_kept(error)
        close_run(self._journal, self._draft, self._redo)
        self._draft = self._redo = None

    def _open(self, order: str) -> None:
        destination, path = self.destination, self._journal.path
        if self._command.restart:
            self._forget()
        earlier = self._earlier = EarlierRun.read(path, self._journal.records)
        if earlier is not None:
            refuse(path, earlier.differences(self._identity))
            self.plan, self._passes = earlier.plan, earlier.passes
            if earlier.finished is not None:
                self._check_finished(earlier.finished)
                self._clean()
                return
        if destination.in_place is None:
            self._draft = (
                destination.create(path, order, sparse=self._command.triangle)
                if earlier is None
                else destination.reopen(path)
            )
        operand = self._draft.operand if self._draft is not None else destination.in_place
        if operand is None:
            operand = destination.finished() if earlier is not None and earlier.publishing else None
        if operand is None:
            raise InputError(
                f"{destination.part(path)}, the unfinished output that goes with {path}, is gone; "
                f"{BEGIN_AGAIN}"
            )
        self._open_store(operand, earlier)
        if earlier is not None:
            self._recover(earlier)

    def _open_store(self, operand: Operand, earlier: EarlierRun | None) -> None:
        self.stored = StoredMatrix(operand, writable=True)
        output = self.stored.T if self._command.transposed else self.stored
        self._store = SlabStore(output, PIECE_BYTES if earlier is None else earlier.piece_bytes)

    def _check_finished(self, then: Mapping[str, Any]) -> None:
        operand = self.destination.in_place or self.destination.finished()
        found = differences("it", then, {} if operand is None else fingerprint(operand))
        if found or operand is None:
            raise InputError(
                f"{self.destination.path} was finished, but is no longer what the run left: "
                f"{'; '.join(found)}; {BEGIN_AGAIN}"
            )
        self.stored = StoredMatrix(operand, writable=False)
        self.finished = True
        self._kept = len(self._passes[0])

    def _forget(self) -> None:
        """Discard an earlier run.

        Raises
        ------
        InputError
            When A is half overwritten by it.
        """
        path, in_place = self._journal.path, self.destination.in_place
        if self.destination.updates and in_place is not None and self._journal.records:
            earlier = EarlierRun.read(path, self._journal.records)
            if earlier is not None and earlier.finished is None:
                self._open_store(in_place, earlier)
                if not self._store.as_sampled(earlier.plan.slabs, earlier.samples):
                    raise InputError(
                        f"{self.destination.path} is half overwritten by the run of {path}: "
                        "finish it with the same command, or restore A first"
                    )
        self.discard()

    def discard(self) -> None:
        """Remove journal, draft and redo log: the next run begins again."""
        if self._draft is not None:
            self._draft.discard()
            self._draft = None
        self._journal.clear()
        self.destination.remove(self._journal.path)
        self.destination.remove_work()
        redo_path(self._journal.path).unlink(missing_ok=True)

    def _place(self, pass_number: int, slab: StoredSlab) -> Columns:
        if self.plan is None:
            raise InputError("the run has no plan yet")
        places = self.plan.interchanged if pass_number else self.plan.slabs
        return places[slab.number]

    def _recover(self, earlier: EarlierRun) -> None:
        """Write to the output what the redo log keeps, and check every recorded slab."""
        path = self._journal.path
        # A slab whose record is lost may have been overwritten by the last pass.
        if self._journal.damaged and (self.destination.updates or self._passes[1]):
            raise damaged_error(path, f"in lines {self._journal.damaged}")
        # All was durable before it was published, and is opened for reading only.
        published = self._draft is None and self.destination.in_place is None
        if earlier.last is not None and not published and redo_path(path).exists():
            number, slab = earlier.last
            with closing(redo_log(path, earlier.redo, earlier.run)) as log:
                self._store.apply(log, self._place(number, slab), slab.checksums)
        factored, final = self._passes
        # A slab of the last pass has taken the place of its factored one.
        found = [self._whole(0, slab) for slab in factored[len(final) :]]
        passed = [self._whole(1, slab) for slab in final]
        if not all(passed) or ((final or self.destination.updates or published) and not all(found)):
            raise damaged_error(self.destination.path, "after it was stored")
        self._damaged = found.count(False)
        if not all(found):
            del factored[found.index(False) :]
        rest = earlier.plan.slabs[len(factored) :]
        if self.destination.updates and not self._store.as_sampled(rest, earlier.samples):
            raise damaged_error(self.destination.path, "by something else than the run")
        self._kept = len(factored)
        if published:
            self.finish()

    def _whole(self, pass_number: int, slab: StoredSlab) -> bool:
        return self._store.whole(self._place(pass_number, slab), slab.checksums)

    def begin(self, plan: AnyPlan, options: Options) -> None:
        """Prepare journal and redo log for a plan: the earlier run's, if there is one.

        Raises
        ------
        InputError
            When the options exclude the earlier run's plan.
        """
        path, earlier = self._journal.path, self._earlier
        if earlier is not None:
            refuse(path, earlier.excluded_by(options))
        self._begun = True
        if earlier is not None:
            if earlier.redo[1]:
                self._redo = redo_log(path, earlier.redo, earlier.run)
            return
        self.plan, run = plan, secrets.token_hex(8)
        places = [*(plan.slabs if self.destination.updates else ()), *plan.interchanged]
        size = self._store.redo_size(places)
        if size[1]:
            self._redo = redo_log(path, size, run, create=True)
        samples = self._store.samples(plan.slabs) if self.destination.updates else []
        record = EarlierRun.first_record(run, self._identity, plan, samples, size, PIECE_BYTES)
        self._journal.append([record])
        sync(path.parent)

    def done(self, pass_number: int) -> int:
        """Return how many slabs of a pass are finished."""
        return len(self._passes[pass_number])

    def notes(self) -> list[Notes]:
        """Return what was recorded with each slab that is factored."""
        return [slab.notes for slab in self._passes[0]]

    def store(
        self, pass_number: int, number: int, place: Columns, array: NDArray[Any], notes: Notes
    ) -> None:
        """Store a slab durably, and record it; slabs of a pass come in order."""
        redo = self._redo if self.destination.updates or pass_number else None
        if redo is None:
            slab = StoredSlab(number, self._store.write(place, array), notes)
            self._journal.append([slab.record(pass_number)])
        else:
            slab = StoredSlab(number, self._store.keep(redo, place, array), notes)
            self._journal.append([slab.record(pass_number)])
            self._store.write(place, array)
        self._passes[pass_number].append(slab)

    def finish(self) -> None:
        """Publish the output, and note that the run is finished."""
        if self.finished:
            return
        operand = self.stored.operand
        if self._draft is not None:
            self._journal.append([{"publishing": self._draft.part.name}])
            self._draft.publish()
            self._draft = None
            published = self.destination.finished()
            if published is None:
                raise InputError(f"{self.destination.path} vanished as soon as it was published")
            operand = published
        operand.matrix.flush()
        self._journal.append([{"finished": fingerprint(operand)}])
        self.finished = True
        self._clean()

    def _clean(self) -> None:
        """Remove what a finished run does not need."""
        self.destination.clean(self._journal.path)
        self.destination.remove_work()

    @property
    def resumption(self) -> Resumption:
        """How much of an earlier run this run found finished; `tiles` are slabs."""
        slabs = 0 if self.plan is None else len(self.plan.slabs)
        path = str(self._journal.path)
        return Resumption(path, slabs, self._kept, self._damaged, self.finished)
