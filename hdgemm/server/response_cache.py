"""Answers that many ask for at once: read once, given to all, for a moment."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from anyio import to_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_SECONDS: Final = 0.1
_MOST: Final = 4096

Key = TypeVar("Key", bound="Hashable")


class Recent(Generic[Key]):
    """Bytes by key, each at most `_SECONDS` old; whoever asks while they are read waits for them.

    A thousand watchers of one job cost ten reads a second. Only good answers are kept: an error
    goes to those who waited for it.
    """

    def __init__(self) -> None:
        self._known: dict[Key, tuple[float, asyncio.Future[bytes]]] = {}

    async def get(self, key: Key, read: Callable[[], bytes]) -> bytes:
        """Return the recent answer, or have `read` make it in a thread."""
        known = self._known.get(key)
        if known is not None and time.monotonic() < known[0]:
            return known[1].result() if known[1].done() else await asyncio.shield(known[1])
        if len(self._known) >= _MOST:
            self._known.clear()
        made: asyncio.Future[bytes] = asyncio.ensure_future(to_thread.run_sync(read))
        self._known[key] = time.monotonic() + _SECONDS, made
        try:
            return await asyncio.shield(made)
        except BaseException:
            self.forget(key)
            raise

    def forget(self, key: Key) -> None:
        """Read it anew for whoever asks next."""
        self._known.pop(key, None)
