"""One durable run: started, resumed, finished. Order of what becomes durable.

1. the draft (its space, its name) and the redo log, before the journal's first record;
2. a slab in the redo log, before C is overwritten (a C that is updated in place);
3. a slab in C, before its record in the journal; the record, before its redo slot is used again;
4. all of C and the note that it is about to be published, before the rename;
5. the rename, before the note that the run is finished.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from hdgemm.durable.fingerprint import differences, fingerprint
from hdgemm.durable.identity import plan_differences
from hdgemm.durable.journal import redo_path
from hdgemm.durable.pieces import (
    redo_log,
    redo_size,
    sample,
    sample_places,
    slabs_of,
    units_done,
)
from hdgemm.durable.previous_run import BEGIN_AGAIN, Earlier, first_record, say_kept
from hdgemm.durable.recorder import JournaledMatrix
from hdgemm.durable.recovery import check_restart, recover
from hdgemm.durable.redo_log import close_run
from hdgemm.errors import InputError
from hdgemm.matrices.filelocks import wait_for_writers
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import sync
from hdgemm.pipeline.timeline import Timeline
from hdgemm.planning.resume import remaining
from hdgemm.report import Resumption, build_report

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hdgemm.durable.destination import Destination
    from hdgemm.durable.identity import Identity
    from hdgemm.durable.redo_log import RedoLog
    from hdgemm.matrices.base import Matrix, Operand
    from hdgemm.matrices.draft import Draft
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec, Plan, Problem, Rect
    from hdgemm.report import Report


class Checkpoint:
    """A run that can be resumed after an interruption; open it as a context manager.

    `c` is C as the run writes it. `finished`: an earlier run has finished, there is nothing to do.
    `restart` forgets what an earlier run left.

    Raises `InputError` when the journal belongs to another command, another run holds it, or what
    the earlier run left is gone; `DamagedError` when a C that is updated in place was damaged.
    """

    c: Operand

    def __init__(
        self, identity: Identity, destination: Destination, journal: Path, *, restart: bool = False
    ) -> None:
        self._identity = identity
        self._destination = destination
        self._draft: Draft[Any] | None = None
        self._redo: RedoLog | None = None
        self._done: dict[Rect, int] = {}
        self._damaged = self._kept = self._tiles = 0
        self._shared = False
        self.finished = self._begun = False
        self._journal = destination.open_journal(journal)
        try:
            self._earlier = self._read(restart=restart)
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Close the files; after an `InputError` remove a run that has finished nothing."""
        if self._begun and isinstance(error, InputError):
            if len(self._journal.records) == 1:
                self._journal.clear()
            else:
                say_kept(error)
        self.close()

    def close(self) -> None:
        """Close the files; a run that had begun is left as it is, to be resumed later."""
        close_run(self._journal, self._draft, self._redo)
        self._draft = self._redo = None

    def _read(self, *, restart: bool) -> Earlier | None:
        journal = self._journal
        if restart:
            check_restart(journal, self._destination)
            journal.clear()
            self._destination.remove(journal.path)
            redo_path(journal.path).unlink(missing_ok=True)
        earlier = Earlier.read(journal.path, journal.records)
        if earlier is not None:
            earlier.check(journal.path, self._identity)
        return earlier

    def _open(self) -> None:
        earlier, destination = self._earlier, self._destination
        if earlier is not None and earlier.finished is not None:
            self._check_finished(earlier.finished)
            self.finished = True
            destination.clean(self._journal.path)
            return
        if destination.in_place is not None:
            self.c = destination.in_place
        elif earlier is None:
            self._draft = destination.create(self._journal.path)
        else:
            self._draft = destination.reopen(self._journal.path)
        if self._draft is not None:
            self.c = self._draft.operand
        elif destination.in_place is None:
            self.c = self._published()
        if isinstance(matrix := self.c.matrix, FileMatrix):
            wait_for_writers(matrix)
        if earlier is not None:
            self._recover(earlier)

    def _check_finished(self, then: Any) -> None:
        c = self._destination.in_place or self._destination.finished()
        now = {} if c is None else fingerprint(c)
        if found := differences("C", then, now):
            raise InputError(
                f"{self._destination.path} was finished, but is no longer what the run left: "
                f"{'; '.join(found)}; {BEGIN_AGAIN}"
            )

    def _published(self) -> Operand:
        """Return the C of a run that was cut off between the rename and the last record."""
        c = self._destination.finished()
        if c is None or self._earlier is None or not self._earlier.publishing:
            part = self._destination.part(self._journal.path)
            raise InputError(
                f"{part}, the unfinished C that goes with {self._journal.path}, is gone; "
                f"{BEGIN_AGAIN}"
            )
        return c

    def _recover(self, earlier: Earlier) -> None:
        self._done, bad = recover(self._journal, earlier, self.c.matrix, self._destination)
        self._damaged = len(bad)
        if self._draft is None and self._destination.in_place is None:
            if self._damaged:  # all pieces were recorded before the rename
                raise InputError(
                    f"{self._destination.path} was published, and has changed since; {BEGIN_AGAIN}"
                )
            self._note_finished(self.c)

    @property
    def plan(self) -> Plan | None:
        """The earlier run's plan; None for the first run, and where several devices drew tiles."""
        return None if self._earlier is None or self._earlier.shared else self._earlier.plan

    def choose_devices(self, names: tuple[str, ...], options: Options) -> tuple[str, ...]:
        """Return the earlier run's devices, or `names` for the first run; refuse other devices."""
        if self._earlier is None:
            return names
        before = self._earlier.devices or (self._earlier.device_plan.device.name,)
        if options.devices != "auto" and names != before:
            self._refuse([f"the device was {', '.join(before)}, is {', '.join(names)}"])
        return before

    def check(self, problem: Problem, options: Options, device: DeviceSpec) -> None:
        """Refuse to go on with an earlier run's plan that was made for another problem."""
        if self.plan is not None:
            self._refuse(plan_differences(self.plan, problem, options, device))

    def _refuse(self, found: list[str]) -> None:
        if found:
            raise InputError(
                f"the run of {self._journal.path} cannot go on: {'; '.join(found)}; {BEGIN_AGAIN}",
                journal=str(self._journal.path),
                differences=found,
            )

    def begin(self, plan: Plan) -> Plan:
        """Prepare the journal for all of `plan`; return the plan for the units that are left."""
        slabs = slabs_of(plan)
        self._start([plan])
        done = units_done(slabs, self._done)
        self._depth = max(map(len, slabs))
        self._kept, self._tiles = len(done), len(plan.units)
        return remaining(plan, done)

    def begin_shared(self, plans: Sequence[Plan]) -> list[Rect]:
        """Prepare the journal for devices that draw tiles; return the finished pieces of C."""
        self._start(plans)
        self._depth = redo_size(plans)[1] - 1
        self._kept = self._tiles = len(self._done)
        self._shared = True
        return sorted(self._done)

    def _start(self, plans: Sequence[Plan]) -> None:
        """Write the first record, or open the redo log of the run that is resumed."""
        path, updates = self._journal.path, self._destination.updates
        self._begun = True
        if self._earlier is not None:
            if updates:
                self._redo = redo_log(path, self._earlier.redo, self._earlier.run)
            return
        run = secrets.token_hex(8)
        samples: list[list[int]] = []
        size = redo_size(plans) if updates else None
        if size is not None:
            self._redo = redo_log(path, size, run, create=True)
            samples = sample(self.c.matrix, sample_places(plans[0], shared=len(plans) > 1))
        self._journal.append([first_record(run, plans, self._identity, samples, size)])
        sync(path.parent)

    @contextmanager
    def recording(self, matrix: Matrix) -> Iterator[Matrix]:
        """Yield C for store2; the pieces that it writes are recorded, also after errors."""
        recorder = JournaledMatrix(
            matrix, self._journal, done=self._done, depth=self._depth, redo=self._redo
        )
        try:
            yield recorder
        finally:
            recorder.close()
            # Tiles that devices draw are counted when they are stored.
            self._tiles += recorder.written if self._shared else 0

    def finish(self) -> None:
        """Publish C, and note that the run is finished."""
        if self._draft is None:
            self._note_finished(self.c)
            return
        self._journal.append([{"publishing": self._draft.part.name}])
        self._draft.publish()
        self._draft = None
        published = self._destination.finished()
        if published is None:
            raise InputError(f"{self._destination.path} vanished as soon as it was published")
        self._note_finished(published)

    def _note_finished(self, c: Operand) -> None:
        self._journal.append([{"finished": fingerprint(c)}])
        self.finished = True
        self._destination.clean(self._journal.path)

    @property
    def resumption(self) -> Resumption:
        """How much of an earlier run this run found finished."""
        return Resumption(str(self._journal.path), self._tiles, self._kept, self._damaged)

    def report(self) -> Report:
        """Return the report of a run that had nothing to do."""
        earlier = self._earlier
        if earlier is None or not self.finished:
            raise InputError(f"the run of {self._journal.path} is not finished")
        tiles = len(earlier.done) if earlier.shared else len(earlier.device_plan.units)
        return build_report(
            [earlier.device_plan],
            Timeline((), 0.0),
            planned_bytes={},
            resumption=Resumption(str(self._journal.path), tiles, tiles, finished=True),
        )
