"""A short measurement of this machine, kept between runs.

The one module of planning that touches the machine, though never a device: BLAS on a small
product, copies in memory, and a scratch file in the folder that a product will use.
"""

from __future__ import annotations

import math
import os
import platform
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from hdgemm.machine.assumed import assumed
from hdgemm.machine.cache import read_entries, write_entry
from hdgemm.machine.limits import cores, default_host_bytes
from hdgemm.matrices.transfer import aligned_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import DeviceSpec, Problem

#: Products below this many flop are planned with assumed figures where none were measured.
WORTH_MEASURING: Final = 10**11

#: In the cache folder: an entry for each machine and disk.
_FILE: Final = "machine.json"
_PRODUCT: Final = 1024
_FLAT: Final = 256
_PRODUCTS: Final = 7
#: A noisy machine shows more, or less than nothing.
_LEAST_SIDE_HALF: Final = 1.0
_MOST_SIDE_HALF: Final = 64.0
_COPY_BYTES: Final = 32 << 20
_FILE_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 8 << 20
_FILE_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured: flop/s of double-precision BLAS, and bytes/s.

    `gemm` and `side_half` are those of `Machine`, for the host. `copy` counts bytes copied by one
    thread once; `memory` counts reads and writes of all cores copying at once. The disk's are None
    where its folder could not be written.
    """

    gemm: float
    side_half: float
    copy: float
    memory: float
    disk_read: float | None
    disk_write: float | None


def machine_for(
    problem: Problem,
    device: DeviceSpec,
    folder: str | os.PathLike[str] | None = None,
    *,
    refresh: bool = False,
) -> Machine:
    """Return the figures to plan a product with: measured where that is worth its time.

    A product in place is planned with assumed figures, without asking the system for anything.

    Parameters
    ----------
    folder
        Where the product's files lie; None for the folder of temporary files.
    refresh
        Measure anew.
    """
    if problem.in_place:
        return assumed(device)
    known = replace(assumed(device), host_bytes=default_host_bytes())
    where = Path(folder if folder is not None else tempfile.gettempdir())
    if not refresh and problem.flops < WORTH_MEASURING:
        figures = _load(where)
        return known if figures is None else with_figures(known, device, figures)
    return with_figures(known, device, calibrate(where, refresh=refresh))


def with_figures(machine: Machine, device: DeviceSpec, figures: Figures) -> Machine:
    """Put measured figures of the host into a machine; a device's own rates stay."""
    machine = replace(
        machine,
        cores=cores(),
        copy=figures.copy,
        memory=figures.memory,
        disk_read=figures.disk_read or machine.disk_read,
        disk_write=figures.disk_write or machine.disk_write,
        source=f"host measured, {machine.source}",
    )
    if device.unified:
        gemm = {"float64": figures.gemm, "float32": 2 * figures.gemm}
        machine = replace(machine, gemm=gemm, side_half=figures.side_half)
    return machine


def calibrate(folder: Path, *, refresh: bool = False) -> Figures:
    """Return this machine's figures, from the user's cache where they are there and readable."""
    figures = None if refresh else _load(folder)
    if figures is None:
        figures = measure(folder)
        write_entry(_FILE, _key(folder), asdict(figures))
    return figures


def measure(folder: Path) -> Figures:
    """Measure within about a second."""
    read, write = _disk(folder)
    gemm, side_half = _gemm()
    return Figures(
        gemm=gemm,
        side_half=side_half,
        copy=_copy(1),
        memory=2 * _copy(cores()),
        disk_read=read,
        disk_write=write,
    )


def _key(folder: Path) -> str:
    try:
        disk = str(folder.stat().st_dev)
    except OSError:
        disk = "none"
    return f"{platform.node()} {platform.machine()} {cores()} cores, disk {disk}"


def _load(folder: Path) -> Figures | None:
    entry = read_entries(_FILE).get(_key(folder))
    if not isinstance(entry, dict) or set(entry) != {field.name for field in fields(Figures)}:
        return None
    for name, rate in entry.items():
        missing = rate is None and name.startswith("disk")
        positive = isinstance(rate, int | float) and 0 < rate < float("inf")
        if not (missing or positive):
            return None
    return Figures(**entry)


def _best(work: Callable[[], object], times: int) -> float:
    """Return the least seconds of some runs, after one that warms up."""
    work()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _gemm() -> tuple[float, float]:
    """Measure a square and a flat product: what BLAS packs for an edge shows in the flat one."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, _PRODUCT, _PRODUCT))
    out = np.empty_like(a)
    n = _PRODUCT
    square = flat = math.inf
    for _ in range(_PRODUCTS):
        square = min(square, _best(partial(np.matmul, a, b, out=out), 1) / n)
        flat = min(flat, _best(partial(np.matmul, a[:_FLAT], b, out=out[:_FLAT]), 1) / _FLAT)
    # Seconds of a row grow as 1 + side_half / rows + side_half / n.
    slower = flat / square
    side_half = (slower - 1) / (1 / _FLAT + 1 / n - slower * 2 / n)
    side_half = min(max(side_half, _LEAST_SIDE_HALF), _MOST_SIDE_HALF)
    return 2 * n**2 / square * (1 + 2 * side_half / n), side_half


def _copy(threads: int) -> float:
    source = np.ones((threads, _COPY_BYTES // 8))
    target = np.empty_like(source)
    with ThreadPoolExecutor(threads) as pool:
        seconds = _best(lambda: list(pool.map(np.copyto, target, source)), 3)
    return threads * _COPY_BYTES / seconds


def _disk(folder: Path) -> tuple[float | None, float | None]:
    """Write and read a scratch file with large requests, past the page cache where that works."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".hdgemm-") as scratch:
            return _through(scratch.name)
    except OSError:
        return None, None


def _through(path: str) -> tuple[float, float]:
    memory = aligned_bytes(_FILE_BYTES)
    memory[:] = np.arange(_FILE_BYTES, dtype=np.uint64).astype(np.uint8)
    try:
        file = os.open(path, os.O_RDWR | getattr(os, "O_DIRECT", 0))
    except OSError:
        file = os.open(path, os.O_RDWR)
    view = memory.data
    starts = range(0, _FILE_BYTES, _PIECE_BYTES)

    def write(start: int) -> None:
        os.pwritev(file, [view[start : start + _PIECE_BYTES]], start)

    def read(start: int) -> None:
        os.preadv(file, [view[start : start + _PIECE_BYTES]], start)

    def run(move: Callable[[int], None]) -> float:
        start = time.perf_counter()
        list(pool.map(move, starts))
        if move is write:
            os.fdatasync(file)
        return _FILE_BYTES / (time.perf_counter() - start)

    try:
        with ThreadPoolExecutor(_FILE_THREADS) as pool:
            written = run(write)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            return run(read), written
    finally:
        os.close(file)
