"""Answers that requests with one key share for a moment."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from anyio import to_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_CACHE_SECONDS: Final = 0.1
_CACHE_ENTRIES: Final = 4096

Key = TypeVar("Key", bound="Hashable")


class CoalescingCache(Generic[Key]):
    """Request-coalescing cache: requests with one key within 100 ms share one read.

    A thousand watchers of one job cost ten reads a second. Errors go to the requests that waited
    for the read; they are not cached.
    """

    def __init__(self, seconds: float = _CACHE_SECONDS) -> None:
        self._seconds = seconds
        self._known: dict[Key, tuple[float, asyncio.Future[bytes]]] = {}

    async def get(self, key: Key, read: Callable[[], bytes]) -> bytes:
        """Return the cached answer, or have `read` make it in a thread."""
        known = self._known.get(key)
        if known is not None and not known[1].done():
            return await asyncio.shield(known[1])
        if known is not None and time.monotonic() < known[0]:
            return known[1].result()
        if len(self._known) >= _CACHE_ENTRIES:
            self._known.clear()
        made: asyncio.Future[bytes] = asyncio.ensure_future(to_thread.run_sync(read))
        self._known[key] = time.monotonic() + self._seconds, made
        try:
            return await asyncio.shield(made)
        except Exception:
            self.forget(key)
            raise

    def forget(self, key: Key) -> None:
        """Read it anew at the next request."""
        self._known.pop(key, None)
