"""Working window: strips of columns that devices and cores update, beneath the other phases.

The caller's thread factors panels, exchanges messages and swaps rows; it opens the window to the
right strip by strip, and threads, one for each device or core, update them from the left. The last
strips are shared: a thread without a strip of its own takes blocks of rows from others (Jo et al.,
"Accelerating LINPACK with MPI-OpenCL on Clusters of Multi-GPU Nodes", sections 3.3 and 4.1).
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hdgemm.errors import CancelledRunError
from hdgemm.fortran import gemm, trsm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hdgemm.mpi._panel import Panel
    from hdgemm.mpi._timeline import PhaseRecorder

    Columns = NDArray[Any]
    #: C := C - A·B on column-major arrays.
    Update = Callable[[Columns, Columns, Columns], None]
    #: B := L⁻¹·B with the unit lower triangle of an array; both are column-major.
    Solve = Callable[[Columns, Columns], None]

#: Rows of a block, the unit that is taken from another thread's strip: on a core, on a device. Each
#: block packs U anew: N = 16000 runs 4 % faster with 4608 rows than with 1536, and 1 % faster with
#: 9216 than with 4608.
CORE_ROWS: Final = 9216
DEVICE_ROWS: Final = 2048
#: Seconds between two questions whether a message has arrived, while there is nothing to do.
_POLL: Final = 2e-4


def host_update(a: Columns, b: Columns, c: Columns) -> None:
    """Compute C := C - A·B with the host's BLAS."""
    gemm(-1.0, a, b, c)


def host_solve(triangle: Columns, b: Columns) -> None:
    """Solve L·X = B with the host's BLAS."""
    trsm(triangle, b, unit=True)


class Strip:
    """The local columns from `start` to `stop`, to which one panel is applied.

    `below` has their local rows after the panel's diagonal block, and `factor` the panel's. In an
    urgent strip lies the next panel: every thread helps before it begins another strip.
    """

    def __init__(
        self, panel: Panel, start: int, stop: int, below: Columns, *, urgent: bool = False
    ) -> None:
        self.panel, self.start, self.stop, self.urgent = panel, start, stop, urgent
        self.below, self.factor = below, panel.below
        #: The rows of U, once they are swapped.
        self.u: Columns = below[:0]
        self.blocks: deque[tuple[int, int]] = deque()
        self.unfinished = 0

    def cut(self, rows: int | None) -> None:
        """Cut the rows below into blocks; None: into one."""
        rows = rows or len(self.below) + 1
        stops = [*range(rows, len(self.below), rows), len(self.below)]
        self.blocks.extend(zip([0, *stops[:-1]], stops, strict=True))
        self.unfinished = len(self.blocks)

    def solve(self, solve: Solve) -> None:
        """Solve for the rows of U."""
        solve(self.panel.top, self.u)

    def update(self, block: tuple[int, int], update: Update) -> None:
        """Update one block of rows."""
        rows = slice(*block)
        if block[0] < block[1]:
            update(self.factor[rows], self.u, self.below[rows])


class _Work(NamedTuple):
    """A strip to be solved, or one block of rows to be updated."""

    strip: Strip
    block: tuple[int, int] | None


class Window:
    """Strips that wait for their swap, for a thread, or for their end.

    There is one of `updates` for each device or core. The first one is the caller's own core where
    `caller_helps`; each other one gets a thread. They update blocks of so many rows. `solves` says
    how a device solves for the rows of U; others do it with the host's BLAS. A thread whose update
    failed calls `on_error`, after which the window refuses everything.
    """

    def __init__(
        self,
        updates: Sequence[Update],
        rows: int,
        recorder: PhaseRecorder,
        on_error: Callable[[BaseException], None] = lambda _: None,
        *,
        caller_helps: bool = True,
        solves: Mapping[Update, Solve] | None = None,
    ) -> None:
        # One thread alone updates a strip by one product.
        self._rows = rows if len(updates) > 1 else None
        self._recorder, self._on_error, self._solves = recorder, on_error, solves or {}
        self._own = updates[0] if caller_helps else None
        self._ready: deque[Strip] = deque()
        self._pending: list[Strip] = []
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        try:
            for number, update in enumerate(updates[1 if caller_helps else 0 :]):
                name = f"hdgemm-update-{number}"
                thread = threading.Thread(target=self._work, args=(update,), name=name)
                thread.start()
                self._threads.append(thread)
        except RuntimeError:  # the system's limit of threads
            self.close()
            raise

    @property
    def threads(self) -> int:
        """Threads beside the caller's."""
        return len(self._threads)

    def announce(self, strip: Strip) -> None:
        """Add a strip that waits for its swap."""
        with self._changed:
            self._pending.append(strip)

    def open(self, strip: Strip) -> None:
        """Give an announced strip, which was swapped, to the threads."""
        with self._changed:
            (self._ready.appendleft if strip.urgent else self._ready.append)(strip)
            self._changed.notify_all()

    def wait(
        self,
        start: int,
        stop: int,
        *,
        before: Strip | None = None,
        help_until: Callable[[], bool] | None = None,
        helping: bool = True,
    ) -> None:
        """Block until all strips of these columns that were announced before `before` are done.

        Return early once `help_until` is true, which is asked between two blocks of rows. The
        thread that made the window updates meanwhile, on its own core; others give
        ``helping=False``.
        """
        own = self._own if helping else None
        while True:
            with self._changed:
                self._check()
                if not self._overlaps(start, stop, before) or (help_until and help_until()):
                    return
                work = self._take() if own is not None else None
                if work is None:
                    # Woken by threads; `help_until` has to be asked again in any case.
                    self._changed.wait(None if help_until is None else _POLL)
            if work is not None and own is not None:
                self._run(work, own)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Refuse everything once the code in this context, of another thread, has failed."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
            self._on_error(error)

    def close(self) -> None:
        """End the threads; work that was not begun is left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise CancelledRunError("the run ended before all rows were swapped")

    def _overlaps(self, start: int, stop: int, before: Strip | None) -> bool:
        for strip in self._pending:
            if strip is before:
                return False
            if strip.start < stop and start < strip.stop:
                return True
        return False

    def _take(self, own: Strip | None = None) -> _Work | None:
        """Return what to do next.

        First come blocks of urgent strips, then blocks of the strip that a thread works on, then
        a new strip, and at the end blocks of the strip that has the most.
        """
        begun = [strip for strip in self._pending if strip.blocks]
        urgent = [strip for strip in begun if strip.urgent] + [s for s in begun if s is own]
        if urgent:
            return _Work(urgent[0], urgent[0].blocks.popleft())
        if self._ready:
            strip = self._ready.popleft()
            return _Work(strip, None)
        if begun:
            fullest = max(begun, key=lambda strip: len(strip.blocks))
            return _Work(fullest, fullest.blocks.pop())
        return None

    def _run(self, work: _Work, update: Update) -> None:
        """Solve for a strip's rows of U, or update one block of its rows."""
        strip, block = work
        if block is None:
            with self._recorder.record("update", strip.panel.first):
                strip.solve(self._solves.get(update, host_solve))
            with self._changed:
                strip.cut(self._rows)
                self._changed.notify_all()
            return
        with self._recorder.record("update", strip.panel.first):
            strip.update(block, update)
        with self._changed:
            strip.unfinished -= 1
            if not strip.unfinished:
                self._pending.remove(strip)
                self._changed.notify_all()

    def _work(self, update: Update) -> None:
        strip = None
        with self.failing():
            while (work := self._next(strip)) is not None:
                self._run(work, update)
                strip = work.strip

    def _next(self, own: Strip | None) -> _Work | None:
        """Block until there is something to do; None at the end."""
        with self._changed:
            while (work := self._take(own)) is None and not self._closed and self._error is None:
                self._changed.wait()
            return None if self._closed or self._error is not None else work
