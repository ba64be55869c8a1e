"""A job's own process, with its order on standard input.

The order is one line of JSON. The pipe closes when the supervisor dies, which ends the process.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.linalg import LinAlgError

from hdgemm.errors import CancelledRunError, DeviceError, DoesNotFitError, HdgemmError, InputError
from hdgemm.server import jobs
from hdgemm.server.attempt import Attempt
from hdgemm.server.backend import finite, load_library
from hdgemm.server.database import Database
from hdgemm.server.heartbeat import Heartbeat, LeaseLostError
from hdgemm.server.leases import Held
from hdgemm.server.problems import DATABASE_ERRORS, OutageLog
from hdgemm.server.publication import kept_bytes, sweep_up
from hdgemm.server.settings import Settings
from hdgemm.server.watchdog import (
    DATABASE_AWAY,
    LEASE_LOST,
    Watchdog,
    boot_seconds,
    die_with_parent,
    read_order,
)

if TYPE_CHECKING:
    from hdgemm.server.tables import Status

log = logging.getLogger("hdgemm.server.runner")
#: Characters of a message at most.
_LONGEST = 2000


def main() -> int:
    """Run the one job that standard input names; return the exit status."""
    order = read_order(sys.stdin.fileno())
    die_with_parent()  # after the order, which a forked process gets once the worker is its parent
    settings = Settings(**order["settings"])
    _give_way(settings.job_niceness)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    warnings.showwarning = _log_warning
    held = Held(order["job"], order["fence"])
    try:
        return _attempt(settings, Database(settings.url), held)
    except LeaseLostError:
        log.warning("another worker holds this job now")
        return LEASE_LOST
    except DATABASE_ERRORS as error:
        OutageLog(log).note(error)
        return DATABASE_AWAY


def _log_warning(message: Warning | str, *_rest: object, **_named: object) -> None:
    """Log a warning without the line of the program that it came from."""
    log.warning("%s", message)


def _attempt(settings: Settings, database: Database, held: Held) -> int:
    # Until here the worker renewed the lease.
    asked_at = boot_seconds()
    with database.write() as conn:
        if not held.renew(conn, database.now(conn), settings.lease_seconds, None):
            raise LeaseLostError
    watchdog = Watchdog(sys.stdin.fileno(), settings.lease_seconds, asked_at)
    heartbeat = Heartbeat(settings, database, held, watchdog)
    return _run(settings, database, heartbeat)


def _give_way(niceness: int) -> None:
    """Lower this process's priority below the server's, which has to answer while jobs run.

    Where the kernel groups sessions, niceness counts by group.
    """
    os.nice(niceness)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")


def _run(settings: Settings, database: Database, heartbeat: Heartbeat) -> int:
    with database.read() as conn:
        job = jobs.find(conn, heartbeat.held.job_id)
    if job is None or job.fence != heartbeat.held.fence:
        raise LeaseLostError
    log.info("attempt %d of job %s (%s)", job.fence, job.id, job.process)
    try:
        Attempt(settings, database, load_library(settings.library), job, heartbeat).run()
    except CancelledRunError as error:
        ending: tuple[Status, str, dict[str, Any] | None] = "dismissed", str(error), None
    except HdgemmError as error:
        log.error("%s", error)  # noqa: TRY400 - the message has no need of a traceback
        ending = "failed", str(error), describe(error)
    except (LeaseLostError, *DATABASE_ERRORS):
        raise
    except Exception as error:
        log.exception("the job failed")
        ending = "failed", f"{type(error).__name__}: {error}", describe(error)
    else:
        return 0
    status, message, described = ending
    heartbeat.finish(
        status,
        message[:_LONGEST],
        lambda conn: kept_bytes(conn, job, settings),
        error=described,
    )
    sweep_up(job, settings)
    return 0


def describe(error: BaseException) -> dict[str, Any]:
    """Return an error as a job shows it: origin (user or system), type, sentence and numbers."""
    by_user = isinstance(error, (InputError, DoesNotFitError, LinAlgError)) and not isinstance(
        error, DeviceError
    )
    numbers = error.numbers if isinstance(error, HdgemmError) else {}
    return {
        "origin": "user" if by_user else "system",
        "type": type(error).__name__,
        "detail": str(error) or type(error).__name__,
        "numbers": finite(numbers),
        "where": traceback.format_exception_only(error)[-1].strip(),
    }
