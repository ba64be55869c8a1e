"""`hdgemm multiply`: C := alpha·op(A)·op(B) + beta·C, file to file."""

from pathlib import Path
from typing import Annotated

import typer

from hdgemm.cli.arguments import (
    Device,
    DeviceMemory,
    HostMemory,
    Quiet,
    Split,
    Strategy,
    Threads,
    Tile,
    TransA,
    TransB,
    chosen_check,
    make_options,
    parse_scalar,
)


def command(
    a: Annotated[Path, typer.Argument(help="A: a file, or FILE::NAME.")],
    b: Annotated[Path, typer.Argument(help="B: a file, or FILE::NAME.")],
    out: Annotated[Path, typer.Option(help="Where C goes; may be the file given with --c.")],
    alpha: Annotated[str, typer.Option(help="Factor of the product.")] = "1",
    beta: Annotated[str, typer.Option(help="Factor of the old C; 0 never reads it.")] = "0",
    c: Annotated[Path | None, typer.Option(help="The old C: a file, or FILE::NAME.")] = None,
    *,
    trans_a: TransA = False,
    trans_b: TransB = False,
    host_memory: HostMemory = None,
    device_memory: DeviceMemory = None,
    device: Device = None,
    split: Split = None,
    threads: Threads = None,
    strategy: Strategy = "data-placement",
    tile: Tile = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check C by Freivalds' method.")] = False,
    verify_tiles: Annotated[
        bool, typer.Option("--verify-tiles", help="Check each tile of C before it is stored.")
    ] = False,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Keep a journal: the same command goes on later.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what an earlier run left.")
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome/Perfetto trace here.")] = None,
    gantt: Annotated[Path | None, typer.Option(help="Write a Gantt picture (PNG) here.")] = None,
    tilemap: Annotated[
        Path | None, typer.Option(help="Write a picture (PNG) of who computed which tile here.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the measured report here.")] = None,
    quiet: Quiet = False,
) -> None:
    """Multiply two matrices of any size and write C := alpha·op(A)·op(B) + beta·C."""
    options = make_options(
        host_memory=host_memory,
        device_memory=device_memory,
        device=device,
        threads=threads,
        strategy=strategy,
        tile=tile,
        verify=chosen_check(product=verify, tiles=verify_tiles),
        split=split,
    )
    from hdgemm.cli.running import Outputs, run

    run(
        a,
        b,
        c=c,
        out=out,
        factors={"alpha": parse_scalar(alpha), "beta": parse_scalar(beta)},
        trans=(trans_a, trans_b),
        options=options,
        durability={"checkpoint": checkpoint, "restart": restart},
        outputs=Outputs(trace=trace, gantt=gantt, tilemap=tilemap, report=report, quiet=quiet),
    )
