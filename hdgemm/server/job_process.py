"""A job's process, as its worker starts, watches and kills it."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hdgemm.server import leases

if TYPE_CHECKING:
    from hdgemm.server.fork_server import ForkServer, JobProcess
    from hdgemm.server.settings import Settings
    from hdgemm.server.tables import Job

log = logging.getLogger("hdgemm.server.worker")
#: A job's process that has not renewed its lease after so long hangs.
_START_SECONDS: Final = 60.0


@dataclass
class Child:
    """A job's process.

    Parameters
    ----------
    start_until
        Until then the worker renews the lease of a process that has not begun to do so.
    asked_to_stop
        When it was first seen to be asked to stop.
    ended
        Whether the process is known to have ended; then its job is to be settled.
    drawing
        Whether its job has ended, and it only draws pictures.
    cause
        Why the worker killed it, where the job is not to blame.
    """

    job: Job
    process: JobProcess
    start_until: float = 0.0
    asked_to_stop: float | None = None
    ended: bool = False
    drawing: bool = False
    cause: str = ""

    @property
    def held(self) -> leases.Held:
        """The right to write about this attempt."""
        return leases.Held(self.job.id, self.job.fence)

    def kill(self) -> None:
        """Kill the process and all it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(job: Job, settings: Settings, fork_server: ForkServer) -> Child:
    """Start the process of a claimed job; its output goes to the job's log."""
    folder = settings.job_dir(job.id)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    order = {"job": job.id, "fence": job.fence, "settings": settings.model_dump(mode="json")}
    with (folder / "log.txt").open("ab") as output:
        process = fork_server.start(order, output.fileno())
    log_event(
        "job_start", job=job.id, process=job.process, attempt=job.fence, owner=job.owner,
        priority=job.priority, pid=process.pid, devices=job.devices, bytes=job.host_bytes,
        waited_seconds=round(job.updated - job.created, 3),
    )  # fmt: skip
    return Child(job, process, time.monotonic() + _START_SECONDS)


def log_event(event: str, **fields: Any) -> None:
    """Log one line of JSON."""
    log.info("%s", json.dumps({"event": event, **fields}))
