"""Operations of the recording device, and the ways in which they can be made to fail."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.protocol import view

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from hdgemm.pipeline.devices.protocol import Block
    from hdgemm.pipeline.devices.recording.races import Queue, VectorClock

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
    "upload", "gemm", "download", "trsm", "permute", "copy", "conjugate", "allocate",
    "allocate_staging",
]  # fmt: skip


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
