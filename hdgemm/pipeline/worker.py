"""Threads that are waited for to their very end, whatever interrupts the waiting."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Worker(threading.Thread):
    """A daemon thread that says itself when it has ended.

    An interrupted `Thread.join` may take a thread that still runs for one that has ended
    (bpo-45274, up to Python 3.12); whoever then frees the memory that it works on crashes.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._ended = threading.Event()

    def run(self) -> None:
        """Call the target."""
        try:
            super().run()
        finally:
            self._ended.set()

    @property
    def working(self) -> bool:
        """Whether it was started and has not come to its end."""
        return self.ident is not None and not self._ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end, for so many seconds at most; may be interrupted and called again."""
        self._ended.wait(timeout)


def run_all(
    workers: Sequence[Worker],
    *,
    look: Callable[[], object],
    interval: float,
    stop: Callable[[BaseException], object],
) -> None:
    """Start workers and return when all have ended.

    Parameters
    ----------
    look
        Called about every `interval` seconds meanwhile.
    stop
        Given what interrupts the start or the waiting; it must make all end, and keep the error.
    """
    try:
        for worker in workers:
            worker.start()
    except BaseException as error:  # noqa: BLE001  (raised when those that run have stopped)
        stop(error)
    for worker in workers:
        while worker.working:
            try:
                worker.wait(interval)
                look()
            except BaseException as error:  # noqa: BLE001  (Ctrl-C: end all, then raise it)
                stop(error)
