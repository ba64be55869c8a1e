"""`hdgemm demo`: the main job on random files, from nothing to a verified product."""

from pathlib import Path
from typing import Annotated

import typer

from hdgemm.cli.arguments import DeviceMemory, HostOrDevice, Json, Threads, make_options


def command(
    size: Annotated[str, typer.Option(help="Bytes of A and B together.")] = "2GB",
    host_memory: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Memory the run may add; at most a quarter of --size."),
    ] = "400MB",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo-out"),
    *,
    device: HostOrDevice = None,
    device_memory: DeviceMemory = None,
    threads: Threads = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the matrices too.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same matrices.")] = 1,
    as_json: Json = False,
) -> None:
    """Multiply random files that exceed the memory limit, and verify.

    Also measures BLAS in memory, for comparison. Leaves gantt.png, trace.json and report.json
    in the folder. Runs on the host unless --device names another.
    """
    options = make_options(
        host_memory=host_memory,
        device_memory=device_memory,
        device=device or ["host"],
        threads=threads,
    )

    from hdgemm.cli.demonstration import Demonstration, square_order
    from hdgemm.cli.output import print_json
    from hdgemm.options import parse_size

    limit = parse_size(host_memory)
    n = square_order(parse_size(size, "--size"), limit)
    demonstration = Demonstration(n, limit, out, options, seed=seed, quiet=as_json)
    saved = demonstration.play(keep=keep)
    if as_json:
        print_json(saved)
