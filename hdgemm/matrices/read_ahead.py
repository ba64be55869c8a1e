"""Blocks of stored matrices read by threads while the block before them is used."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

#: Blocks of the stream in memory at once: one is multiplied, the next one is read.
STREAM_BUFFERS: Final = 2
#: Bytes that are read at once where memory allows them: a few of the largest disk requests.
BLOCK_BYTES: Final = 32 << 20
#: Bytes of the buffers of a whole stream, with one more block for what is computed from it.
STREAM_BYTES: Final = (STREAM_BUFFERS + 1) * BLOCK_BYTES
_Item = TypeVar("_Item")
_Block = TypeVar("_Block")


class ReadAhead:
    """Context with threads that read blocks into `STREAM_BUFFERS` buffers in turn."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(STREAM_BUFFERS, "hdgemm-read-ahead")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads, after the reads that have begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def blocks(
        self, items: Sequence[_Item], read: Callable[[_Item, int], _Block]
    ) -> Iterator[_Block]:
        """Yield ``read(item, buffer)`` for each item, in order; `buffer` is a number.

        A block stays as it is until the next one is asked for.
        """
        reads: deque[Future[_Block]] = deque()
        for number, item in enumerate(items):
            if len(reads) == STREAM_BUFFERS:
                yield reads.popleft().result()
            reads.append(self._pool.submit(read, item, number % STREAM_BUFFERS))
        while reads:
            yield reads.popleft().result()
