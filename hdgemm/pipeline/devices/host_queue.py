"""Queue of C blocks from which the host's cores draw; each block is one single-threaded BLAS call.

A core that another process slows down draws fewer blocks, where threaded BLAS waits for the
slowest core at the end of each call. Products queue up, so that a core which finds no block left
in one step goes on with the next. A block of C receives its steps in the order of submission, and
blocks depend on the extents of C alone: the result is the same for any number of threads.

Products with another C may be computed out of order, but a wait for one ends after all products
that were queued before it. The pipeline replaces a tile of A or B when the last product that reads
it has ended, and an earlier reader may be slower.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from typing import TYPE_CHECKING, Final

from hdgemm.machine.cache import read_entries, write_entry
from hdgemm.machine.limits import cores, thread_limit
from hdgemm.pipeline.devices.host_blas import SINGLE_THREADED
from hdgemm.threads import Worker, finish, wait_for_workers

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.widened_gemm import AnyGemm

#: Largest extents of a block. Each call packs its parts of A and B anew, which costs core time,
#: 17/rows + 48/columns of it (fitted to measurements): 4 % in blocks of 1024×2048, 2 % in these.
_ROWS: Final = 2048
_COLS: Final = 4096
#: A block with more columns for each row is cut between columns, which then costs less.
_WIDE: Final = 4
#: There is a block for each core, at least, where that leaves it larger than this in both extents.
#: Two blocks for each core took 3 % longer on quiet cores (files of order 4096), and no less time
#: beside a process that burns half a core: the faster core goes on with the next products.
_SMALL: Final = 384
#: Extents of blocks are multiples of this: BLAS kernels work on whole register tiles.
_QUANTUM: Final = 64
#: Products that may be unfinished at once: the one being multiplied, and those that a faster core
#: begins meanwhile. Slots for their tiles limit them too.
_AHEAD: Final = 3
#: In the cache folder; an entry for each machine and number of threads.
_FILE: Final = "host_gemm.json"
#: Drawing is kept down to this speed relative to threaded BLAS. The measured steps are cut into
#: blocks of 384×2048, which cost 6 % more than threaded BLAS on 2 cores; the larger tiles of a plan
#: cost 2 %. Beside another process, drawing is faster by more than that.
_LEAST_SPEED: Final = 0.85


def draws_blocks(threads: int) -> bool:
    """Return the cached decision for this machine; True where nothing was measured yet."""
    speed = read_entries(_FILE).get(_key(threads))
    return not (isinstance(speed, float) and speed < _LEAST_SPEED)


def remember_drawing(threads: int, speed: float) -> None:
    """Cache the ratio of the speeds of drawing and of threaded BLAS, for `draws_blocks`."""
    write_entry(_FILE, _key(threads), speed)


def _key(threads: int) -> str:
    return f"{platform.node()} {platform.machine()} {cores()} cores, {threads} threads"


def cut(m: int, n: int, least: int) -> list[tuple[int, int, int, int]]:
    """Cut an m×n tile of C into `least` or more blocks: first row and column, rows, columns."""
    down, across = -(-m // _ROWS), -(-n // _COLS)
    while down * across < least:
        rows, cols = m // down, n // across
        if cols >= 2 * _SMALL and (cols > _WIDE * rows or rows < 2 * _SMALL):
            across *= 2
        elif rows >= 2 * _SMALL:
            down *= 2
        else:
            break
    rows, cols = (-(-x // (_QUANTUM * y)) * _QUANTUM for x, y in ((m, down), (n, across)))
    return [
        (row, col, min(rows, m - row), min(cols, n - col))
        for row in range(0, m, rows)
        for col in range(0, n, cols)
    ]


class QueuedGemm:
    """A product in the queue, and its completion; `GemmQueue` changes it under the lock.

    `operands` keeps the memory alive; `earlier` holds the unfinished products before it. A block
    waits for the same block of an earlier product with the same C, and for all blocks of any other
    that writes to the same memory.
    """

    def __init__(
        self,
        gemm: AnyGemm,
        operands: object,
        blocks: list[tuple[int, int, int, int]],
        earlier: list[QueuedGemm],
        changed: threading.Condition,
    ) -> None:
        self._gemm = gemm
        self._operands = operands
        self._blocks = blocks
        self._earlier = earlier
        self._changed = changed
        self._undrawn = list(range(len(blocks)))
        self._unfinished = set(self._undrawn)
        self._error: BaseException | None = None
        self._start = self._end = 0.0

    @property
    def done(self) -> bool:
        """No block is waiting or being multiplied."""
        return not self._unfinished

    def draw(self) -> int | None:
        """Take a block that may be multiplied now; None where there is none."""
        for number in self._undrawn:
            if not any(other.holds(self._gemm, number) for other in self._earlier):
                self._undrawn.remove(number)
                self._start = self._start or time.perf_counter()
                return number
        return None

    def holds(self, later: AnyGemm, number: int) -> bool:
        """Say whether a block of a later product must wait for this one."""
        own = self._gemm
        if (own.c, own.m, own.n, own.ldc) == (later.c, later.m, later.n, later.ldc):
            return number in self._unfinished
        return not self.done and _overlap(own, later)

    def multiply(self, number: int) -> BaseException | None:
        """Multiply a drawn block, without the lock; return an error rather than raise it."""
        try:
            with SINGLE_THREADED:
                self._gemm.block(*self._blocks[number]).run()
        except BaseException as error:  # noqa: BLE001  (raised by `wait`)
            return error
        return None

    def finish(self, number: int, error: BaseException | None, last_end: float) -> float:
        """Note that a block is done; return when the last product ended.

        Intervals of products do not overlap in the timeline, though their blocks may.
        """
        self._unfinished.discard(number)
        self._error = self._error or error
        if self._unfinished:
            return last_end
        self._start = max(self._start, last_end)
        self._end = time.perf_counter()
        self._operands = None
        self._earlier = [other for other in self._earlier if not other.done]
        return self._end

    def wait(self) -> None:
        """Block until the product and all earlier ones are done.

        When the wait is interrupted (Ctrl-C), undrawn blocks are dropped and those in progress
        waited for: nothing writes to the caller's C afterwards.
        """
        try:
            with self._changed:
                while not (self.done and all(other.done for other in self._earlier)):
                    self._changed.wait()
        except BaseException:
            self._abandon()
            raise
        if self._error is not None:
            raise self._error

    def _abandon(self) -> None:
        with self._changed:
            self._unfinished.difference_update(self._undrawn)
            self._undrawn.clear()
            self._changed.notify_all()
            while self._unfinished:
                with contextlib.suppress(KeyboardInterrupt):
                    self._changed.wait()

    def interval(self) -> tuple[float, float]:
        """Return start and end on `time.perf_counter`'s clock."""
        return self._start, self._end


def _overlap(one: AnyGemm, other: AnyGemm) -> bool:
    """Say whether the address ranges of both tiles of C overlap."""
    start, end = _addresses(one)
    first, last = _addresses(other)
    return start < last and first < end


def _addresses(gemm: AnyGemm) -> tuple[int, int]:
    elements = (gemm.m - 1) * gemm.ldc + gemm.n
    return gemm.c, gemm.c + elements * gemm.c_itemsize


class GemmQueue:
    """Products in order of submission, and the threads that draw and multiply their blocks.

    The threads live until `close`. Each has one packing buffer of BLAS, at most 4 MB here, as the
    threads of threaded BLAS have.
    """

    def __init__(self, threads: int) -> None:
        self._least = cores()
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._queued: list[QueuedGemm] = []
        self._last_end = 0.0
        self._closing = False
        self._workers = [Worker(self._work, f"hdgemm-gemm-{i}") for i in range(threads)]
        try:
            with thread_limit():
                for worker in self._workers:
                    worker.start()
        except BaseException:
            self.stop()
            raise

    @property
    def usable(self) -> bool:
        """False in a forked child, which has none of the threads."""
        return os.getpid() == self._process

    def submit(self, gemm: AnyGemm, operands: object) -> QueuedGemm:
        """Queue a product, once fewer than `_AHEAD` are unfinished; `operands` keeps its memory."""
        blocks = cut(gemm.m, gemm.n, self._least)
        with self._changed:
            while self._unfinished >= _AHEAD:
                self._changed.wait()
            self._queued = [other for other in self._queued if not other.done]
            queued = QueuedGemm(gemm, operands, blocks, [*self._queued], self._changed)
            self._queued.append(queued)
            self._changed.notify_all()
        return queued

    def wait(self) -> None:
        """Block until every product is done, failed or not."""
        with self._changed:
            while self._unfinished:
                self._changed.wait()

    def stop(self) -> None:
        """Let the threads end when all products are done."""
        if not self.usable:  # a thread that a forked child lacks may hold the lock
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until all products are done and the threads have ended."""
        finish(self._end)

    def _end(self) -> None:
        self.stop()
        wait_for_workers(self._workers)

    @property
    def _unfinished(self) -> int:
        return sum(not queued.done for queued in self._queued)

    def _work(self) -> None:
        while (drawn := self._draw()) is not None:
            queued, number = drawn
            error = queued.multiply(number)
            with self._changed:
                self._last_end = queued.finish(number, error, self._last_end)
                self._changed.notify_all()

    def _draw(self) -> tuple[QueuedGemm, int] | None:
        """Take the next block; None when the queue is closed and all products are done."""
        with self._changed:
            while True:
                for queued in self._queued:
                    if (number := queued.draw()) is not None:
                        return queued, number
                if self._closing and not self._unfinished:
                    return None
                self._changed.wait()
