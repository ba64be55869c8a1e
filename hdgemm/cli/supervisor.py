"""Supervisor of a rank: a process that names the rank when it is killed."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import time
from typing import Final

from hdgemm.server.watchdog import die_with_parent

#: Seconds before the rank ends, in which mpiexec reads its message: it drops unread output.
_MESSAGE_SECONDS: Final = 1.0


def supervise() -> None:
    """Continue in a child of this process, which waits for it and names it when it is killed.

    MPICH's mpiexec ends all ranks as soon as the connection of one closes, and then reports any of
    them, often another one. This process keeps the connection open until it has printed the rank.
    Open MPI's mpiexec names the rank itself; without mpiexec nothing happens.
    """
    if os.environ.get("PMI_SIZE", "1") == "1" or sys.platform != "linux":
        return
    child = os.fork()
    if child == 0:
        die_with_parent()
        return

    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # mpiexec sends it to the child, too
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        rank, killer = os.environ.get("PMI_RANK", "?"), signal.Signals(-code).name
        where = f"hdgemm: rank {rank} on {platform.node()}"
        print(f"{where}: process {child} was ended by {killer}", file=sys.stderr, flush=True)
        time.sleep(_MESSAGE_SECONDS)
    os._exit(code if code >= 0 else 128 - code)
