"""Benchmarks of this machine for the planner, each within a given time.

BLAS on a small product, blocks of it drawn by the cores against threaded BLAS, copies in memory, a
scratch file in the folder that a product will use, and the executor on the recording device. A busy
machine or a slow disk makes a figure less accurate, not the benchmark longer: each stops at its
deadline with what it has measured.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import CancelledRunError
from hdgemm.matrices.transfer import aligned_bytes
from hdgemm.pipeline.devices.host_blas import blas_threads
from hdgemm.pipeline.plan import DeviceSpec, Overlap, Plan, Problem, Slots
from hdgemm.pipeline.walk import Layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.host import HostDevice

#: Extents of the square product, the largest first that is fast enough on this machine.
_EXTENTS: Final = (1024, 512, 256)
#: Repetitions of a benchmark whose deadline is far.
_REPETITIONS: Final = 7
#: `side_half` of a noisy measurement is clipped to this range.
_SIDE_HALF: Final = (1.0, 64.0)
#: Bytes that each thread copies, and that all threads copy at most.
_COPY_BYTES: Final = 32 << 20
_COPY_MOST: Final = 256 << 20
_FILE_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 8 << 20
_FILE_THREADS: Final = 4
#: Time for either direction of the disk, even where the deadline is over.
_LEAST_SECONDS: Final = 0.1
#: Extents m, n and k of a step on the host device, and how many steps are queued at once.
_STEP: Final = (768, 4096, 512)
_STEPS: Final = 2
#: Floating-point operations of the shortest measurement of drawing: both ways, warmed up.
DRAWING_FLOPS: Final = 2 * 2 * _STEPS * 2 * _STEP[0] * _STEP[1] * _STEP[2]
#: The executor's benchmark: work units of one step, with square tiles of this extent.
_UNITS: Final = 60
_TILE: Final = 8


class Deadline:
    """The end of a benchmark's time, in seconds from now; `cancel` ends it early."""

    def __init__(self, seconds: float, cancel: threading.Event | None = None) -> None:
        self._end = time.perf_counter() + seconds
        self._cancel = cancel

    @property
    def seconds(self) -> float:
        """Seconds left; 0 once it is over or cancelled."""
        if self._cancel is not None and self._cancel.is_set():
            return 0.0
        return max(0.0, self._end - time.perf_counter())

    def check(self) -> None:
        """Raise `CancelledRunError` once the benchmark is cancelled."""
        if self._cancel is not None and self._cancel.is_set():
            raise CancelledRunError("the calibration of this machine was cancelled")


def measure_blas(threads: int, deadline: Deadline) -> tuple[float, float]:
    """Return flop/s of so many cores that each call BLAS, and `Machine.side_half`.

    Each core takes its fastest call. Threaded BLAS would wait for the slowest core in every call,
    and so measure other processes on a busy machine.
    """
    with blas_threads(1), ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda _: _measure_core(deadline), range(threads)))
    rates, side_halves = zip(*found, strict=True)
    return sum(rates), median(side_halves)


def _measure_core(deadline: Deadline) -> tuple[float, float]:
    """Return one core's flop/s and `side_half`, from a square and a flat product.

    The cost of packing an edge of a tile shows in the flat one.
    """
    rng = np.random.default_rng(0)
    n = _EXTENTS[-1]
    a, b = rng.standard_normal((2, n, n))
    least = _best(partial(_seconds, partial(np.matmul, a, b)), deadline)
    # A product's seconds grow with the cube of its extent; both kinds are timed so often.
    share = deadline.seconds / (2 * _REPETITIONS)
    n = next((one for one in _EXTENTS if least * (one / n) ** 3 <= share), n)
    rows = n // 4
    a, b = rng.standard_normal((2, n, n))
    out = np.empty_like(a)
    square = flat = float("inf")
    for number in range(_REPETITIONS + 1):
        whole = _seconds(partial(np.matmul, a, b, out=out)) / n
        part = _seconds(partial(np.matmul, a[:rows], b, out=out[:rows])) / rows
        if number:  # the first turn warms up
            square, flat = min(square, whole), min(flat, part)
            if not deadline.seconds:
                break
    # Seconds of a row grow as 1 + side_half / rows + side_half / n.
    slower = flat / square
    side_half = (slower - 1) / (1 / rows + 1 / n - slower * 2 / n)
    side_half = min(max(side_half, _SIDE_HALF[0]), _SIDE_HALF[1])
    return 2 * n**2 / square * (1 + 2 * side_half / n), side_half


def measure_drawing(threads: int, seconds: float) -> float:
    """Return the speed of cores that draw blocks of C, relative to threaded BLAS: by turns.

    Each is warmed up just before it is timed: for some 26 ms after a product, OpenBLAS's threads
    wait for the next one in a loop, which would take half of a core from drawn blocks.
    """
    from hdgemm.pipeline.devices.host import HostDevice

    m, n, k = _STEP
    rng = np.random.default_rng(0)
    a, b, c = rng.random((m, k)), rng.random((k, n)), np.empty((m, n))
    devices = [HostDevice(threads=threads, draws=draws) for draws in (True, False)]
    best = [float("inf"), float("inf")]
    deadline = Deadline(seconds)
    while best[1] == float("inf") or deadline.seconds:
        for number, device in enumerate(devices):
            steps = partial(_multiply_on_host, device, a, b, c)
            steps()
            best[number] = min(best[number], _seconds(steps))
    for device in devices:
        device.close()
    return best[1] / best[0]


def _multiply_on_host(
    device: HostDevice, a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]
) -> None:
    from hdgemm.pipeline.devices.protocol import Block, Tile

    blocks = [
        Block(Tile("C", x, len(x), x.shape[1], x.shape[1], x.dtype), 0, 0, len(x), x.shape[1])
        for x in (a, b, c)
    ]
    for step in range(_STEPS):
        device.gemm(1.0, blocks[0], blocks[1], float(step > 0), blocks[2], ())
    device.synchronize()


def calibration_bytes(threads: int) -> int:
    """Return the bytes of memory that all benchmarks take: copies take the most."""
    return 2 * threads * _copied_bytes(threads)


def _copied_bytes(threads: int) -> int:
    """Return the bytes that each thread copies."""
    return min(_COPY_BYTES, _COPY_MOST // threads)


def measure_copy(threads: int, deadline: Deadline) -> float:
    """Return bytes/s of so many threads that each copy an array, each byte counted once."""
    source = np.ones((threads, _copied_bytes(threads) // 8))
    target = source.copy()
    with ThreadPoolExecutor(threads) as pool:
        copy = partial(_seconds, lambda: list(pool.map(np.copyto, target, source)))
        return source.nbytes / _best(copy, deadline)


def measure_disk(folder: Path, deadline: Deadline) -> tuple[float | None, float | None]:
    """Return bytes/s of reading and of writing a scratch file with large requests.

    Direct I/O is used where the file system has it. None stands for a folder that cannot be
    written. The file has no name, so that even a killed process leaves nothing of it.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".hdgemm-", buffering=0) as scratch:
            _write_directly(scratch.fileno())
            return _move_pieces(os.dup(scratch.fileno()), deadline)
    except OSError:
        return None, None


def _write_directly(file: int) -> None:
    """Let an open file be read and written past the page cache, where its file system can."""
    with contextlib.suppress(OSError):
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        fcntl.fcntl(file, fcntl.F_SETFL, flags | getattr(os, "O_DIRECT", 0))


def _move_pieces(file: int, deadline: Deadline) -> tuple[float | None, float | None]:
    """Return the rates of a descriptor, which is closed once no request is pending."""
    memory = aligned_bytes(_FILE_BYTES)
    block = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
    memory.reshape(-1, block.size)[:] = block
    view = memory.data

    def write(start: int) -> None:
        os.pwritev(file, [view[start : start + _PIECE_BYTES]], start)

    def read(start: int) -> None:
        os.preadv(file, [view[start : start + _PIECE_BYTES]], start)

    half = max(_LEAST_SECONDS, deadline.seconds / 2)
    writing = _Transfers(write, range(0, _FILE_BYTES, _PIECE_BYTES), Deadline(half))
    reading = None
    if writing.pieces:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        reading = _Transfers(read, list(writing.pieces), Deadline(half))
    # A thread that still waits for the disk keeps its descriptor: a new file could get its number.
    if writing.ended and (reading is None or reading.ended):
        os.close(file)
    return reading.rate if reading else None, writing.rate


class _Transfers:
    """Pieces of a file moved by several threads until a deadline.

    The threads are daemons, since a request to a failing disk can block for minutes. `pieces` are
    the offsets of those that were moved; `rate` is in bytes/s, at most so many where no piece was
    moved in time, None after an error; `ended` says that no request is pending.
    """

    def __init__(
        self, move: Callable[[int], None], starts: range | list[int], deadline: Deadline
    ) -> None:
        self.pieces: list[int] = []
        self._move, self._deadline = move, deadline
        self._starts = iter(starts)
        self._failed = False
        self._last = begin = time.perf_counter()
        threads = [threading.Thread(target=self._run, daemon=True) for _ in range(_FILE_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(deadline.seconds)
        self.ended = not any(thread.is_alive() for thread in threads)
        moved, last = (len(self.pieces), self._last) if self.pieces else (1, time.perf_counter())
        rate = moved * _PIECE_BYTES / max(last - begin, 1e-9)
        self.rate = None if self._failed else rate

    def _run(self) -> None:
        try:
            for start in self._starts:
                if not self._deadline.seconds:
                    return
                self._move(start)
                self.pieces.append(start)
                self._last = time.perf_counter()
        except OSError:
            self._failed = True


def measure_executor(deadline: Deadline) -> float:
    """Return the executor's seconds for one operation: a pipeline of tiny tiles, five stages."""
    from hdgemm.matrices.arrays import ArrayMatrix
    from hdgemm.pipeline.devices.recording import RecordingDevice
    from hdgemm.pipeline.executor import run_plan
    from hdgemm.pipeline.slots import Operands

    plan = _tiny_plan()
    a, b = np.ones((plan.problem.m, _TILE)), np.ones((_TILE, _TILE))
    c = ArrayMatrix(np.zeros_like(a))
    operands = Operands(ArrayMatrix(a), ArrayMatrix(b), c, c)

    def run() -> float:
        device = RecordingDevice()
        try:
            timeline = run_plan(plan, device, operands)
        finally:
            device.close()
        return timeline.seconds / len(timeline.events)

    return _best(run, deadline)


def _tiny_plan() -> Plan:
    """Return a plan of units with one step, each of which loads its own tile of A."""
    one, two = Slots(1, _TILE * _TILE * 8), Slots(2, _TILE * _TILE * 8)
    return Plan(
        problem=Problem(_UNITS * _TILE, _TILE, _TILE),
        device=DeviceSpec("recording", unified=False),
        strategy="data-placement",
        overlap=Overlap(),
        tile=(_TILE, _TILE, _TILE),
        a_slots=two,
        b_slots=one,
        c_slots=two,
        up=two,
        down=two,
        layout=Layout(_TILE, _TILE),
        host_limit=1 << 30,
        device_limit=1 << 30,
    )


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _best(measure: Callable[[], float], deadline: Deadline) -> float:
    """Return the least of some measurements: two, of which the first warms up, or more."""
    seconds = min(measure(), measure())
    for _ in range(_REPETITIONS):
        if not deadline.seconds:
            break
        seconds = min(seconds, measure())
    return seconds
