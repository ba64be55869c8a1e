"""A shared thread pool that moves pieces of matrices and serves its callers in turn.

Reading and writing release the interpreter's lock, so a handful of threads is enough to keep a
disk or the memory bus busy while other cores multiply.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections import deque
from functools import cache, cached_property, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from hdgemm.errors import DoesNotFitError
from hdgemm.matrices._conversion_copy import copy_converted
from hdgemm.threads import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

#: Boundary, in bytes, on which direct I/O starts, ends and finds its memory.
ALIGNMENT: Final = 4096
#: Threads that read and write files, in the whole process.
DISK_THREADS: Final = 4
#: Bytes of the buffer in which one thread converts or aligns data.
BOUNCE_SIZE: Final = 1 << 20
#: Bytes of host memory that moving matrices may hold beyond the callers' own, in all.
BOUNCE_BYTES: Final = DISK_THREADS * BOUNCE_SIZE
#: Spans shorter than this, in bytes, go through the page cache unless they are whole blocks: the
#: edges of a direct request would cost more than copying.
SHORT: Final = 256 << 10
#: Bytes of a huge page, and of memory from which on `aligned_bytes` maps pages: what the C library
#: maps at first.
_HUGE_PAGE: Final = 2 << 20
_MAPPED: Final = 128 << 10
#: Rows of a strip of a transposing copy, and columns from which such copies are cut into strips.
_STRIP: Final = 16
_WIDE: Final = 256
#: Bytes that a thread of the copy pool transposes at a time.
_BAND_BYTES: Final = 1 << 20


def copy_rows(out: NDArray[Any], rows: NDArray[Any]) -> None:
    """Copy a row-major matrix, converting its elements; into a column-major one by strips of rows.

    The cache lines of a strip are used whole before they are evicted: copies of 1024 columns of
    8 bytes were 2.6 times as fast.
    """
    if out.shape[1] < _WIDE or out.strides[0] >= out.strides[1]:
        copy_converted(out, rows)
        return
    for top in range(0, len(out), _STRIP):
        # To convert a strip and then transpose it takes half the time of doing both at once.
        strip = _converted(rows[top : top + _STRIP], out.dtype)
        np.copyto(out[top : top + _STRIP], strip)


def _converted(rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return rows with elements of a dtype, themselves where they have them."""
    if rows.dtype == dtype:
        return rows
    found: NDArray[Any] = np.empty(rows.shape, dtype)
    copy_converted(found, rows)
    return found


def copy_transposed(out: NDArray[Any], source: NDArray[Any], diagonal: int | None = None) -> None:
    """Copy a column-major matrix to a row-major one, or back, in the threads of `copy_pool`.

    By strips as `copy_rows`. With `diagonal`, to a column-major one only, elements right of that
    diagonal are left as they are; 0 is the main one, as in `numpy.tri`.
    """
    if out.strides[0] > out.strides[1]:
        out, source = out.T, source.T
    band = _STRIP * max(1, _BAND_BYTES // max(1, _STRIP * out.shape[1] * out.itemsize))
    copy_pool().run(
        [
            partial(
                _copy_band,
                out[top : top + band],
                source[top : top + band],
                out.shape[1] if diagonal is None else diagonal + top,
            )
            for top in range(0, len(out), band)
        ]
    )


def _copy_band(out: NDArray[Any], source: NDArray[Any], diagonal: int, _bounce: Bounce) -> None:
    for top in range(0, len(out), _STRIP):
        to, of = out[top : top + _STRIP], source[top : top + _STRIP]
        whole = min(max(diagonal + top, 0), out.shape[1])
        np.copyto(to[:, :whole], of[:, :whole])
        edge = slice(whole, min(max(diagonal + top + _STRIP, 0), out.shape[1]))
        if edge.start < edge.stop:
            left = np.tri(len(to), edge.stop - edge.start, diagonal + top - whole, dtype=bool)
            np.copyto(to[:, edge], of[:, edge], where=left)


def leading(rows: int, total: int, itemsize: int) -> int:
    """Return the leading dimension of a buffer for the last `rows` rows of columns of `total`.

    Long columns start at the same phase of a 4096-byte block in memory and in the file, so that
    direct I/O needs no copy.
    """
    if rows == total or rows * itemsize < SHORT or ALIGNMENT % itemsize:
        return rows
    return rows + (total - rows) % (ALIGNMENT // itemsize)


class Bounce:
    """One thread's aligned buffer, taken at first use."""

    @cached_property
    def memory(self) -> NDArray[np.uint8]:
        """`BOUNCE_SIZE` bytes that start on a 4096-byte boundary."""
        return aligned_bytes(BOUNCE_SIZE)


def map_pages(nbytes: int) -> mmap.mmap:
    """Return anonymous memory in whole pages, in huge pages where the system has them.

    Freed, it goes back to the system. What NumPy frees stays with the allocator of a thread: in
    repeated calls of `linalg.solve` a process grew by all buffers of each.

    Raises
    ------
    DoesNotFitError
        When the system refuses.
    """
    try:
        pages = mmap.mmap(-1, max(1, nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise DoesNotFitError(
            f"the system refused {nbytes:,} bytes of memory; lower host_memory", requested=nbytes
        ) from error
    if nbytes >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # kernels without it
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def aligned_bytes(nbytes: int, phase: int = 0) -> NDArray[np.uint8]:
    """Return `nbytes` of memory whose address is `phase` past a 4096-byte boundary."""
    whole = nbytes + ALIGNMENT
    memory: NDArray[np.uint8] = (
        np.empty(whole, np.uint8) if whole < _MAPPED else np.frombuffer(map_pages(whole), np.uint8)
    )
    start = (phase - address(memory)) % ALIGNMENT
    return memory[start : start + nbytes]


def array_at(
    memory: NDArray[np.uint8],
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    phase: int,
    order: Literal["C", "F"] = "C",
) -> NDArray[Any]:
    """Lay out an array in a buffer of `ALIGNMENT` bytes more, at the phase that its elements have
    in a file: direct I/O reads them without a copy.
    """
    start = 0 if phase % dtype.itemsize else phase
    return np.ndarray(shape, dtype, memory.data, start, order=order)


def address(memory: NDArray[Any]) -> int:
    """Return the address of an array's first element."""
    start: int = memory.__array_interface__["data"][0]
    return start


class Transfer:
    """The pieces of one call that a pool runs; it can be waited for.

    `pieces` are those that wait, `running` the number that run; `error` is the first. `wait` waits
    for the transfer `previous` first, so that transfers of one lane end in their order.
    """

    previous: Transfer | None = None

    def __init__(self, pool: Pool, pieces: Iterable[Callable[[Bounce], None]]) -> None:
        self._pool = pool
        self.pieces: Iterator[Callable[[Bounce], None]] = iter(pieces)
        self.running = 0
        self.error: BaseException | None = None
        self._end = Gate()
        self._start = self.end = time.perf_counter()

    @property
    def ended(self) -> bool:
        """Whether no piece runs any more, nor will."""
        return self._end.is_open

    def wait(self) -> None:
        """Return when no piece runs any more; raise the first error.

        An interrupt drops the pieces not yet begun, so that no thread touches the caller's memory
        after the call.
        """
        try:
            if (previous := self.previous) is not None:
                previous.wait()
                self.previous = None
            self._wait_ended()
        except BaseException:
            self._pool.drop(self)
            self._wait_ended()
            raise
        if self.error is not None:
            raise self.error

    def end_now(self) -> None:
        """Note that no piece runs any more, nor will."""
        if not self.ended:
            self.end = time.perf_counter()
            self._end.open()

    def _wait_ended(self) -> None:
        while not self.ended:
            self._end.wait()

    def interval(self) -> tuple[float, float]:
        """Return when it was begun and when it ended, on `time.perf_counter`'s clock."""
        return self._start, self.end


class Pool:
    """Threads that take pieces from all calls in turn, so that a large one delays no small one.

    Callers may be interrupted anywhere. An interrupt inside `threading.Condition` or `Event` can
    leave it locked, or lose a notification, and from Python 3.14 on one between the acquisition of
    a lock and the block of its `with` leaves the lock locked. So callers use single operations of
    `deque` and `SimpleQueue`, whose C code no interrupt divides, and where they need a lock, they
    acquire it inside the ``try`` that releases it.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._lock = threading.RLock()
        #: Wakes a thread for each element.
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._transfers: deque[Transfer] = deque()
        self.threads = 0
        for number in range(threads):
            thread = threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system's limit of threads: fewer are enough
                if self.threads == 0:
                    raise
                return
            self.threads += 1

    def begin(self, pieces: list[Callable[[Bounce], None]]) -> Transfer:
        """Begin to run all pieces, in any order; the first error drops those not yet begun."""
        transfer = Transfer(self, pieces)
        if not pieces:
            transfer.end_now()
            return transfer
        self._transfers.append(transfer)
        for _ in range(min(len(pieces), self.threads)):
            self._calls.put(None)
        return transfer

    def run(self, pieces: list[Callable[[Bounce], None]]) -> None:
        """Run all pieces, and return when none runs any more; see `Transfer.wait`."""
        self.begin(pieces).wait()

    def drop(self, transfer: Transfer) -> None:
        """Start no more pieces of a transfer.

        It ends here where none runs: the threads may all be busy, with pieces that wait for it.
        """
        try:
            self._lock.acquire()
            self._end(transfer)
        finally:
            try:  # noqa: SIM105 - an interrupt within `suppress` would leave the lock locked
                self._lock.release()
            except RuntimeError:  # it was interrupted before it was acquired
                pass

    def _take(self) -> tuple[Transfer, Callable[[Bounce], None]] | None:
        """Return the next piece and its transfer; None where all pieces are begun."""
        with self._lock:
            while self._transfers:
                transfer = self._transfers[0]
                self._transfers.rotate(-1)
                piece = next(transfer.pieces, None)
                if piece is not None:
                    transfer.running += 1
                    return transfer, piece
                self._end(transfer)
        return None

    def _work(self) -> None:
        bounce = Bounce()
        # Conversions to a smaller range give Inf, as arithmetic does, without a warning.
        np.seterr(over="ignore")
        while True:
            taken = self._take()
            if taken is None:
                self._calls.get()
                continue
            transfer, piece = taken
            error: BaseException | None = None
            try:
                piece(bounce)
            except BaseException as raised:  # noqa: BLE001 - it is raised again in the caller
                error = raised
            with self._lock:
                transfer.running -= 1
                transfer.error = transfer.error or error
                if error is not None or transfer not in self._transfers:
                    self._end(transfer)
            # An idle thread must not keep the caller's memory alive.
            del taken, piece, transfer, error

    def _end(self, transfer: Transfer) -> None:
        """Start no more pieces of this transfer; called with the lock held."""
        transfer.pieces = iter(())
        if transfer in self._transfers:
            self._transfers.remove(transfer)
        if transfer.running == 0:
            transfer.end_now()


@cache
def disk_pool() -> Pool:
    """Return the pool that all files share."""
    return Pool(DISK_THREADS, "hdgemm-disk")


@cache
def copy_pool() -> Pool:
    """Return the pool that copies between arrays; it never bounces."""
    return Pool(min(8, len(os.sched_getaffinity(0))), "hdgemm-copy")


def _forget_pools() -> None:
    disk_pool.cache_clear()
    copy_pool.cache_clear()


# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=_forget_pools)
