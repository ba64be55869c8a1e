"""`hdgemm plan`: how a product would be computed, without touching any data."""

from typing import Annotated

import typer

from hdgemm.cli.arguments import (
    Device,
    DeviceMemory,
    DType,
    HostMemory,
    Json,
    Strategy,
    Threads,
    Tile,
    make_options,
)


def command(
    m: Annotated[int, typer.Argument(metavar="M", help="Rows of A and C.")],
    n: Annotated[int, typer.Argument(metavar="N", help="Columns of B and C.")],
    k: Annotated[int, typer.Argument(metavar="K", help="Columns of A, rows of B.")],
    dtype: Annotated[DType, typer.Option(help="What is multiplied.")] = "float64",
    *,
    host_memory: HostMemory = None,
    device_memory: DeviceMemory = None,
    device: Device = None,
    threads: Threads = None,
    strategy: Strategy = "data-placement",
    tile: Tile = None,
    as_json: Json = False,
) -> None:
    """Print tiles, order, bytes each stage moves, memory held, expected seconds and what limits."""
    options = make_options(
        host_memory=host_memory,
        device_memory=device_memory,
        device=device,
        threads=threads,
        strategy=strategy,
        tile=tile,
    )

    import hdgemm

    plan = hdgemm.plan_gemm(m, n, k, dtype=dtype, options=options)
    if as_json:
        typer.echo(plan.to_json())
        return

    from rich.console import Console

    from hdgemm.cli.tables import memory_table, plan_lines, planned_stage_table

    console = Console()
    for line in plan_lines(plan):
        console.print(line, highlight=False, soft_wrap=True)
    console.print()
    console.print(planned_stage_table(plan))
    console.print()
    console.print(memory_table(plan))
