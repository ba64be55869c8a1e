"""Ends of a rank: a supervisor that names it when it is killed, a deadline after a signal."""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

from hdgemm.server.watchdog import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.mpi.communicator import Communicator

#: Seconds before the rank ends, in which mpiexec reads its message: it drops unread output.
_MESSAGE_SECONDS: Final = 1.0
#: Signals that end a rank, and the seconds within which its main thread may end it in order.
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_GRACE_SECONDS: Final = 5.0


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
        with suppress(ProcessLookupError):
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
        _abort(128 - code)
    os._exit(code if code >= 0 else 128 - code)


def _abort(code: int) -> None:
    """Ask mpiexec to end all ranks (the command "abort" of PMI 1).

    It does so by itself only where this rank had begun MPI; otherwise the others would wait in its
    initialisation.
    """
    with suppress(KeyError, ValueError, OSError):
        os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={code}\n".encode())


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Within this block a signal ends the process without a handler of Python's.

    The initialisation of MPI holds the interpreter's lock: no thread can watch for signals.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class SignalDeadline:
    """Within this block, some seconds after a signal the process ends, and all of its `world`.

    Python runs the handler of a signal in the main thread between two instructions, which a call of
    MPI that waits for another rank never reaches. But it writes the signal's number to a file at
    once, which a thread reads here. Leaving the block in time cancels the end.
    """

    def __init__(self) -> None:
        self.world: Communicator | None = None
        self._left = threading.Event()

    def __enter__(self) -> Self:
        """Begin to watch for signals; called in the main thread, as leaving is."""
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        thread = threading.Thread(
            target=self._watch, args=(reading,), name="hdgemm-signals", daemon=True
        )
        thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._left.set()
        signal.set_wakeup_fd(self._before)
        os.close(self._writing)

    def _watch(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] in _ENDING:
                    if not self._left.wait(_GRACE_SECONDS):
                        self._end(signal.Signals(number[0]))
                    return

    def _end(self, number: signal.Signals) -> None:
        world, code = self.world, 128 + number
        where = f"rank {world.rank} on {platform.node()}" if world else platform.node()
        print(
            f"hdgemm: {where}: ended by {number.name}, {_GRACE_SECONDS:.0f} s after it: "
            "the process was blocked",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(_MESSAGE_SECONDS)
        if world is not None and world.threaded:
            # In a thread: MPI may hold a lock while another call of it waits.
            threading.Thread(target=world.abort, args=(code,), daemon=True).start()
            time.sleep(_MESSAGE_SECONDS)
        os._exit(code)
