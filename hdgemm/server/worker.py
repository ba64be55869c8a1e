"""Claims jobs and runs each in its own process."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from hdgemm.server import jobs, leases, watchdog
from hdgemm.server.capacity import Capacity
from hdgemm.server.database import Database, open_database
from hdgemm.server.fork_server import ForkServer
from hdgemm.server.job_process import Child, log_event, start
from hdgemm.server.load import LoadMeter
from hdgemm.server.permissions import PRIVATE
from hdgemm.server.problems import OutageLog
from hdgemm.server.publication import count_pictures, kept_bytes, sweep_up
from hdgemm.server.settings import Settings
from hdgemm.server.tables import Job, WorkerRow, new_id
from hdgemm.units import format_size

if TYPE_CHECKING:
    from hdgemm.server.tables import Status

log = logging.getLogger("hdgemm.server.worker")
#: Name of a worker's process that `hdgemm serve` has started.
WORKER_NAME: Final = "hdgemm-worker"
#: A cancelled job that has not stopped by itself after so many seconds is killed.
_STOP_SECONDS: Final = 30.0
_STOP_SOONER: Final = {"verify": 1.0, "profile": 5.0}
_SWEEP_SECONDS: Final = 2.0
#: Seconds between two looks for pictures that dead workers left uncounted.
_COUNT_SECONDS: Final = 60.0
#: Processes of finished jobs that may draw pictures beside the running jobs.
_MOST_DRAWING: Final = 2
_EXPIRED_AT_ONCE: Final = 100
_AWAY: Final = "the database could not be reached, or its disk was full"


class Worker:
    """Supervises the jobs of one machine, until `stop` is set."""

    def __init__(self, settings: Settings, database: Database, fork_server: ForkServer) -> None:
        self.stop = threading.Event()
        self.name = f"{socket.gethostname()}:{os.getpid()}:{new_id()[:8]}"
        self._settings = settings
        self._database = database
        self._fork_server = fork_server
        self._children: dict[str, Child] = {}
        self._observer = leases.LeaseObserver(settings.lease_seconds, settings.max_attempts)
        self._load = LoadMeter(self.name, settings)
        self._next_sweep = 0.0
        self._next_count = 0.0
        self._swept = time.monotonic()

    def run(self) -> None:
        """Run jobs until asked to stop; then wait for the grace period and return the rest."""
        log.info("worker %s: %s of memory, devices %s", self.name,
                 format_size(self._settings.memory), ", ".join(self._settings.devices))  # fmt: skip
        outage = OutageLog(log)
        while not self.stop.is_set():
            try:
                self._turn()
            except sa.exc.SQLAlchemyError as error:
                outage.note(error)
                self._kill_hung()
            else:
                outage.end()
            self.stop.wait(self._settings.poll_seconds)
        self._leave()

    def _turn(self) -> None:
        self._reap()
        if time.monotonic() >= self._next_sweep:
            self._sweep()
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
        while not self.stop.is_set() and self._start_one():
            pass
        self._load.note(self._settings.devices if "auto" in self._busy else self._busy)

    def _sweep(self) -> None:
        """Register, queue the jobs of dead workers again, kill processes that do not stop."""
        self._database.fill_reserve()
        with self._database.write() as conn:
            now = self._database.now(conn)
            self._register(conn, now)
            conn.execute(sa.delete(WorkerRow).where(WorkerRow.seen < now - 60))
            for child in self._children.values():
                if time.monotonic() < child.start_until:
                    child.held.renew_start(conn, now, self._settings.lease_seconds)
            self._observer.take_back(conn, now, watchdog.boot_seconds())
            self._load.store(conn, now)
        self._kill_unresponsive()
        self._expire()
        if time.monotonic() >= self._next_count:
            self._count_left_pictures()
            self._next_count = time.monotonic() + _COUNT_SECONDS
        self._swept = time.monotonic()

    def _kill_hung(self) -> None:
        """Kill processes that outlived their leases while the database could not be reached.

        A stopped process may even be what locks the database; a running one would have ended.
        """
        if time.monotonic() - self._swept > 2 * self._settings.lease_seconds:
            for child in self._children.values():
                if child.process.poll() is None:
                    child.cause = _AWAY
                    child.kill()

    def _expire(self) -> None:
        """Delete the jobs that are past their retention time."""
        retention = self._settings.retention_seconds
        if retention is None:
            return
        with self._database.queue() as conn:
            ids = jobs.expire(conn, retention, _EXPIRED_AT_ONCE, self._database.now(conn))
        for job_id in ids:
            shutil.rmtree(self._settings.job_dir(job_id), ignore_errors=True)

    def _count_left_pictures(self) -> None:
        """Count what finished jobs keep whose pictures were drawn as their workers died."""
        with self._database.read() as conn:
            left = jobs.uncounted(conn)
        for job_id in left:
            count_pictures(self._database, job_id, self._settings)

    def _register(self, conn: sa.Connection, now: float) -> None:
        seen = sa.update(WorkerRow).where(WorkerRow.id == self.name).values(seen=now)
        if conn.execute(seen).rowcount == 0:
            conn.execute(
                sa.insert(WorkerRow).values(
                    id=self.name, host=socket.gethostname(), pid=os.getpid(),
                    memory=self._settings.memory, devices=list(self._settings.devices),
                    started=now, seen=now,
                )
            )  # fmt: skip

    def _kill_unresponsive(self) -> None:
        with self._database.read() as conn:
            query = sa.select(Job.id).where(Job.id.in_(list(self._children)), Job.cancel.is_(True))
            cancelled = set(conn.execute(query).scalars())
            lost = leases.lost(conn, [child.held for child in self._children.values()])
        for job_id in lost:
            # It hangs, or it would have ended itself; the device is needed for the next job.
            log.warning("job %s: its lease is over; killing its process", job_id)
            self._children[job_id].kill()
        for job_id in cancelled - lost:
            child = self._children[job_id]
            child.asked_to_stop = child.asked_to_stop or time.monotonic()
            limit = _STOP_SOONER.get(child.job.process, _STOP_SECONDS)
            if time.monotonic() - child.asked_to_stop > limit:
                child.kill()
                self._end(child, "dismissed", "cancelled: its process was killed")

    def _end(self, child: Child, status: Status, message: str, **values: Any) -> None:
        """Write a dead process's end into its job, and remove the files that it left."""
        with self._database.write() as conn:
            now, kept = self._database.now(conn), kept_bytes(conn, child.job, self._settings)
            held = child.held.finish(conn, now, status, message, disk_bytes=kept, **values)
        if held:
            sweep_up(child.job, self._settings)

    def _note_drawing(self, conn: sa.Connection) -> None:
        """Note which processes only draw pictures; their devices and memory are free for others."""
        query = sa.select(Job.id).where(Job.id.in_(list(self._children)), Job.finished.is_not(None))
        for job_id in [*conn.execute(query.order_by(Job.finished)).scalars()][:_MOST_DRAWING]:
            self._children[job_id].drawing = True

    @property
    def _busy(self) -> set[str]:
        """The devices that running jobs hold; "auto" stands for all."""
        holding = (child.job for child in self._children.values() if not child.drawing)
        return {device for job in holding for device in job.devices}

    def _start_one(self) -> bool:
        settings = self._settings
        if not self._fork_server.ready():
            return False
        with self._database.read() as conn:
            if not conn.execute(sa.select(Job.id).where(Job.status == "accepted").limit(1)).all():
                return False
            self._note_drawing(conn)
        running = [child.job for child in self._children.values() if not child.drawing]
        capacity = Capacity.of(self.name, settings.memory, settings.devices, running)
        if not capacity.idle_devices:
            return False
        with self._database.queue() as conn:
            now = self._database.now(conn)
            job = leases.claim(conn, capacity, self._settings.lease_seconds, now)
        if job is None:
            return False
        try:
            self._children[job.id] = start(job, self._settings, self._fork_server)
        except OSError as error:
            self._hand_back(job, f"no process for it: {error}; queued again")
            return False
        return True

    def _hand_back(self, job: Job, message: str) -> None:
        log.warning("job %s: %s", job.id, message)
        with self._database.write() as conn:
            held = leases.Held(job.id, job.fence)
            held.hand_back(conn, self._database.now(conn), message, crashed=False)

    def _reap(self) -> None:
        for job_id, child in list(self._children.items()):
            status = child.process.poll()
            if status is None:
                continue
            if not child.ended:
                child.ended = True
                child.process.stdin.close()
                child.kill()
                if status == watchdog.LEASE_LOST:
                    log.warning("job %s: lost its lease", job_id)
            self._settle(child, status)  # while the database is away, in the next turn again
            count_pictures(self._database, job_id, self._settings)
            del self._children[job_id]
            self._log_end(child, status)

    def _log_end(self, child: Child, status: int) -> None:
        with self._database.read() as conn:
            job = jobs.find(conn, child.job.id)
        if job is not None:
            log_event(
                "job_end", job=job.id, process=job.process, attempt=child.job.fence,
                status=job.status, exit=status, message=job.message,
                seconds=round(job.updated - child.job.updated, 3),
                gflops=(job.report or {}).get("gflops"),
            )  # fmt: skip

    def _settle(self, child: Child, status: int) -> None:
        """Queue a job again that has not ended with its process; fail it after too many deaths."""
        cause = child.cause or (_AWAY if status == watchdog.DATABASE_AWAY else "")
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        with self._database.write() as conn:
            now = self._database.now(conn)
            if cause:
                child.held.hand_back(conn, now, f"{cause}; queued again", crashed=False)
                return
            crashes = conn.execute(sa.select(Job.crashes).where(Job.id == child.job.id)).scalar()
            if (crashes or 0) + 1 < self._settings.max_crashes:
                message = f"its process died ({how}); queued again"
                child.held.hand_back(conn, now, message, crashed=True)
                return
        detail = f"its process died {(crashes or 0) + 1} times, the last time by {how}"
        error = {"origin": "system", "type": "process-died", "detail": detail}
        self._end(child, "failed", detail, error=error)

    def _leave(self) -> None:
        until = time.monotonic() + self._settings.grace_seconds
        while self._children and time.monotonic() < until:
            self._reap()
            time.sleep(0.1)
        for child in self._children.values():
            child.kill()
            with self._database.write() as conn:
                message = "its worker was shut down; queued again"
                child.held.hand_back(conn, self._database.now(conn), message, crashed=False)
            self._log_end(child, child.process.wait())
        with self._database.write() as conn:
            conn.execute(sa.delete(WorkerRow).where(WorkerRow.id == self.name))
        log.info("worker %s: left", self.name)


def run_worker(settings: Settings, fork_server: ForkServer | None = None) -> None:
    """Work in this process until SIGTERM or SIGINT."""
    os.umask(PRIVATE)
    fork_server = fork_server or ForkServer(settings.library)
    with closing(fork_server):
        worker = Worker(settings, open_database(settings), fork_server)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: worker.stop.set())
        worker.run()


def main() -> None:
    """Work as a child of `hdgemm serve`: its settings come, and its end shows, on stdin."""
    watchdog.die_with_parent()
    watchdog.name_process(WORKER_NAME)
    settings = Settings(**watchdog.read_order(sys.stdin.fileno()))
    watchdog.end_orphan(sys.stdin.fileno())
    fork_server = ForkServer(settings.library, by_fork=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run_worker(settings, fork_server)
