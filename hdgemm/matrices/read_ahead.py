"""Blocks of stored matrices, read by threads ahead of their use or written behind it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeVar

from hdgemm.matrices.transfer import array_at
from hdgemm.threads import Origin, WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hdgemm.matrices.base import Operand
    from hdgemm.threads import Call

#: Blocks of the stream in memory at once: one is multiplied, the next one is read.
STREAM_BUFFERS: Final = 2
#: Blocks of results in memory at once: one is computed, the one before it is written.
RESULT_BUFFERS: Final = 2
#: Bytes that are read at once where memory allows them: a few of the largest disk requests.
BLOCK_BYTES: Final = 32 << 20
#: Bytes of the buffers of a whole stream, with one more block for what is computed from it.
STREAM_BYTES: Final = (STREAM_BUFFERS + 1) * BLOCK_BYTES
_Item = TypeVar("_Item")
_Block = TypeVar("_Block")


class ReadAhead:
    """Context with threads that read blocks into `STREAM_BUFFERS` buffers in turn."""

    def __init__(self) -> None:
        self._pool = WorkerPool(STREAM_BUFFERS, "hdgemm-read-ahead")
        self._origin = Origin("iterator of blocks")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads, after the reads that have begun."""
        if self._origin.here:
            self._pool.close()

    def blocks(
        self, items: Sequence[_Item], read: Callable[[_Item, int], _Block]
    ) -> Iterator[_Block]:
        """Yield ``read(item, buffer)`` for each item, in order; `buffer` is a number.

        A block stays as it is until the next one is asked for.
        """
        reads: deque[Call[_Block]] = deque()
        for number, item in enumerate(items):
            if len(reads) == STREAM_BUFFERS:
                yield reads.popleft().result()
                self._origin.check()
            reads.append(self._pool.submit(read, item, number % STREAM_BUFFERS))
        while reads:
            yield reads.popleft().result()
            self._origin.check()


class WriteBehind:
    """Context with a thread that writes one block while the next one is computed."""

    def __init__(self) -> None:
        self._pool = WorkerPool(1, "hdgemm-write-behind")
        self._last: Call[object] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        try:
            if error is None:
                self.wait()
        finally:
            self._pool.close()

    def begin(self, write: Callable[[], object]) -> None:
        """Begin to write a block when the last one is written; raise the last one's error."""
        self.wait()
        self._last = self._pool.submit(write)

    def wait(self) -> None:
        """Return when the last block is written, or raise its error."""
        last, self._last = self._last, None
        if last is not None:
            last.result()


class _Part(Protocol):
    """The fields of a stored matrix that a layout in memory depends on."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def order(self) -> str: ...
    @property
    def operand(self) -> Operand: ...


def array_in(memory: NDArray[np.uint8], part: _Part, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Lay out an array for a part of a matrix in a buffer, in the order that the part has."""
    order: Literal["C", "F"] = "F" if part.order == "F" else "C"
    return array_at(memory, part.shape, dtype, part.operand.matrix.phase(0, 0), order)
