"""C as store2 sees it in a durable run: every slab that is written is also accounted for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from hdgemm.durable.fingerprint import as_stored, checksum
from hdgemm.matrices.base import Wrapper
from hdgemm.pipeline.plan import Rect

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from hdgemm.durable.journal import Journal
    from hdgemm.durable.redo_log import RedoLog
    from hdgemm.matrices.base import Matrix


class _Written(NamedTuple):
    rect: Rect
    crc: int
    slot: int


class JournaledMatrix(Wrapper):
    """C with a journal: writes what is durable into a journal.

    `write` returns when the slab is in C; a thread then makes C durable, and after that appends the
    slab's record to the journal and makes that durable. A lane that gets `depth` slabs (all of
    one tile) ahead of the journal waits for it: a crash loses no more than these.

    Slabs in `done` are in C already, and left as they are. `redo`, with at least ``depth + 1``
    slots, takes a slab's bytes before C is overwritten; None for a C that is not read.
    """

    def __init__(
        self,
        matrix: Matrix,
        journal: Journal,
        *,
        done: Collection[Rect] = (),
        depth: int = 1,
        redo: RedoLog | None = None,
    ) -> None:
        super().__init__(matrix)
        self.array = None  # every write must go through `write`
        self._journal = journal
        self._done = frozenset(done)
        self._depth = depth
        self._redo = redo
        self._free = list(range(redo.count)) if redo is not None else []
        self._changed = threading.Condition()
        self._pending: list[_Written] = []
        #: Pieces that this run has stored.
        self.written = 0
        self._writing = 0
        self._recording = 0
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._record, name="hdgemm-journal", daemon=True)
        self._thread.start()

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store a slab of C, and see to it that it is recorded once it is durable."""
        rect = Rect(row, col, *tile.shape)
        if rect in self._done:
            return
        stored = as_stored(tile, self.dtype)
        crc = checksum(stored)
        slot = self._begin()
        try:
            if self._redo is not None:
                self._redo.keep(slot, rect, stored, crc)
            self.stored.write(row, col, stored)
        except BaseException:
            self._end(None)
            raise
        self._end(_Written(rect, crc, slot))

    def _begin(self) -> int:
        """Wait until one more slab may be under way; return its slot in the redo log."""
        with self._changed:
            while self._ahead() > self._depth and self._error is None:
                self._changed.wait()
            self._check()
            self._writing += 1
            return self._free.pop() if self._redo is not None else -1

    def _ahead(self) -> int:
        return self._writing + len(self._pending) + self._recording

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
        """Record what is written, and end the thread; C stays open. Raises nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _record(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._closing:
                    self._changed.wait()
                batch, self._pending = self._pending, []
                self._recording = len(batch)
            if not batch:
                return
            error = self._make_durable(batch)
            with self._changed:
                self._recording = 0
                self._error = error
                if self._redo is not None and error is None:
                    self._free += [written.slot for written in batch]
                self._changed.notify_all()
            if error is not None:
                return

    def _make_durable(self, batch: list[_Written]) -> BaseException | None:
        """Make C durable first: a record vouches for bytes that survive a power loss."""
        try:
            self.stored.flush()
            self._journal.append([{"done": [*each.rect, each.crc]} for each in batch])
        except BaseException as error:  # noqa: BLE001 - it is raised again by the next write
            return error
        return None
