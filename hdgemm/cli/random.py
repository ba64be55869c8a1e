"""`hdgemm random`: a random matrix, to try things with."""

from pathlib import Path
from typing import Annotated

import typer

from hdgemm.cli.arguments import DType


def command(
    m: Annotated[int, typer.Argument(metavar="M", help="Rows.")],
    n: Annotated[int, typer.Argument(metavar="N", help="Columns.")],
    out: Annotated[Path, typer.Option(help="Where it goes, a .npy file.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same matrix.")] = 0,
    dtype: Annotated[DType, typer.Option(help="Its elements.")] = "float64",
) -> None:
    """Write an M × N matrix of random numbers, in pieces, whatever its size."""
    from hdgemm.cli.tables import format_bytes
    from hdgemm.errors import InputError

    if m < 0 or n < 0:
        raise InputError(f"a matrix cannot have {m} × {n} elements; give extents of 0 or more")

    from hdgemm.matrices.random import random_matrix

    random_matrix(out, m, n, seed, dtype)
    typer.echo(f"{out}: {m} × {n} {dtype}, {format_bytes(out.stat().st_size)}")
