"""Threads that are waited for to their very end, whatever interrupts the waiting."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


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
