"""Which operations are ordered: vector clocks over a device's queues.

An operation is ordered after everything before it in its own queue, after what it was told to
wait for, and after what the host has waited for. Two accesses to the same bytes, one of them a
write, must be ordered; coming out in the right order by luck is not enough.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hdgemm.pipeline.devices.dense import first_byte, last_byte

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Block

Kind = Literal["allocate", "allocate_staging", "upload", "gemm", "download"]

#: How many operations of each queue precede an operation, itself included.
Clock = dict[Kind, int]


def checksum_of(source: NDArray[Any]) -> int:
    """Return a checksum by which a change shows."""
    return zlib.crc32(np.ascontiguousarray(source).tobytes())


class Access(NamedTuple):
    """Bytes of a buffer that an enqueued operation reads or writes."""

    buffer: int
    first: int
    last: int
    writes: bool

    def conflicts(self, other: Access) -> bool:
        """Say whether the two must be ordered."""
        return (
            self.buffer == other.buffer
            and (self.writes or other.writes)
            and self.first < other.last
            and other.first < self.last
        )


def access(block: Block, *, writes: bool) -> Access:
    """Return the bytes that an operation on a block touches."""
    return Access(id(block.tile.buffer), first_byte(block), last_byte(block), writes)


class RaceCheck:
    """Remembers what is enqueued and not known to be finished; not thread-safe by itself."""

    def __init__(self) -> None:
        self._pending: list[tuple[Access, Kind, int]] = []
        self._seen: Clock = {}
        self._last: dict[Kind, Clock] = {}

    def order(self, kind: Kind, after: Iterable[Clock]) -> Clock:
        """Return the clock of the next operation of a queue."""
        clock: Clock = {}
        for earlier in (self._seen, self._last.get(kind, {}), *after):
            _merge(clock, earlier)
        clock[kind] = clock.get(kind, 0) + 1
        self._last[kind] = clock
        return clock

    def enqueue(self, kind: Kind, accesses: Iterable[Access], clock: Clock) -> None:
        """Check an operation against all that may still be running, and remember it.

        Raises
        ------
        AssertionError
            When a conflicting operation is not ordered before it.
        """
        self._pending = [entry for entry in self._pending if entry[2] > self._seen.get(entry[1], 0)]
        for one in accesses:
            for other, queue, number in self._pending:
                if number > clock.get(queue, 0) and one.conflicts(other):
                    raise AssertionError(f"race: {kind} {one} is not ordered after {queue} {other}")
            self._pending.append((one, kind, clock[kind]))

    def seen(self, clock: Clock) -> None:
        """Note that the host waited for an operation: it precedes all that comes now."""
        _merge(self._seen, clock)


def _merge(clock: Clock, other: Clock) -> None:
    for kind, number in other.items():
        clock[kind] = max(clock.get(kind, 0), number)
