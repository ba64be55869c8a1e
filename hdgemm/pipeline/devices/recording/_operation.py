"""Operations of the recording device, how they can be made to fail, and their order.

The order is by vector clocks over the device's queues. An operation is ordered after everything
before it in its own queue, after the completions that it was given, and after what the host has
waited for. Two accesses to the same bytes, one of them a write, must be ordered; a correct order
by chance is not enough.
"""

from __future__ import annotations

import threading
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.protocol import first_byte, view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Block

Queue = Literal["upload", "gemm", "download"]
QUEUES: Final[tuple[Queue, ...]] = ("upload", "gemm", "download")
_INDEX: Final = {queue: index for index, queue in enumerate(QUEUES)}

#: How many operations of each queue precede an operation, itself included; in `QUEUES`' order.
VectorClock = tuple[int, int, int]

#: Given an operation's kind and amount, returns the seconds that it takes at least.
Pace: TypeAlias = "Callable[[str, int], float]"

#: Given an operation's queue, its number there (from 0) and what it wrote; can change the result.
Corruption: TypeAlias = "Callable[[Queue, int, Block], None]"


@dataclass(frozen=True, slots=True)
class Fault:
    """Fail the `call`-th call (from 0): at once, or late, when the device executes it."""

    call: int
    late: bool = False


#: What a call asks for; solves, permutations and copies run in gemm's queue.
Kind: TypeAlias = Literal[
    "upload",
    "gemm",
    "download",
    "trsm",
    "permute",
    "copy",
    "conjugate",
    "allocate",
    "allocate_staging",
]


class Call(NamedTuple):
    """One recorded call, and its amount: bytes, or flops for gemm and trsm."""

    kind: Kind
    amount: int


class Operation:
    """One enqueued operation, which is its own completion.

    It follows the operations of this device in `after`; `seen` is told its clock when the host has
    waited for it.
    """

    def __init__(
        self, call: Call, after: Sequence[Operation], seen: Callable[[VectorClock], None]
    ) -> None:
        self.clock: VectorClock = (0, 0, 0)
        self._call = call
        self._after = after
        self._seen: Callable[[VectorClock], None] | None = seen
        self._running = threading.Lock()
        self._running.acquire()
        self._error: BaseException | None = None
        self._interval = (0.0, 0.0)

    def wait(self) -> None:
        """Block until it is done."""
        with self._running:
            pass
        if (seen := self._seen) is not None:
            seen(self.clock)
            self._seen = None
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise DeviceError(f"recording device: {self._call.kind} failed") from self._error

    def interval(self) -> tuple[float, float]:
        """Return when it ran."""
        return self._interval

    def execute(self, work: Callable[[], object], pace: Pace | None) -> None:
        """Run on the queue's own thread."""
        start = time.perf_counter()
        try:
            for earlier in self._after:
                with earlier._running:  # noqa: SLF001  (`wait` would mean: seen by the host)
                    pass
                earlier._check()  # noqa: SLF001
            start = time.perf_counter()
            work()
            if pace is not None:
                time.sleep(max(0.0, pace(*self._call) - (time.perf_counter() - start)))
        except BaseException as error:  # noqa: BLE001  (raised by `wait`)
            self._error = error
        self._after = ()
        self._interval = (start, time.perf_counter())
        self._running.release()


def flip_bit(block: Block, element: int, bit: int) -> tuple[np.generic, np.generic]:
    """Flip one bit of an element, counted along rows; return its value before and after."""
    seen = view(block)
    row, col = divmod(element, seen.shape[1])
    value = seen[row : row + 1, col : col + 1].copy()
    before = value[0, 0]
    value.view("u1")[0, bit // 8] ^= 1 << bit % 8
    seen[row, col] = value[0, 0]
    return before, value[0, 0]


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
