"""Fork server of a worker: a process that has imported what jobs use, and forks one for each job.

A new interpreter takes most of a second to import the library, a fork some milliseconds. The fork
server is a child of the worker. It has one thread, opens neither database nor device, and ends with
its worker. A forked job becomes a child of the worker, which watches and kills it as any child: the
death of the fork server harms no job, and the worker starts another one for the next job.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn

from hdgemm.child_process import child_command
from hdgemm.server import runner
from hdgemm.server.backend import load_library
from hdgemm.server.permissions import PRIVATE
from hdgemm.server.watchdog import adopting_orphans, die_with_parent, name_process

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("hdgemm.server.worker")
#: Names of processes, as `ps` and `top` show them.
SERVER_NAME: Final = "hdgemm-fork"
JOB_NAME: Final = "hdgemm-job"
#: How long a fork may take: usual ones take milliseconds.
_ANSWER_SECONDS: Final = 20.0
#: Bytes of a message at most.
_LONGEST: Final = 32


@dataclass
class ForkedProcess:
    """A forked child of this process, with the names of `subprocess.Popen`."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end; return the exit status."""
        status = self._wait(0)
        assert status is not None  # noqa: S101 - it has ended
        return status

    def kill(self) -> None:
        """Send SIGKILL, where the process has not been waited for."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, flags: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


@dataclass
class JobProcess(ForkedProcess):
    """A job's process; `stdin` is its standard input."""

    stdin: BinaryIO = field(kw_only=True)


class ForkServer:
    """Starts processes of jobs by a fork server, and another fork server where that has died.

    Parameters
    ----------
    library
        The library of the jobs, as in `load_library`.
    by_fork
        Fork the first one from this process, which has imported most of it. Then this process has
        one thread and has opened no device, and its `main` ends with `SystemExit`.
    """

    def __init__(self, library: str, *, by_fork: bool = False) -> None:
        self._library = library
        self._begin(by_fork=by_fork)

    def _begin(self, *, by_fork: bool) -> None:
        self._ready = False
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ANSWER_SECONDS)
        with theirs:
            self._process = self._fork(theirs) if by_fork else self._execute(theirs)

    def _execute(self, requests: socket.socket) -> subprocess.Popen[bytes]:
        command = child_command(__name__, self._library)
        return subprocess.Popen(command, stdin=requests.fileno(), start_new_session=True)

    def _fork(self, requests: socket.socket) -> ForkedProcess:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(requests.fileno(), sys.stdin.fileno())
            requests.close()
            self._socket.close()
            raise SystemExit(_serve(self._library))
        return ForkedProcess(pid)

    def ready(self) -> bool:
        """Return whether the fork server has imported the library; replace one that has died."""
        if self._process.poll() is not None:
            log.warning("the fork server ended with %s; starting another", self._process.returncode)
            self.close()
            self._begin(by_fork=False)
        if not self._ready and select.select([self._socket], [], [], 0)[0]:
            self._ready = bool(self._socket.recv(_LONGEST))
        return self._ready

    def start(self, order: Mapping[str, Any], output: int) -> JobProcess:
        """Start a process that runs an order (see `runner`); it writes to the file `output`.

        Raises `OSError` where the fork server has died, or cannot fork.
        """
        reader, writer = os.pipe()
        stdin = os.fdopen(writer, "wb")
        try:
            with adopting_orphans():
                socket.send_fds(self._socket, [b"fork"], [reader, output])
                pid = int(self._socket.recv(_LONGEST) or _refuse())
        except OSError:
            self._process.kill()  # one that does not answer is replaced, too
            stdin.close()  # which ends a process that has been forked all the same
            raise
        finally:
            os.close(reader)
        with suppress(BrokenPipeError):  # it died at once, as its supervisor will see
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()
        return JobProcess(pid, stdin=stdin)

    def close(self) -> None:
        """End the fork server; the processes that it has forked go on."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def main() -> int:
    """Be the fork server of a library; return the exit status."""
    return _serve(sys.argv[1])


def _serve(library: str) -> int:
    """Fork a process for each request on standard input, a socket, until it closes.

    In a forked process it returns the exit status of the job.
    """
    die_with_parent()
    name_process(SERVER_NAME)
    os.umask(PRIVATE)
    load_library(library).preload()
    gc.freeze()  # the pages of what exists stay shared with the jobs
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as requests:
        requests.send(b"ready")
        while streams := socket.recv_fds(requests, _LONGEST, 2)[1]:
            pid = _fork_twice()
            if pid is None:
                break
            for each in streams:
                os.close(each)
            requests.send(b"%d" % pid)
    return _run_job(*streams) if streams else 0


def _refuse() -> NoReturn:
    raise ConnectionError("the fork server has ended, or cannot fork")


def _fork_twice() -> int | None:
    """Fork a grandchild that the worker adopts; return its number, and None within it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork():
            os._exit(0)
        os.setsid()
        os.write(writer, b"%d" % os.getpid())
        os.close(reader)
        os.close(writer)
        return None
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        os.waitpid(child, 0)  # from now on the grandchild is the worker's child
        return int(pipe.read() or _refuse())


def _run_job(order: int, output: int) -> int:
    name_process(JOB_NAME)
    for stream, place in ((order, 0), (output, 1), (output, 2)):
        os.dup2(stream, place)
    os.close(order)
    os.close(output)
    return runner.main()
