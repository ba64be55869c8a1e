"""`hdgemm random`: writes a random matrix, to try things with."""

from pathlib import Path
from typing import Annotated

import typer

from hdgemm.cli.arguments import Json, NoClobber
from hdgemm.cli.output import print_json, refuse_existing
from hdgemm.dtypes import DTypeName


def command(
    m: Annotated[int, typer.Argument(metavar="M", help="Rows.")],
    n: Annotated[int, typer.Argument(metavar="N", help="Columns.")],
    out: Annotated[Path, typer.Option(help="Where it goes, a .npy file.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same matrix.")] = 0,
    dtype: Annotated[DTypeName, typer.Option(help="Type of its elements.")] = "float64",
    *,
    no_clobber: NoClobber = False,
    as_json: Json = False,
) -> None:
    """Write a matrix of random numbers, in pieces."""
    from hdgemm.matrices.random import random_matrix
    from hdgemm.units import format_size

    if no_clobber:
        refuse_existing(out)
    random_matrix(out, m, n, seed, dtype)
    nbytes = out.stat().st_size
    if as_json:
        print_json(
            {"path": str(out), "shape": [m, n], "dtype": dtype, "seed": seed, "bytes": nbytes}
        )
    else:
        typer.echo(f"{out}: {m} × {n} {dtype}, {format_size(nbytes)}")
