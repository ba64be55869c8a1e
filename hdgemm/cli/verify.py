"""`hdgemm verify`: check that C is the product of A and B."""

from pathlib import Path
from typing import Annotated

import typer

from hdgemm.cli.arguments import TransA, TransB, parse_scalar


def command(
    a: Annotated[Path, typer.Argument(help="A: a file, or FILE::NAME.")],
    b: Annotated[Path, typer.Argument(help="B: a file, or FILE::NAME.")],
    c: Annotated[Path, typer.Argument(help="C: a file, or FILE::NAME.")],
    alpha: Annotated[str, typer.Option(help="Factor of the product.")] = "1",
    beta: Annotated[str, typer.Option(help="Factor of the old C.")] = "0",
    c_before: Annotated[Path | None, typer.Option(help="The C that beta multiplied.")] = None,
    *,
    trans_a: TransA = False,
    trans_b: TransB = False,
    rounds: Annotated[int, typer.Option(help="Random vectors: a miss has chance 2^-rounds.")] = 30,
    memory: Annotated[str, typer.Option(help="Memory that the check may take.")] = "256MB",
    independent: Annotated[
        bool, typer.Option("--independent", help="Read through h5py, zarr or NumPy.")
    ] = False,
) -> None:
    """Check C = alpha·op(A)·op(B) + beta·C₀ by Freivalds' method, reading each file in pieces.

    Where C has a journal, each stored piece is compared with its checksum too. Exits with 1 when C
    is not the product, or a piece is damaged.
    """
    factors = parse_scalar(alpha), parse_scalar(beta)

    import hdgemm

    check = hdgemm.verify(
        a,
        b,
        c,
        alpha=factors[0],
        beta=factors[1],
        c_before=c_before,
        trans_a=trans_a,
        trans_b=trans_b,
        rounds=rounds,
        memory=memory,
        independent=independent,
    )
    typer.echo(str(check))

    from hdgemm.durable.audit import audit

    found = audit(c)
    if found is not None:
        typer.echo(str(found))
    raise typer.Exit(0 if check.passed and (found is None or found.passed) else 1)
