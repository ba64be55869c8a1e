"""`hdgemm verify`: check that C is the product of A and B."""

from pathlib import Path
from typing import Annotated

import typer

from hdgemm.cli.arguments import Json, TransA, TransB, parse_scalar
from hdgemm.cli.output import print_json, print_result
from hdgemm.errors import InputError


def command(
    a: Annotated[Path, typer.Argument(metavar="A", help="A: a file, or FILE::NAME.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="B: a file, or FILE::NAME.")],
    c: Annotated[Path | None, typer.Argument(metavar="C", help="C: a file, or FILE::NAME.")] = None,
    alpha: Annotated[str, typer.Option(help="Factor of the product.")] = "1",
    beta: Annotated[str, typer.Option(help="Factor of the old C.")] = "0",
    c_before: Annotated[Path | None, typer.Option(help="The C that beta multiplied.")] = None,
    *,
    trans_a: TransA = False,
    trans_b: TransB = False,
    rounds: Annotated[
        int, typer.Option(help="Random vectors; an error is missed with probability 2^-rounds.")
    ] = 30,
    host_memory: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Memory that the check may take."),
    ] = "256MB",
    lu: Annotated[bool, typer.Option("--lu", help="A and B are a matrix and its LU.")] = False,
    cholesky: Annotated[
        bool, typer.Option("--cholesky", help="A and B are a matrix and its Cholesky factor.")
    ] = False,
    qr: Annotated[
        bool, typer.Option("--qr", help="A and B are a matrix and its QR reflectors.")
    ] = False,
    solve: Annotated[bool, typer.Option("--solve", help="C is the X of A·X = B.")] = False,
    as_json: Json = False,
) -> None:
    """Check a product, factors or a solution with random vectors.

    Each file is read once, in pieces. Where C has a journal, each stored piece is compared with
    its checksum too. Exits with 1 when C is not the product, or a piece is damaged.
    """
    from hdgemm.options import built_in_options

    built_in_options(host_memory=host_memory)  # asks for a unit, as other commands do
    flags = {"lu": lu, "cholesky": cholesky, "qr": qr, "solve": solve}
    if kinds := [name for name, asked in flags.items() if asked]:
        _check_factors(a, b, c, rounds, kinds, as_json)
    if c is None:
        raise InputError("verify takes A B C; A and its factors with --lu, --cholesky or --qr")
    from dataclasses import asdict

    import hdgemm
    from hdgemm.durable.audit import audit

    check = hdgemm.verify(
        a,
        b,
        c,
        alpha=parse_scalar(alpha),
        beta=parse_scalar(beta),
        c_before=c_before,
        trans_a=trans_a,
        trans_b=trans_b,
        rounds=rounds,
        memory=host_memory,
    )
    found = audit(c)
    if as_json:
        stored = None if found is None else asdict(found)
        print_json({**asdict(check), "detects": check.detects, "journal": stored})
    else:
        typer.echo(str(check))
        if found is not None:
            typer.echo(str(found))
    raise typer.Exit(0 if check.passed and (found is None or found.passed) else 1)


def _check_factors(
    a: Path, b: Path, c: Path | None, rounds: int, kinds: list[str], as_json: bool
) -> None:
    """Check factors or a solution, and exit with 0 or 1."""
    from hdgemm.linalg.factor_check import check_cholesky, check_lu, check_qr, check_solution

    if len(kinds) != 1 or (c is None) == (kinds[0] == "solve"):
        raise InputError(
            "verify takes A LU with --lu, A L with --cholesky, A QR with --qr, A B X with --solve"
        )
    if kinds[0] == "solve":
        found = check_solution(a, b, c, rounds=rounds)
    else:
        check = {"lu": check_lu, "cholesky": check_cholesky, "qr": check_qr}[kinds[0]]
        found = check(a, b, rounds=rounds)
    print_result(found, as_json=as_json)
    raise typer.Exit(0 if found.passed else 1)
