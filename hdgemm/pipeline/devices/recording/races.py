"""Order of enqueued operations: vector clocks over a device's queues.

An operation is ordered after everything before it in its own queue, after the completions that
it was given, and after what the host has waited for. Two accesses to the same bytes, one of them
a write, must be ordered; a correct order by chance is not enough.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from hdgemm.pipeline.devices.protocol import first_byte

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Block

Queue = Literal["upload", "gemm", "download"]
QUEUES: Final[tuple[Queue, ...]] = ("upload", "gemm", "download")
_INDEX: Final = {queue: index for index, queue in enumerate(QUEUES)}

#: How many operations of each queue precede an operation, itself included; in `QUEUES`' order.
VectorClock = tuple[int, int, int]


def checksum_of(source: NDArray[Any]) -> int:
    """Return a CRC that shows whether an array has changed."""
    return zlib.crc32(np.ascontiguousarray(source).data)


class Access(NamedTuple):
    """Bytes of a buffer that an enqueued operation reads or writes."""

    buffer: int
    first: int
    last: int
    writes: bool


def access(block: Block, *, writes: bool) -> Access:
    """Return the bytes that an operation on a block touches."""
    tile, first = block.tile, first_byte(block)
    elements = (block.rows - 1) * tile.ld + block.cols
    return Access(id(tile.buffer), first, first + elements * tile.dtype.itemsize, writes)


class RaceCheck:
    """Accesses of operations that can still be running; its caller holds a lock."""

    def __init__(self) -> None:
        self._pending: dict[int, list[tuple[Access, int, int]]] = {}  # by buffer
        self._seen: VectorClock = (0, 0, 0)
        self._last: dict[Queue, VectorClock] = dict.fromkeys(QUEUES, self._seen)

    def enqueue(
        self, queue: Queue, accesses: Iterable[Access], after: Iterable[VectorClock]
    ) -> VectorClock:
        """Check an operation against all that can still be running; return its clock.

        A conflicting operation that is not ordered before it is an `AssertionError`.
        """
        own = _INDEX[queue]
        clock = _merged(self._seen, self._last[queue])
        for earlier in after:
            clock = _merged(clock, earlier)
        own_number = clock[own] + 1
        for one in accesses:
            buffer, first, last, writes = one
            running = []
            for entry in self._pending.get(buffer, ()):
                other, index, number = entry
                if number <= self._seen[index]:
                    continue
                running.append(entry)
                overlap = other.first < last and first < other.last
                if overlap and (writes or other.writes) and number > clock[index]:
                    raise AssertionError(
                        f"race: {queue} {one} is not ordered after {QUEUES[index]} {other}"
                    )
            running.append((one, own, own_number))
            self._pending[buffer] = running
        counts = list(clock)
        counts[own] = own_number
        self._last[queue] = clock = (counts[0], counts[1], counts[2])
        return clock

    def seen(self, clock: VectorClock) -> None:
        """Note that the host waited for an operation: it precedes all that comes now."""
        self._seen = _merged(self._seen, clock)


def _merged(one: VectorClock, other: VectorClock) -> VectorClock:
    (a, b, c), (x, y, z) = one, other
    return max(x, a), max(y, b), max(z, c)
