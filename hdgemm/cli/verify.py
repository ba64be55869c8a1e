"""`hdgemm verify`: check that C is the product of A and B."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    a: Annotated[Path, typer.Argument(help="A, a .npy file.")],
    b: Annotated[Path, typer.Argument(help="B, a .npy file.")],
    c: Annotated[Path, typer.Argument(help="C, a .npy file.")],
) -> None:
    """Check C = A·B by Freivalds' method: each file is read once, in pieces.

    Exits with 1 when C is not the product.
    """
    import hdgemm

    result = hdgemm.verify(a, b, c)
    typer.echo(str(result))
    raise typer.Exit(0 if result.passed else 1)
