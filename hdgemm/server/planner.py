"""Planning in child processes, which have a memory limit and can be killed.

Such a child calls `main` of this module, with the file descriptor of a pipe whose requests it
answers.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from hdgemm.child_process import child_command
from hdgemm.errors import CancelledRunError, HdgemmError, InputError

if TYPE_CHECKING:
    from hdgemm.options import Options
    from hdgemm.server.backend import Demand, Problem

#: How long a plan may take: usual ones take milliseconds.
_SECONDS: Final = 15.0
#: How long a child may take to start.
_START_SECONDS: Final = 60.0
#: Bytes of data that a child may hold.
_MEMORY: Final = 2 << 30
_IDLE: Final = 2
_LOOK_SECONDS: Final = 0.05


class _Child:
    """A planning process and the pipe to it; the process ends when the pipe is closed."""

    def __init__(self) -> None:
        self.started = False
        self.pipe, theirs = Pipe()
        with theirs:
            fd = theirs.fileno()
            self.process = subprocess.Popen(
                child_command(__name__, str(fd)), stdin=subprocess.DEVNULL, pass_fds=(fd,)
            )

    def close(self) -> None:
        self.pipe.close()
        self.process.wait()


class Planner:
    """Plans in child processes; those that finished wait for the next request.

    Parameters
    ----------
    seconds
        How long one plan may take.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._idle: list[_Child] = []
        self._lock = threading.Lock()

    def plan(self, problem: Problem, options: Options, cancel: threading.Event) -> Demand:
        """Return the plan's demand.

        Raises `HdgemmError` where the library refuses, and for a plan that takes too much time or
        memory; `CancelledRunError` once `cancel` is set.
        """
        child = self._take()
        try:
            answer = self._ask(child, (problem, options), cancel)
        except BaseException:
            child.process.kill()
            child.close()
            raise
        with self._lock:
            keep = len(self._idle) < _IDLE
            if keep:
                self._idle.append(child)
        if not keep:
            child.close()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """End the idle children."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def _take(self) -> _Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.process.poll() is None:
                    return child
                child.close()
        return _Child()

    def _ask(
        self, child: _Child, request: object, cancel: threading.Event
    ) -> Demand | BaseException:
        try:
            if not child.started:
                _receive(child.pipe, _START_SECONDS, cancel)
                child.started = True
            child.pipe.send(request)
            answer: Demand | BaseException = _receive(child.pipe, self._seconds, cancel)
        except (EOFError, ConnectionError):
            raise InputError(
                f"the planner ended before it had a plan, within {_MEMORY} bytes of memory: "
                "choose a larger tile, or none",
                memory=_MEMORY,
            ) from None
        return answer


def _receive(pipe: Connection[Any, Any], seconds: float, cancel: threading.Event) -> Any:
    until = time.monotonic() + seconds
    while not pipe.poll(_LOOK_SECONDS):
        if cancel.is_set():
            raise CancelledRunError("planning was cancelled: the client disconnected")
        if time.monotonic() > until:
            raise InputError(
                f"planning took more than {seconds:g} seconds: choose a larger tile, "
                "or none, or try again when the machine is less busy",
                seconds=seconds,
            )
    return pipe.recv()


def _answer(problem: Problem, options: Options) -> Demand | Exception:
    """Return a plan's demand, or the error that the server raises."""
    from hdgemm.server.plans import plan_problem

    try:
        return plan_problem(problem, options)
    except HdgemmError as error:  # a DoesNotFitError is a MemoryError, too
        return error
    except MemoryError:
        return InputError(
            f"the plan needs more than {_MEMORY} bytes of memory to make: choose a larger tile, "
            "or none",
            memory=_MEMORY,
        )
    except Exception as error:  # noqa: BLE001 - it is raised again by the server
        return RuntimeError(repr(error))


def main() -> None:
    """Plan until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe: Connection[Any, Any] = Connection(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    import hdgemm.linalg.routines
    import hdgemm.preflight
    import hdgemm.server.plans  # noqa: F401 - the deadline of a plan has no imports in it

    try:
        pipe.send(None)
        while True:
            problem, options = pipe.recv()
            pipe.send(_answer(problem, options))
    except (EOFError, ConnectionError):
        return
