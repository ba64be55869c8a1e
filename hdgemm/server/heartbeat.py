"""Heartbeat of a running job: renews its lease, stores phases and progress, looks for cancel.

The job's progress over time and its last operations are kept in files beside its log.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import sqlalchemy as sa

from hdgemm.server.backend import finite
from hdgemm.server.problems import DATABASE_ERRORS, OutageLog
from hdgemm.server.tables import Job
from hdgemm.server.watchdog import LEASE_LOST, Watchdog, boot_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hdgemm.pipeline.timeline import Event
    from hdgemm.server.database import Database
    from hdgemm.server.leases import Held
    from hdgemm.server.settings import Settings
    from hdgemm.server.tables import Status

log = logging.getLogger(__name__)
Result = TypeVar("Result")
_LISTEN_SECONDS: Final = 0.25
_PROGRESS_SECONDS: Final = 0.5
#: Names of the files in the job's folder.
HISTORY: Final = "history.json"
OPERATIONS: Final = "operations.json"
_MOST_POINTS: Final = 400
_FIRST_SECONDS: Final = 0.1
#: Operations of one stage of one device that a live Gantt chart shows at most.
_MOST_OPERATIONS: Final = 150
_MEMBERS: Final = ("elapsed", "percent", "gflops", "phase", "busy")


class LeaseLostError(Exception):
    """Another attempt holds the job now; the results of this one are dropped."""


class History:
    """Points of one attempt, at most `_MOST_POINTS`: every second one is dropped beyond that."""

    def __init__(self) -> None:
        self._points: list[dict[str, Any]] = []
        self._every = _FIRST_SECONDS
        self._next = 0.0
        self._lock = threading.Lock()

    def add(self, progress: Mapping[str, Any]) -> None:
        """Add a point where the last one is long enough ago; called from any thread."""
        now = time.monotonic()
        with self._lock:
            if now < self._next:
                return
            self._next = now + self._every
            self._points.append({name: progress[name] for name in _MEMBERS if name in progress})
            if len(self._points) > _MOST_POINTS:
                del self._points[1::2]
                self._every *= 2

    def save(self, folder: Path) -> None:
        """Write the points, where there are any."""
        with self._lock:
            if self._points:
                text = json.dumps({"points": finite(self._points)})
                (folder / HISTORY).write_text(text, encoding="utf-8")


class RecentOperations:
    """The last operations of each stage of a run, for a Gantt chart while it runs."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[tuple[float, float, int]]] = {}
        self._changed = False
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        """Keep one operation: start, end and work unit; called from any thread."""
        lane = f"{event.device} {event.stage}"
        operation = round(event.start, 4), round(event.end, 4), event.unit
        with self._lock:
            self._lanes.setdefault(lane, deque(maxlen=_MOST_OPERATIONS)).append(operation)
            self._changed = True

    def save(self, folder: Path) -> None:
        """Write the operations, where there are new ones."""
        with self._lock:
            if not self._changed:
                return
            self._changed = False
            lanes = {lane: list(operations) for lane, operations in self._lanes.items()}
        draft = folder / f"{OPERATIONS}.part"
        text = json.dumps({"most": _MOST_OPERATIONS, "lanes": lanes})
        draft.write_text(text, encoding="utf-8")
        draft.replace(folder / OPERATIONS)


class Heartbeat:
    """A thread of a job's process that runs until `stop`."""

    def __init__(
        self, settings: Settings, database: Database, held: Held, watchdog: Watchdog
    ) -> None:
        self.cancel = threading.Event()
        self.held = held
        self.history = History()
        self.operations = RecentOperations()
        self._settings = settings
        self._database = database
        self._watchdog = watchdog
        self._outage = OutageLog(log)
        self._progress: Mapping[str, Any] | None = None
        self._phase = ""
        #: Phases that are not stored yet, each with the second of its begin.
        self._entered: list[tuple[str, float]] = []
        self._storing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def note(self, progress: Mapping[str, Any]) -> None:
        """Keep the newest progress for the next renewal; called from any thread, never blocks."""
        self._note_phase(progress.get("phase"))
        self._progress = progress
        self.history.add(progress)

    def enter(self, phase: str) -> bool:
        """Store that a phase begins; say whether the lease is still held."""
        self._note_phase(phase)
        return self.outlast(self._store_phases)

    def _note_phase(self, phase: str | None) -> None:
        if phase is not None and phase != self._phase:
            self._phase = phase
            self._entered.append((phase, boot_seconds()))

    def _store_phases(self) -> bool:
        """Store the phases that began since the last call; say whether the lease is still held."""
        with self._storing:
            entered = list(self._entered)
            with self._database.write() as conn:
                now, clock = self._database.now(conn), boot_seconds()
                held = all(
                    self.held.enter(conn, now - (clock - began), phase) for phase, began in entered
                )
            del self._entered[: len(entered)]
        return held

    def finish(
        self,
        status: Status,
        message: str,
        kept: Callable[[sa.Connection], int],
        **values: Any,
    ) -> None:
        """Stop, and end the job; raise `LeaseLostError` where another attempt holds it.

        `kept` returns the bytes that the job keeps, in the transaction that ends it.
        """
        self.stop()

        def store() -> bool:
            with self._database.queue() as conn:
                now = self._database.now(conn)
                return self.held.finish(
                    conn, now, status, message, publication=None, disk_bytes=kept(conn), **values
                )

        if not self.outlast(store):
            raise LeaseLostError
        self._watchdog.retire()

    def stop(self) -> None:
        """End the thread and save the history; the lease runs on for the last transaction."""
        self._stop.set()
        folder = self._settings.job_dir(self.held.job_id)
        with suppress(OSError):
            self.history.save(folder)
            (folder / OPERATIONS).unlink(missing_ok=True)  # the Gantt picture replaces it
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self._entered:
            with suppress(sa.exc.SQLAlchemyError):
                self._store_phases()

    def _beat(self) -> None:
        renewed = told = 0.0
        while not self._stop.wait(_LISTEN_SECONDS):
            now = boot_seconds()
            news = self._progress if now - told >= _PROGRESS_SECONDS else None
            with suppress(OSError):
                self.operations.save(self._settings.job_dir(self.held.job_id))
            try:
                if news is not None or now - renewed >= self._settings.beat_seconds:
                    self._renew(news)
                    renewed, told = now, now if news is not None else told
                    if news is self._progress:
                        self._progress = None
                if self._entered and not self._store_phases():
                    _give_up()
                self._listen()
            except sa.exc.SQLAlchemyError as error:
                self._note_outage(error)

    def outlast(self, change: Callable[[], Result]) -> Result:
        """Run a change of the database; again, while that is away.

        So a result waits for the database as long as nobody else may compute it: for a lease. The
        change may run twice, as an answer can be lost after the commit.
        """
        until = boot_seconds() + self._settings.lease_seconds
        while True:
            try:
                changed = change()
            except DATABASE_ERRORS as error:
                self._note_outage(error)
                if boot_seconds() > until:
                    raise
                time.sleep(_LISTEN_SECONDS)
            else:
                self._outage.end()
                return changed

    def _note_outage(self, error: BaseException) -> None:
        """Remember the cause, in case the lease runs out."""
        self._watchdog.database_away = True
        self._outage.note(error)

    def _renew(self, news: Mapping[str, Any] | None) -> None:
        asked_at = boot_seconds()
        with self._database.write() as conn:
            now = self._database.now(conn)
            held = self.held.renew(conn, now, self._settings.lease_seconds, news)
        if not held:
            _give_up()
        self._watchdog.renewed(asked_at)
        self._outage.end()

    def _listen(self) -> None:
        with self._database.read() as conn:
            query = sa.select(Job.cancel).where(Job.id == self.held.job_id)
            if conn.execute(query).scalar():
                self.cancel.set()


def _give_up() -> NoReturn:
    """End this process, because another worker holds the job."""
    log.error("another worker holds this job now")
    os._exit(LEASE_LOST)
