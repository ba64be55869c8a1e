"""Task graph: dependencies derived from the tiles that serially inserted tasks access."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hdgemm.tasks.task import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.tasks.task import Kernel
    from hdgemm.tasks.tiles import TaskTile


class _Accesses:
    """Unfinished accesses of one tile: the last writer, and the readers since then."""

    __slots__ = ("readers", "writer")

    def __init__(self) -> None:
        self.writer: Task | None = None
        self.readers: set[Task] = set()


class Graph:
    """Unfinished tasks and their dependencies (Dongarra et al., section 5.1).

    A task waits for the last writer of each tile that it reads (read after write), and for the
    last writer of each tile that it writes and its readers since then (write after write, write
    after read). Finished tasks are forgotten, so that memory is bounded by the unfinished ones.
    It has no lock: its caller has one.
    """

    def __init__(self) -> None:
        self._accesses: defaultdict[TaskTile, _Accesses] = defaultdict(_Accesses)
        self._inserted = 0
        #: Tasks that are inserted and not finished.
        self.unfinished = 0

    def insert(
        self,
        kernel: Kernel,
        *,
        reads: Sequence[TaskTile] = (),
        writes: Sequence[TaskTile] = (),
        priority: int = 0,
        where: str | None = None,
    ) -> Task:
        """Add a task after all earlier ones; it is ready when its `waits_for` is 0."""
        task = Task(self._inserted, kernel, tuple(reads), tuple(writes), priority, where)
        task.tiles = tuple(dict.fromkeys((*task.reads, *task.writes)))
        self._inserted += 1
        self.unfinished += 1
        before: set[Task] = set()
        for tile in task.reads:
            seen = self._accesses[tile]
            if seen.writer is not None:
                before.add(seen.writer)
            seen.readers.add(task)
        for tile in task.writes:
            seen = self._accesses[tile]
            if seen.writer is not None:
                before.add(seen.writer)
            before |= seen.readers
            seen.writer, seen.readers = task, set()
        before.discard(task)
        for earlier in before:
            earlier.successors.append(task)
        task.waits_for = len(before)
        return task

    def finish(self, task: Task) -> list[Task]:
        """Forget a finished task; return the tasks that have become ready, in serial order."""
        self.unfinished -= 1
        accesses = self._accesses
        for tile in task.tiles:
            seen = accesses.get(tile)
            if seen is None:
                continue
            seen.readers.discard(task)
            if seen.writer is task:
                seen.writer = None
            if seen.writer is None and not seen.readers:
                del accesses[tile]
        ready = []
        for later in task.successors:
            later.waits_for -= 1
            if later.waits_for == 0:
                ready.append(later)
        task.successors = []
        return ready
