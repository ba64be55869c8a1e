"""`hdgemm linpack`: HPL's benchmark on this machine, or on all processes of mpiexec."""

from __future__ import annotations

import itertools
import json
import os
import platform
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated

import typer

from hdgemm.cli.arguments import Json, Threads, device_option, make_options
from hdgemm.cli.supervisor import supervise
from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.devices import Devices
    from hdgemm.mpi.linpack.settings import Settings


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
    depth: Annotated[
        str | None, typer.Option(help="Lookahead: 0, 1, 2, ... or several. Default: 1.")
    ] = None,
    bcast: Annotated[
        str | None,
        typer.Option(
            help="Broadcast: 1ring (default), 2ring, long, or one of them with -modified."
        ),
    ] = None,
    swap: Annotated[
        str | None, typer.Option(help="Row exchange: long (default) or binary-exchange.")
    ] = None,
    overlap: Annotated[
        str,
        typer.Option(
            help="none, all, or window, panel-swap, shared-panel and split-swap joined by +."
        ),
    ] = "window",
    strip: Annotated[
        str | None,
        typer.Option(
            help="Columns that a core or device is dealt at a time. Default: 1024; all columns "
            "where each process has one core or device and Q is at most 2."
        ),
    ] = None,
    hpl_dat: Annotated[
        Path | None,
        typer.Option(help="Take N, NB, grid, depth, broadcast and swap of an HPL.dat instead."),
    ] = None,
    mxp: Annotated[
        bool, typer.Option("--mxp", help="HPL-MxP: factor in float32, refine to float64.")
    ] = False,
    device: Annotated[list[str] | None, device_option("chosen by measurement")] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Run the LINPACK benchmark by HPL's rules and print its lines.

    Runs in one process, or in all processes of mpiexec, as in
    mpiexec -n 4 hdgemm linpack --grid 2x2. The exit code is 1 when a residual fails.
    """
    supervise()  # before there are threads, and before MPI begins
    from hdgemm.cli.supervisor import SignalDeadline, ending_at_once
    from hdgemm.mpi.communicator import world as all_processes
    from hdgemm.mpi.devices import open_devices
    from hdgemm.mpi.machine import choose_devices
    from hdgemm.mpi.processes import ending_all, threads_of

    values = {"n": n, "nb": nb, "grid": grid, "depth": depth, "bcast": bcast, "swap": swap}
    with SignalDeadline() as deadline, ExitStack() as stack:
        with ending_at_once():  # MPI's initialisation waits for the other processes
            deadline.world = world = all_processes()
        stack.enter_context(ending_all(world))
        runs = _requested(hpl_dat, values, overlap, strip, world.size)
        others = {"overlap": overlap, "strip": strip, "mxp": mxp}
        world.compare(
            {f"--{name}": text for name, text in {**values, **others}.items()}
            | {"--hpl-dat": None if hpl_dat is None else runs}
        )
        _print_ranks(world)
        if hpl_dat is not None and world.rank == 0:
            _print_ignored(hpl_dat)
        options = make_options(device=device or ["host"], threads=threads)
        count = threads_of(options, world)
        if device is None:
            options = replace(options, devices=choose_devices(options, count))
        devices = stack.enter_context(open_devices(options, count))
        if hpl_dat is None:
            runs = _sized(runs, world, devices, n, nb, mixed=mxp)
        passed = _measure(runs, world, devices, count, mixed=mxp, as_json=as_json)
    if not passed:
        raise typer.Exit(1)


def _requested(
    hpl_dat: Path | None,
    values: Mapping[str, str | None],
    overlap: str,
    strip: str | None,
    size: int,
) -> list[Settings]:
    """Return every combination of the values given, of the command line or of an HPL.dat."""
    from hdgemm.mpi.linpack.settings import parse_overlap, read_dat

    given = [f"--{name}" for name, text in values.items() if text is not None]
    if hpl_dat is not None and given:
        raise InputError(f"--hpl-dat excludes {', '.join(given)}, which are values of the file")
    runs = _combined(values, size) if hpl_dat is None else read_dat(hpl_dat)
    return [
        replace(run, overlap=parse_overlap(names), strip=width)
        for run in runs
        for names in overlap.split(",")
        for width in (_numbers(strip, "strip") if strip is not None else [None])
    ]


def _combined(values: Mapping[str, str | None], size: int) -> list[Settings]:
    """Return every combination of the values given; N and NB are 1 where none was given."""
    from hdgemm.mpi.linpack.settings import Settings
    from hdgemm.mpi.variant import parse_grid, squarest

    defaults = {"n": "1", "nb": "1", "depth": "1", "bcast": "1ring", "swap": "long"}
    texts = defaults | {name: text for name, text in values.items() if text is not None}
    grids = texts["grid"].split(",") if "grid" in texts else []
    orders, blocks, depths = (_numbers(texts[name], name) for name in ("n", "nb", "depth"))
    return [
        Settings(order, block, pq, depth=depth, broadcast=topology, swap=exchange)
        for pq, order, block, depth, topology, exchange in itertools.product(
            [parse_grid(one) for one in grids] or [squarest(size)],
            orders,
            blocks,
            depths,
            texts["bcast"].split(","),
            texts["swap"].split(","),
        )
    ]


def _sized(
    runs: list[Settings],
    world: Communicator,
    devices: Devices,
    n: str | None,
    nb: str | None,
    *,
    mixed: bool,
) -> list[Settings]:
    """Return the runs with an NB that was measured and an N that fits, where none was given."""
    from hdgemm.mpi.machine import best_block, largest_order, update_rates
    from hdgemm.pipeline.devices.host_blas import blas_threads

    if nb is None:
        found = 0
        if world.rank == 0:
            # One core for itself, as in a run; an accelerator where there is one: it needs more.
            with blas_threads(1):
                found = best_block(update_rates(devices.updates[-1]))
        block: int = world.collect(found)[0]  # the others take what rank 0 measured
        runs = [replace(run, nb=block) for run in runs]
    if n is None:
        order = min(largest_order(run, world, itemsize=4 if mixed else 8) for run in runs)
        runs = [replace(run, n=order) for run in runs]
    return runs


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise InputError(
            f"--{option} is {text!r}: it must be a whole number, or several separated by commas"
        ) from None


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
    from hdgemm.mpi.linpack.benchmark import linpack
    from hdgemm.mpi.linpack.text import result_lines, summary_lines
    from hdgemm.mpi.machine import check, dgemm_rate
    from hdgemm.pipeline.devices.host_blas import blas_threads

    results, speaks = [], world.rank == 0 and not as_json
    for settings in runs:  # before any of them runs
        check(settings, world, itemsize=4 if mixed else 8)
    with blas_threads(threads):
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


def _print_ignored(hpl_dat: Path) -> None:
    """Print which lines of an HPL.dat have no effect here."""
    from hdgemm.mpi.linpack.settings import ignored_lines

    print(f"hdgemm: {hpl_dat}: lines without effect:", file=sys.stderr)
    for line in ignored_lines(hpl_dat):
        print(f"  {line}", file=sys.stderr)
