"""`hdgemm linpack`: HPL's benchmark on this machine, or on all processes of mpiexec."""

from __future__ import annotations

import itertools
import json
import platform
import sys
import traceback
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated

import typer

from hdgemm.cli.arguments import Device, Json, Threads, make_options
from hdgemm.errors import HdgemmError, InputError

if TYPE_CHECKING:
    from hdgemm.hpl.communicator import Communicator
    from hdgemm.hpl.settings import Settings
    from hdgemm.options import Options


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
    depth: Annotated[str, typer.Option(help="Lookahead: 0, 1 or 0,1.")] = "1",
    bcast: Annotated[
        str, typer.Option(help="Broadcast: 1ring, 1ring-modified, 2ring or 2ring-modified.")
    ] = "1ring",
    swap: Annotated[str, typer.Option(help="Row exchange: long or binary-exchange.")] = "long",
    hpl_dat: Annotated[
        Path | None, typer.Option(help="Take the runs of an HPL.dat instead.")
    ] = None,
    *,
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
    from hdgemm.hpl.communicator import world as all_processes

    world = all_processes()
    try:
        options = make_options(device=device or ["host"], threads=threads)
        runs = _runs(world, n, nb, grid, depth, bcast, swap) if hpl_dat is None else _read(hpl_dat)
        passed = _measure(runs, world, options, mixed=mxp, as_json=as_json)
    except BaseException as error:
        if world.size == 1:
            raise
        # The other processes wait for this one: end them all, and say which one failed.
        if not isinstance(error, HdgemmError):
            traceback.print_exc()
        print(f"hdgemm: rank {world.rank}: {error}", file=sys.stderr, flush=True)
        world.abort(getattr(error, "exit_code", 1))
        raise
    if not passed:
        raise typer.Exit(1)


def _read(path: Path) -> list[Settings]:
    from hdgemm.hpl.settings import read_dat

    return read_dat(path)


def _runs(
    world: Communicator, n: str | None, nb: str | None, grid: str | None, *variants: str
) -> list[Settings]:
    """Return every combination of the values given, with defaults that were measured."""
    from hdgemm.hpl.machine import best_block, largest_order, update_rates
    from hdgemm.hpl.settings import Settings, parse_grid

    depth, bcast, swap = (text.split(",") for text in variants)
    # Rank 0 measures; the others take what it found.
    chosen = [best_block(update_rates())] if nb is None and world.rank == 0 else _numbers(nb)
    blocks: list[int] = world.collect(chosen)[0]
    orders = _numbers(n) or [largest_order(max(blocks), world)]
    grids = [_grid(world.size)] if grid is None else [parse_grid(one) for one in grid.split(",")]
    return [
        Settings(order, block, pq, depth=turn, broadcast=topology, swap=exchange)
        for pq, order, block, turn, topology, exchange in itertools.product(
            grids, orders, blocks, _numbers(",".join(depth)), bcast, swap
        )
    ]


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
    runs: list[Settings], world: Communicator, options: Options, *, mixed: bool, as_json: bool
) -> bool:
    """Run everything, print on rank 0, and say whether all residuals passed."""
    from threadpoolctl import threadpool_limits

    from hdgemm.hpl.benchmark import linpack
    from hdgemm.hpl.devices import update_on
    from hdgemm.hpl.machine import dgemm_rate
    from hdgemm.hpl.text import result_lines, summary_lines
    from hdgemm.machine.limits import cores

    results, speaks = [], world.rank == 0 and not as_json
    # The processes of one machine share its cores.
    together = world.collect(platform.node()).count(platform.node())
    blas_threads = options.threads or max(1, cores() // together)
    with threadpool_limits(blas_threads, user_api="blas"), update_on(options) as update:
        dgemm = dgemm_rate(world)
        for settings in runs:
            if world.rank == 0 and sys.stderr.isatty():
                expected = settings.flops / (0.85 * dgemm)
                print(f"N = {settings.n}: about {expected:.0f} s", file=sys.stderr)
            results.append(linpack(settings, world, update=update, mixed=mixed))
            if speaks and results[-1] is not None:
                typer.echo("\n".join(result_lines(results[-1], dgemm)))
    found = [result for result in results if result is not None]
    if speaks:
        typer.echo("\n".join(summary_lines(found)))
    if world.rank == 0 and as_json:
        typer.echo(json.dumps({"dgemm": dgemm, "runs": [one.to_dict() for one in found]}, indent=1))
    return all(result.passed for result in found)
