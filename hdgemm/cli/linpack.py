"""`hdgemm linpack`: HPL's benchmark on this machine, or on all processes of mpiexec."""

from __future__ import annotations

import itertools
import json
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated

import typer

from hdgemm.cli.arguments import Device, Json, Threads, make_options
from hdgemm.errors import InputError

if TYPE_CHECKING:
    from hdgemm.hpl.communicator import Communicator
    from hdgemm.hpl.devices import Devices
    from hdgemm.hpl.settings import Settings


def command(
    n: Annotated[
        str | None,
        typer.Option(help="Order, or several: 10000,20000. Default: what fits free memory."),
    ] = None,
    nb: Annotated[
        str | None, typer.Option(help="Block size, or several. Default: measured.")
    ] = None,
    grid: Annotated[
        str | None, typer.Option(metavar="PxQ", help="Grid of processes, or several: 1x4,2x2.")
    ] = None,
    *,
    depth: Annotated[str, typer.Option(help="Lookahead: 0, 1, 2, ... or several.")] = "1",
    bcast: Annotated[
        str, typer.Option(help="Broadcast: 1ring, 2ring, long, or one of them with -modified.")
    ] = "1ring",
    swap: Annotated[str, typer.Option(help="Row exchange: long or binary-exchange.")] = "long",
    overlap: Annotated[
        str,
        typer.Option(
            help="none, all, or window, panel-swap, shared-panel and split-swap joined by +."
        ),
    ] = "window",
    strip: Annotated[
        str | None,
        typer.Option(
            help="Columns that a core or device is dealt at a time. Default: 512, or all columns "
            "for one core."
        ),
    ] = None,
    hpl_dat: Annotated[
        Path | None, typer.Option(help="Take the runs of an HPL.dat instead.")
    ] = None,
    mxp: Annotated[
        bool, typer.Option("--mxp", help="HPL-MxP: factor in float32, refine to float64.")
    ] = False,
    device: Device = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Run the LINPACK benchmark by HPL's rules and print its lines.

    Runs in one process, or in all processes of mpiexec, as in
    mpiexec -n 4 hdgemm linpack --grid 2x2. The exit code is 1 when a residual fails.
    """
    from hdgemm.hpl.benchmark import ending_all, threads_of
    from hdgemm.hpl.communicator import world as all_processes
    from hdgemm.hpl.devices import open_devices
    from hdgemm.hpl.machine import choose_devices

    world = all_processes()
    with ending_all(world):
        _print_ranks(world)
        options = make_options(device=device or ["host"], threads=threads)
        count = threads_of(options, world)
        if device is None:
            options = replace(options, devices=choose_devices(options, count))
        with open_devices(options, count) as devices:
            runs = (
                _runs(world, devices, n, nb, grid, strip, (depth, bcast, swap, overlap))
                if hpl_dat is None else _read(hpl_dat)
            )  # fmt: skip
            passed = _measure(runs, world, devices, count, mixed=mxp, as_json=as_json)
    if not passed:
        raise typer.Exit(1)


def _read(path: Path) -> list[Settings]:
    from hdgemm.hpl.settings import read_dat

    return read_dat(path)


def _runs(
    world: Communicator,
    devices: Devices,
    n: str | None,
    nb: str | None,
    grid: str | None,
    strip: str | None,
    variants: tuple[str, str, str, str],
) -> list[Settings]:
    """Return every combination of the values given, with defaults that were measured."""
    from threadpoolctl import threadpool_limits

    from hdgemm.hpl.machine import best_block, largest_order, update_rates
    from hdgemm.hpl.settings import Settings, parse_grid, parse_overlap

    depth, bcast, swap, overlap = (text.split(",") for text in variants)
    # Rank 0 measures; the others take what it found.
    chosen = _numbers(nb)
    if nb is None and world.rank == 0:
        # One core for itself, as in a run; an accelerator where there is one, which needs more.
        with threadpool_limits(1, user_api="blas"):
            chosen = [best_block(update_rates(devices.updates[-1]))]
    blocks: list[int] = world.collect(chosen)[0]
    orders = _numbers(n) or [largest_order(max(blocks), world)]
    strips: list[int] | list[None] = _numbers(strip) or [None]
    grids = [_grid(world.size)] if grid is None else [parse_grid(one) for one in grid.split(",")]
    return [
        Settings(
            order, block, pq, depth=turn, broadcast=topology, swap=exchange,
            overlap=parse_overlap(names), strip=width,
        )
        for pq, order, block, turn, topology, exchange, names, width in itertools.product(
            grids, orders, blocks, _numbers(",".join(depth)), bcast, swap, overlap,
            strips,
        )
    ]  # fmt: skip


def _numbers(text: str | None) -> list[int]:
    try:
        return [int(one) for one in text.split(",")] if text else []
    except ValueError:
        raise InputError(f"expected whole numbers separated by commas, got {text!r}") from None


def _grid(size: int) -> tuple[int, int]:
    """Return the squarest grid of all processes, with no more rows than columns."""
    p = max(p for p in range(1, int(size**0.5) + 1) if size % p == 0)
    return p, size // p


def _measure(
    runs: list[Settings],
    world: Communicator,
    devices: Devices,
    threads: int,
    *,
    mixed: bool,
    as_json: bool,
) -> bool:
    """Run everything, print on rank 0, and say whether all residuals passed."""
    from threadpoolctl import threadpool_limits

    from hdgemm.hpl.benchmark import linpack
    from hdgemm.hpl.machine import dgemm_rate
    from hdgemm.hpl.text import result_lines, summary_lines

    results, speaks = [], world.rank == 0 and not as_json
    with threadpool_limits(threads, user_api="blas"):
        dgemm = dgemm_rate(world, max(settings.n for settings in runs))
    for settings in runs:
        if world.rank == 0 and sys.stderr.isatty():
            expected = settings.flops / (0.85 * dgemm)
            print(f"N = {settings.n}: about {expected:.0f} s", file=sys.stderr)
        results.append(linpack(settings, world, devices=devices, mixed=mixed))
        if speaks and results[-1] is not None:
            typer.echo("\n".join(result_lines(results[-1], dgemm)))
    found = [result for result in results if result is not None]
    if speaks:
        typer.echo("\n".join(summary_lines(found)))
    if world.rank == 0 and as_json:
        typer.echo(json.dumps({"dgemm": dgemm, "runs": [one.to_dict() for one in found]}, indent=1))
    return all(result.passed for result in found)


def _print_ranks(world: Communicator) -> None:
    """Print where each rank runs, since mpiexec names a process that was killed by its number."""
    found = world.collect((platform.node(), os.getpid()))
    if world.rank == 0 and world.size > 1:
        for rank, (host, process) in enumerate(found):
            line = f"hdgemm: rank {rank} is process {process} on {host}"
            print(line, file=sys.stderr, flush=True)
