"""A run with a journal: resumed by the same command, kept or removed after an error."""

from __future__ import annotations

import os
import secrets
import zlib
from typing import TYPE_CHECKING, Any, Self

from hdgemm.durable.earlier_run import EarlierRun, say_kept
from hdgemm.durable.journal import redo_path
from hdgemm.durable.pieces import Entry, FinishedPieces
from hdgemm.durable.place import ResultPlace
from hdgemm.errors import DeviceError, InputError
from hdgemm.matrices.draft import aside, real_path
from hdgemm.matrices.files import sync
from hdgemm.matrices.fingerprint import file_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hdgemm.durable.identity import Identity
    from hdgemm.durable.place import Checkpointing
    from hdgemm.matrices.base import Operand
    from hdgemm.matrices.location import Location
    from hdgemm.pipeline.tiles import Rect


class JournaledRun:
    """A run that an interrupted process can resume; open it as a context manager.

    Parameters
    ----------
    identity
        The command.
    place
        Where its result goes.
    checkpoint
        True for a journal beside the result, or the journal's path.
    restart
        Discard what an earlier run left.

    Attributes
    ----------
    place
        As given.
    earlier
        The run that this one goes on with; None for the first one.
    pieces
        The pieces that are finished.
    run
        The run's name, which its journal has.

    Raises
    ------
    InputError
        When the journal belongs to another command, or another run holds it.
    """

    def __init__(
        self,
        identity: Identity,
        place: ResultPlace,
        checkpoint: Checkpointing,
        *,
        restart: bool = False,
    ) -> None:
        self.identity, self.place = identity, place
        self.earlier: EarlierRun | None = None
        self.pieces, self.run = FinishedPieces(), secrets.token_hex(8)
        self._begun = False
        self._journal = place.open_journal(place.journal_at(checkpoint))
        self.path = self._journal.path
        try:
            if restart:
                self._check_restart()
                self.discard()
            self.earlier = EarlierRun.read(self.path, self._journal.records)
            if self.earlier is not None:
                self.earlier.check(self.path, identity)
                self.pieces, self.run = self.earlier.pieces, self.earlier.run
            self._open()
        except BaseException:
            self.close()
            raise

    def _check_restart(self) -> None:
        """Raise `InputError` where what an earlier run has overwritten is needed to begin again."""

    def _open(self) -> None:
        """Open what the run writes besides its journal."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Close the files; after an `InputError` or `DeviceError` remove a run that has finished
        nothing, so that another command can follow, and say of another one that it is kept.
        """
        if self._begun and isinstance(error, InputError | DeviceError):
            if not self._keeps_parts:
                self._journal.clear()
            if self._keeps_parts or self.place.work_files():
                say_kept(error)
        self.close()

    @property
    def _keeps_parts(self) -> bool:
        """Whether a later run can use something that this one has finished."""
        return bool(self.pieces)

    def close(self) -> None:
        """Close the files; a run that had begun is left as it is, to be resumed later."""
        self._journal.close()

    def draft_of(self, where: Location) -> Path | None:
        """Return the name of the draft of a result in a store, beside the one that is recorded.

        The run that goes on makes it again under this name, so that none is left for good. None
        where the file system removes a draft, and within an HDF5 file that exists.
        """
        kind = where.kind
        if where.url or kind.whole_file or (where.path.exists() and not kind.item_folders):
            return None
        mark = zlib.crc32(os.fsencode(f"{self.path.resolve()}::{where.item}"))
        return aside(real_path(kind.own_path(where)), mark)

    def discard(self) -> None:
        """Remove journal, draft, redo log and work files: the next run begins again."""
        self._journal.clear()
        self.place.remove(self.path)
        self.place.remove_work()
        redo_path(self.path).unlink(missing_ok=True)

    def start(
        self, plan: Any, samples: Sequence[Sequence[int]] = (), redo: tuple[int, int] = (0, 0)
    ) -> None:
        """Begin, or go on: a new run records its plan, in plain values; see `EarlierRun`."""
        self._begun = True
        if self.earlier is None:
            self._journal.append(
                [EarlierRun.first_record(self.run, self.identity, plan, samples, redo)]
            )
            sync(self.path.parent)

    def record(self, entries: Sequence[Entry]) -> None:
        """Record pieces that are durable; return when that is durable, too."""
        self._journal.append([entry.to_record() for entry in entries])
        for entry in entries:
            self.pieces.add(entry)

    def undo(self, rects: Iterable[Rect]) -> None:
        """Note that pieces must be computed again: their checksums no longer hold."""
        gone = list(rects)
        self._journal.append([{"undone": gone}] if gone else [])
        self.pieces.undo(gone)


def check_whole(c: Operand) -> None:
    """Refuse to overwrite a matrix that a durable run has updated in part: `InputError`."""
    path = file_of(c.matrix)
    if path is None:
        return
    journal = ResultPlace.of_existing(c, updates=True).journal()
    earlier = EarlierRun.at(journal)
    if earlier is not None and earlier.result is None and earlier.identity.target["updates"]:
        raise InputError(
            f"{path} is half updated by the run of {journal}: finish it with the same command "
            "and checkpoint, or restore the file and remove the journal"
        )
