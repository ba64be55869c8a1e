"""Planning in child processes, which have a memory limit and can be killed.

`python -m hdgemm.server.planner` is such a child: it reads pickled requests from standard input and
writes pickled answers to standard output, each after its length in eight bytes.
"""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from hdgemm.errors import CancelledRunError, HdgemmError, InputError

if TYPE_CHECKING:
    from hdgemm.options import Options
    from hdgemm.server.backend import Demand, Problem, RoutineProblem

_SECONDS: Final = 20.0
_MEMORY: Final = 2 << 30
_IDLE: Final = 2
_LOOK_SECONDS: Final = 0.05


class Planner:
    """Plans in child processes; those that finished wait for the next request.

    Parameters
    ----------
    seconds
        How long one plan may take.
    memory
        Bytes of data that a child may hold.
    """

    def __init__(self, seconds: float = _SECONDS, memory: int = _MEMORY) -> None:
        self._seconds, self._memory = seconds, memory
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def plan(
        self, problem: Problem | RoutineProblem, options: Options, cancel: threading.Event
    ) -> Demand:
        """Return the plan's demand.

        Raises
        ------
        HdgemmError
            What the library refuses, a plan that takes too much time or memory, and a
            `CancelledRunError` once `cancel` is set.
        """
        child = self._take()
        try:
            answer = self._ask(child, (problem, options), cancel)
        except BaseException:
            child.kill()
            child.communicate()
            raise
        self._give_back(child)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """End the idle children."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.communicate()

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.poll() is None:
                    return child
                child.communicate()
        return subprocess.Popen(
            [sys.executable, "-m", "hdgemm.server.planner", str(self._memory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def _give_back(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            if len(self._idle) < _IDLE:
                self._idle.append(child)
                return
        child.communicate()

    def _ask(
        self, child: subprocess.Popen[bytes], request: object, cancel: threading.Event
    ) -> Demand | BaseException:
        until = time.monotonic() + self._seconds
        assert child.stdin is not None  # noqa: S101 - both are pipes
        assert child.stdout is not None  # noqa: S101
        try:
            _write(child.stdin, request)
            while not select.select([child.stdout], [], [], _LOOK_SECONDS)[0]:
                if cancel.is_set():
                    raise CancelledRunError("planning was cancelled: the client disconnected")
                if time.monotonic() > until:
                    raise InputError(
                        f"planning took more than {self._seconds:g} seconds: choose a larger tile, "
                        "or none, or try again when the machine is less busy",
                        seconds=self._seconds,
                    )
            answer: Demand | BaseException = _read(child.stdout)
        except (EOFError, BrokenPipeError):
            raise InputError(
                f"the planner ended before it had a plan, within {self._memory} bytes of memory: "
                "choose a larger tile, or none",
                memory=self._memory,
            ) from None
        return answer


def _write(stream: BinaryIO | Any, value: object) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def _read(stream: BinaryIO | Any) -> Any:
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    return pickle.loads(stream.read(int.from_bytes(header, "little")))  # noqa: S301 - our own child


def main() -> None:
    """Plan until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    # Drivers may print to standard output.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from hdgemm.server.hdgemm_backend import plan_problem

    while True:
        try:
            problem, options = _read(sys.stdin.buffer)
        except EOFError:
            return
        answer: object
        try:
            answer = plan_problem(problem, options)
        except MemoryError as error:
            # The library's DoesNotFitError is one, with its numbers.
            answer = error if isinstance(error, HdgemmError) else _out_of_memory(memory)
        except Exception as error:  # noqa: BLE001 - it is raised again by the server
            answer = error if isinstance(error, HdgemmError) else RuntimeError(repr(error))
        _write(answers, answer)


def _out_of_memory(memory: int) -> InputError:
    return InputError(
        f"the plan needs more than {memory} bytes of memory to make: choose a larger tile, or none",
        memory=memory,
    )


if __name__ == "__main__":
    main()
