"""The result as lanes write it in a durable run: every piece that is written is also recorded."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from hdgemm.durable.fingerprint import as_stored, checksum
from hdgemm.durable.pieces import Entry
from hdgemm.matrices.base import Wrapper
from hdgemm.pipeline.tiles import Rect

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from hdgemm.durable.redo_log import RedoLog
    from hdgemm.matrices.base import Matrix


class _Written(NamedTuple):
    rect: Rect
    crc: int
    slot: int


class JournaledMatrix(Wrapper):
    """A matrix whose pieces are recorded when they are durable.

    `write` returns when the piece is in the matrix; a thread then makes the matrix durable, and
    after that records the piece. A lane that gets `depth` pieces (all of one tile) ahead of the
    thread waits for it: a crash loses no more than these. Through a redo log a piece is recorded
    first.

    Parameters
    ----------
    record
        Records entries durably.
    done
        Pieces that are in the matrix already, and are left as they are.
    redo
        Takes a piece before the matrix is overwritten, in at least ``depth + 1`` slots; None for a
        matrix that is not read.
    """

    def __init__(
        self,
        matrix: Matrix,
        record: Callable[[Sequence[Entry]], None],
        *,
        done: Collection[Rect] = (),
        depth: int = 1,
        redo: RedoLog | None = None,
    ) -> None:
        super().__init__(matrix)
        self.array = None  # every write must go through `write`
        self._record, self._done = record, frozenset(done)
        self._depth = depth
        self._redo = redo
        self._free = list(range(redo.count)) if redo is not None else []
        self._changed = threading.Condition()
        self._pending: list[_Written] = []
        #: Pieces that this run has stored.
        self.written = 0
        self._writing = 0
        self._syncing = 0
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._follow, name="hdgemm-journal", daemon=True)
        self._thread.start()

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store a piece, and see to it that it is recorded."""
        rect = Rect(row, col, *tile.shape)
        if rect in self._done:
            return
        stored = as_stored(tile, self.dtype)
        slot = self._begin()
        try:
            if self._redo is None:
                crc = checksum(stored)
            else:
                crc = self._redo.keep(slot, rect, stored)
                self._record([Entry({rect: crc})])
            self.stored.write(row, col, stored)
        except BaseException:
            self._end(None)
            raise
        self._end(_Written(rect, crc, slot))

    def _begin(self) -> int:
        """Wait until one more piece may be under way; return its slot in the redo log."""
        with self._changed:
            while self._ahead() > self._depth and self._error is None:
                self._changed.wait()
            self._check()
            self._writing += 1
            return self._free.pop() if self._redo is not None else -1

    def _ahead(self) -> int:
        return self._writing + len(self._pending) + self._syncing

    def _end(self, written: _Written | None) -> None:
        with self._changed:
            self._writing -= 1
            if written is not None:
                self._pending.append(written)
                self.written += 1
            self._changed.notify_all()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def flush(self) -> None:
        """Return when everything written is durable and recorded."""
        with self._changed:
            while self._ahead() and self._error is None:
                self._changed.wait()
            self._check()
        self.stored.flush()

    def close(self) -> None:
        """Record what is written, and end the thread; the matrix stays open. Raises nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _follow(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._closing:
                    self._changed.wait()
                batch, self._pending = self._pending, []
                self._syncing = len(batch)
            if not batch:
                return
            error = self._make_durable(batch)
            with self._changed:
                self._syncing = 0
                self._error = error
                if self._redo is not None and error is None:
                    self._free += [written.slot for written in batch]
                self._changed.notify_all()
            if error is not None:
                return

    def _make_durable(self, batch: list[_Written]) -> BaseException | None:
        """Make them durable first: a record vouches for bytes that survive a power loss."""
        try:
            self.stored.flush()
            if self._redo is None:
                self._record([Entry({each.rect: each.crc for each in batch})])
        except BaseException as error:  # noqa: BLE001 - it is raised again by the next write
            return error
        return None
