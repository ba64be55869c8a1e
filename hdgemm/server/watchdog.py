"""Ends a job's process when its supervisor dies or its lease runs out."""

from __future__ import annotations

import ctypes
import json
import math
import os
import select
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from hdgemm.child_process import child_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Exit statuses of a job's process that ends without writing to its job.
ORPHANED: Final = 74
LEASE_LOST: Final = 75
DATABASE_AWAY: Final = 76
# Of <linux/prctl.h>.
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    It works on a process that is stopped or hangs in C code, where the pipe's watcher cannot run.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def name_process(name: str) -> None:
    """Give this process a name of at most 15 characters, which `ps` and `top` show."""
    _prctl(_PR_SET_NAME, name.encode())


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Become the parent of descendants that lose theirs within the block."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _prctl(option: int, value: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value!r}): {os.strerror(number)}")


def boot_seconds() -> float:
    """Return a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_with_order(
    module: str, order: Mapping[str, Any], **options: Any
) -> subprocess.Popen[bytes]:
    """Start a module as a child that ends with its pipe, and send its order; see `read_order`."""
    process = subprocess.Popen(child_command(module), stdin=subprocess.PIPE, **options)
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    with suppress(BrokenPipeError):  # it died at once, as its supervisor will see
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    return process


def read_order(pipe: int) -> dict[str, Any]:
    """Read the one line of JSON that a supervisor sends first, and not a byte more.

    Raises `SystemExit` when the supervisor died before.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(pipe, 1)
        if not byte:
            raise SystemExit(ORPHANED)
        line += byte
    order: dict[str, Any] = json.loads(line)
    return order


def end_orphan(pipe: int) -> None:
    """End this process where its supervisor died before it called `die_with_parent`.

    The order was in the pipe already, which is closed now.
    """
    if select.select([pipe], [], [], 0)[0] and not os.read(pipe, 1):
        raise SystemExit(ORPHANED)


class Watchdog:
    """Ends this process when a pipe closes, or when the lease ran out unrenewed.

    The lease is counted from before the renewal was sent, so that this process always gives up
    before the database calls the lease expired.

    Parameters
    ----------
    pipe
        The read end of a pipe; the supervisor alone holds the write end.
    lease_seconds
        How long a lease lasts.
    asked_at
        When the supervisor asked for the lease, by `boot_seconds`.
    """

    def __init__(self, pipe: int, lease_seconds: float, asked_at: float) -> None:
        self._pipe = pipe
        self._lease = lease_seconds
        self._until = asked_at + lease_seconds
        #: Set while the database does not answer: the cause, where the lease then runs out.
        self.database_away = False
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def renewed(self, asked_at: float) -> None:
        """Note that the lease was renewed by a request sent at `asked_at` (`boot_seconds`)."""
        self._until = asked_at + self._lease
        self.database_away = False

    def retire(self) -> None:
        """Note that the job has ended: from now on only a closed pipe ends this process."""
        self._until = math.inf

    def _watch(self) -> None:
        while True:
            readable, _, _ = select.select([self._pipe], [], [], 0.5)
            if readable and not os.read(self._pipe, 4096):
                os._exit(ORPHANED)
            if boot_seconds() > self._until - 1.0:
                os._exit(DATABASE_AWAY if self.database_away else LEASE_LOST)
