"""What the machines of a run have: memory for a system, the best block size, their DGEMM."""

from __future__ import annotations

import platform
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.machine.limits import available_bytes
from hdgemm.mpi._window import host_update
from hdgemm.mpi.devices import open_devices
from hdgemm.pipeline.devices.registry import first_accelerator, list_devices

if TYPE_CHECKING:
    from hdgemm.mpi._window import Update
    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.variant import Variant
    from hdgemm.options import Options

#: Part of the available memory that the matrix takes where no order is given.
_MEMORY: Final = 0.8
#: Block sizes that are tried, and the part of the fastest one's rate that a smaller one needs:
#: smaller blocks balance better and have smaller panels.
_BLOCKS: Final = (64, 96, 128, 192, 256, 384, 512, 1024)
_ENOUGH: Final = 0.97
#: Extent of the measured updates, and how often each is timed.
_EXTENT: Final = 1536
_TURNS: Final = 3
#: A device takes part from this part of the fastest one's rate on: the columns that it is dealt
#: last would keep the others waiting.
_WORTH: Final = 0.1
#: Extents between which DGEMM is measured.
_LEAST: Final = 256
_LARGEST: Final = 3072
#: Seconds for which DGEMM is measured at least: calls of a millisecond vary by several times.
_LEAST_SECONDS: Final = 0.1


def needed_bytes(variant: Variant, *, columns: int = 1, itemsize: int = 8) -> int:
    """Return the bytes of one process: its part of the matrix, panels, rows of U, and vectors."""
    return held_bytes(variant, variant.n + columns, itemsize)


def held_bytes(variant: Variant, width: int, itemsize: int) -> int:
    """Return the bytes of one process that factors so many columns, as `needed_bytes` does."""
    p, q = variant.grid
    n, nb = variant.n, min(variant.nb, variant.n)
    rows, cols = min(-(-n // (nb * p)) * nb, n), min(-(-width // (nb * q)) * nb, width)
    panels = min(variant.depth, variant.panels) + 2
    held = (rows + 32) * cols + panels * nb * rows + 3 * nb * cols
    return itemsize * held + 96 * n


def check(
    variant: Variant,
    world: Communicator,
    *,
    columns: int = 1,
    itemsize: int = 8,
    extra: int = 0,
) -> None:
    """Refuse on every process a grid that does not fit, and a machine with too little memory.

    Parameters
    ----------
    columns, itemsize
        Right-hand sides, and bytes of an element.
    extra
        Bytes of a process beside `needed_bytes`.
    """
    p, q = variant.grid
    if p * q > world.size:
        raise InputError(
            f"a grid of {p}×{q} needs {p * q} processes, there are {world.size}: "
            f"start it with mpiexec -n {p * q}"
        )
    if "panel-swap" in variant.overlap and p > 1 and not world.threaded:
        raise InputError(
            "panel-swap sends messages from two threads, which this MPI does not allow: "
            "use an MPI with MPI_THREAD_MULTIPLE, or leave panel-swap out"
        )
    need = needed_bytes(variant, columns=columns, itemsize=itemsize) + extra
    host = platform.node()
    found = world.collect((host, need, available_bytes()))[: p * q]
    for name in sorted({node for node, _, _ in found}):
        needs = [need for node, need, _ in found if node == name]
        available = min(free for node, _, free in found if node == name)
        if sum(needs) > available:
            raise DoesNotFitError(
                f"{name}: its {len(needs)} processes need {sum(needs):,} bytes for N = "
                f"{variant.n}, {available:,} are available, {sum(needs) - available:,} are "
                "missing; lower N, or add machines",
                requested=sum(needs),
                available=available,
                missing=sum(needs) - available,
                limit="memory",
            )


def largest_order(
    variant: Variant, world: Communicator, *, columns: int = 1, itemsize: int = 8
) -> int:
    """Return the largest multiple of NB that takes most of each machine's memory, not its N."""
    (p, q), nb = variant.grid, variant.nb
    part = _memory_of_each(world, p * q)
    order = int((part * p * q / itemsize) ** 0.5) // nb * nb
    while (
        order > nb
        and needed_bytes(replace(variant, n=order), columns=columns, itemsize=itemsize) > part
    ):
        order -= nb
    return max(nb, order)


def memory_of_each(world: Communicator, variant: Variant, options: Options) -> int:
    """Return the bytes that each rank of the grid may take, as many as all others."""
    own = available_bytes() if options.host_bytes is None else options.host_bytes
    host = platform.node()
    found = world.collect((host, own, available_bytes()))[: variant.grid[0] * variant.grid[1]]
    hosts = [name for name, _, _ in found]
    return int(min(min(own, free // hosts.count(name)) for name, own, free in found))


def _memory_of_each(world: Communicator, count: int) -> float:
    """Return the bytes that each of the first processes may take, as many as all others."""
    found = world.collect((platform.node(), available_bytes()))[:count]
    hosts = [host for host, _ in found]
    least: float = min(max(free, 1 << 20) / hosts.count(host) for host, free in found)
    return _MEMORY * least


def choose_devices(options: Options, threads: int) -> tuple[str, ...]:
    """Return the host and the accelerators, without those that would only delay the fastest.

    Each is measured alone; without an accelerator nothing is measured.
    """
    if first_accelerator() is None:
        return ("host",)
    names = ["host", *(info.name for info in list_devices() if info.usable and info.accelerator)]
    rates = {name: rate_of(name, options, threads) for name in names}
    return tuple(name for name in names if rates[name] >= _WORTH * max(rates.values()))


def rate_of(name: str, options: Options, threads: int) -> float:
    """Return flop/s of the fastest updates on one device, or on all cores of the host."""
    with open_devices(replace(options, devices=(name,)), threads) as devices:
        return max(update_rates(devices.updates[0]).values()) * len(devices.updates)


def update_rates(update: Update = host_update) -> dict[int, float]:
    """Return flop/s of an update C := C - A·B for each block size, on a device."""
    rng = np.random.default_rng(0)
    c = np.zeros((_EXTENT, _EXTENT), order="F")
    numbers = rng.random((2, _EXTENT * max(_BLOCKS)))
    best = dict.fromkeys(_BLOCKS, float("inf"))
    for _ in range(_TURNS + 1):  # the first turn warms up
        for nb in _BLOCKS:
            first, second = numbers[:, : _EXTENT * nb]
            a, b = first.reshape((-1, nb), order="F"), second.reshape((nb, -1), order="F")
            start = time.perf_counter()
            update(a, b, c)
            best[nb] = min(best[nb], time.perf_counter() - start)
    return {nb: 2.0 * _EXTENT**2 * nb / seconds for nb, seconds in best.items()}


def best_block(rates: dict[int, float]) -> int:
    """Return the smallest block size that is about as fast as the fastest."""
    fastest = max(rates.values())
    return min(nb for nb, rate in rates.items() if rate >= _ENOUGH * fastest)


def dgemm_rate(world: Communicator, order: int) -> float:
    """Return flop/s of DGEMM on all processes at once, each by its fastest of some calls.

    No products are measured that are larger than `order`, or than the memory of a machine.
    """
    fitting = int((_memory_of_each(world, world.size) / (3 * 8)) ** 0.5)
    extent = min(max(order, _LEAST), _LARGEST, fitting)
    x = np.random.default_rng(0).random((extent, extent))
    y, out = x.copy(), np.empty_like(x)
    seconds: list[float] = []
    world.collect(None)  # all begin together
    while len(seconds) < _TURNS or sum(seconds) < _LEAST_SECONDS:
        start = time.perf_counter()
        np.matmul(x, y, out=out)
        seconds.append(time.perf_counter() - start)
    best = min(seconds)
    return float(world.total(np.array([2.0 * extent**3 / best]))[0])
