"""Rates of this machine: benchmarked on first use, then cached in the user's folder."""

from __future__ import annotations

import platform
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hdgemm.machine.benchmarks import (
    DRAWING_FLOPS,
    Deadline,
    measure_blas,
    measure_copy,
    measure_disk,
    measure_drawing,
    measure_executor,
)
from hdgemm.machine.cache import read_entries, write_entry
from hdgemm.machine.limits import cores, default_host_bytes
from hdgemm.machine.rates import assumed
from hdgemm.pipeline.devices.host_queue import remember_drawing

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import DeviceSpec, Problem

    #: Called with the part of a calibration that is done and the name of the next benchmark.
    CalibrationProgress = Callable[[float, str], None]

#: Products below this many flop are planned with assumed rates where none were measured.
WORTH_MEASURING: Final = 10**11
#: A run shows that cached figures are wrong when it multiplies so many times as fast as they say.
_TOO_LOW: Final = 1.5
#: A figure that is measured again replaces an earlier one only where they differ by this factor:
#: otherwise plans stay the same.
_OTHER: Final = 1.25
#: Seconds that a calibration may take.
MOST_SECONDS: Final = 3.0

#: In the cache folder; it has an entry for each machine and disk.
_FILE: Final = "machine.json"
#: Member of an entry whose figures are to be measured again.
_DOUBTED: Final = "doubted"
#: Part of the time for each benchmark; the rest is left for what outlasts its deadline.
_PARTS: Final = {"disk": 0.3, "BLAS": 0.2, "drawing": 0.15, "copies": 0.1, "executor": 0.1}


@dataclass(frozen=True, slots=True)
class Figures:
    """Measured figures of the host.

    Parameters
    ----------
    gemm, side_half
        Flop/s of double-precision BLAS, and the cost of a tile's edges; see `Machine`.
    copy
        Bytes/s that one thread copies, each counted once.
    memory
        Bytes/s that all cores read and write together while they copy.
    disk_read, disk_write
        Bytes/s; None where the folder could not be written.
    operation
        Seconds that the executor takes for one operation.
    drawn_blocks
        Speed of host products whose blocks the cores draw, divided by threaded BLAS's speed.
    """

    gemm: float
    side_half: float
    copy: float
    memory: float
    disk_read: float | None
    disk_write: float | None
    operation: float
    drawn_blocks: float


def machine_for(
    problem: Problem,
    device: DeviceSpec,
    folder: Path | None = None,
    *,
    threads: int | None = None,
    progress: CalibrationProgress | None = None,
    cancel: threading.Event | None = None,
) -> Machine:
    """Return the rates to plan a product with: cached, measured where that is worth its time.

    A product in place is planned with assumed rates, without reading any file. The disk holds
    the product's folder, None for the folder of temporary files; `threads` of BLAS and copies are
    None for all cores; `progress` and `cancel` are as in `calibrate`.
    """
    if problem.in_place:
        return assumed(device)
    machine = replace(assumed(device), host_bytes=default_host_bytes())
    where = _where(folder)
    if problem.flops >= WORTH_MEASURING:
        found = calibrate(where, threads=threads, progress=progress, cancel=cancel)
        return with_figures(machine, device, found, threads)
    cached = _stored(where, threads)
    return machine if cached is None else with_figures(machine, device, cached, threads)


def discard_low_rates(
    device: DeviceSpec, folder: Path | None, threads: int | None, dtype: str, flop_rate: float
) -> None:
    """Mark cached figures of the host where a run multiplied much faster than they say.

    They were measured on a busy machine, and would be used for ever; the next large product
    measures them again.
    """
    where = _where(folder)
    figures = _stored(where, threads)
    if figures is None:
        return
    machine = with_figures(assumed(device), device, figures, threads)
    if flop_rate > _TOO_LOW * machine.flop_rate(dtype):
        write_entry(_FILE, _key(where, threads), asdict(figures) | {_DOUBTED: True})


def with_figures(
    machine: Machine, device: DeviceSpec, figures: Figures, threads: int | None = None
) -> Machine:
    """Replace a machine's rates of the host by measured figures; the device's own rates stay."""
    machine = replace(
        machine,
        cores=threads or cores(),
        copy=figures.copy,
        memory=figures.memory,
        disk_read=figures.disk_read or machine.disk_read,
        disk_write=figures.disk_write or machine.disk_write,
        operation_seconds=figures.operation,
        source=f"host measured, {machine.source}",
    )
    if device.unified:
        gemm = {"float64": figures.gemm, "float32": 2 * figures.gemm}
        machine = replace(machine, gemm=gemm, side_half=figures.side_half, moves_c=True)
    return machine


def calibrate(
    folder: Path,
    *,
    threads: int | None = None,
    progress: CalibrationProgress | None = None,
    cancel: threading.Event | None = None,
) -> Figures:
    """Return this machine's figures from the cache, or measure them within `MOST_SECONDS`.

    A figure that was measured before stays where the new one is about the same, so that plans do.
    The scratch file for the disk is written in `folder`. `progress` is called before each benchmark
    and at the end, not for cached figures. `cancel` stops after the benchmark that runs, with
    `CancelledRunError`.
    """
    figures = _stored(folder, threads, doubted=False)
    if figures is None:
        figures = measure(folder, threads or cores(), progress, cancel)
        figures = _settled(_stored(folder, threads), figures)
        write_entry(_FILE, _key(folder, threads), asdict(figures))
        remember_drawing(threads or cores(), figures.drawn_blocks)
    return figures


def measure(
    folder: Path,
    threads: int,
    progress: CalibrationProgress | None = None,
    cancel: threading.Event | None = None,
) -> Figures:
    """Run all benchmarks, each until its own deadline."""
    done = 0.0

    def begin(name: str) -> Deadline:
        nonlocal done
        if progress is not None:
            progress(done, name)
        done += _PARTS[name] / sum(_PARTS.values())
        deadline = Deadline(MOST_SECONDS * _PARTS[name], cancel)
        deadline.check()
        return deadline

    read, write = measure_disk(folder, begin("disk"))
    gemm, side_half = measure_blas(threads, begin("BLAS"))
    seconds = begin("drawing").seconds
    # Where BLAS is slow, as on a busy machine, the cores draw blocks without a measurement.
    drawn = measure_drawing(threads, seconds) if gemm * seconds > DRAWING_FLOPS else 1.0
    copying = begin("copies")
    copy = measure_copy(1, Deadline(copying.seconds / 2, cancel))
    memory = 2 * measure_copy(threads, copying)
    operation = measure_executor(begin("executor"))
    if progress is not None:
        progress(1.0, "done")
    return Figures(gemm, side_half, copy, memory, read, write, operation, drawn)


def _where(folder: Path | None) -> Path:
    return folder or Path(tempfile.gettempdir())


def _key(folder: Path, threads: int | None) -> str:
    try:
        disk = str(folder.stat().st_dev)
    except (OSError, ValueError):
        disk = "none"
    return f"{platform.node()} {platform.machine()} {threads or cores()} cores, disk {disk}"


def _stored(folder: Path, threads: int | None, *, doubted: bool = True) -> Figures | None:
    """Return cached figures, None where there are none or one of them is no rate.

    Figures that a run has shown to be too low count only with `doubted`.
    """
    entry = read_entries(_FILE).get(_key(folder, threads))
    if not isinstance(entry, dict) or (entry.pop(_DOUBTED, False) and not doubted):
        return None
    if set(entry) != {field.name for field in fields(Figures)}:
        return None
    for name, rate in entry.items():
        missing = rate is None and name.startswith("disk")
        number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if not (missing or (number and 1e-9 < rate < 1e18)):
            return None
    return Figures(**entry)


def _settled(earlier: Figures | None, measured: Figures) -> Figures:
    """Return measured figures, but the earlier ones where they are about the same."""
    if earlier is None:
        return measured
    old, new = asdict(earlier), asdict(measured)
    kept = {name: old[name] for name in new if _alike(old[name], new[name])}
    return replace(measured, **kept)


def _alike(earlier: float | None, measured: float | None) -> bool:
    """Say whether a figure that is measured again is about the same, or not found this time."""
    if earlier is None or measured is None:
        return measured is None
    low, high = sorted((earlier, measured))
    return high <= _OTHER * low
