"""`hdgemm token`: who may use a service."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from hdgemm.cli.serve import DatabaseUrl, DataDir, make_settings


def command(
    action: Annotated[Literal["create", "list", "revoke"], typer.Argument()],
    name: Annotated[str, typer.Option(help="What the token is called.")] = "",
    quota: Annotated[
        str | None, typer.Option(help="Bytes of matrices and results it may keep, like 10GB.")
    ] = None,
    max_jobs: Annotated[
        int | None, typer.Option(min=1, help="Unfinished jobs it may have.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Requests a second.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Create, list or revoke the tokens of a service. A secret is printed once and kept nowhere."""
    from hdgemm.errors import InputError
    from hdgemm.options import parse_size
    from hdgemm.server import tokens
    from hdgemm.server.database import open_database
    from hdgemm.server.documents import iso

    if action != "list" and not (name.isprintable() and 0 < len(name) <= 200):
        raise InputError(f"token {action} needs --name, up to 200 printable characters")
    database = open_database(make_settings(data_dir=data_dir, database_url=database_url))
    with database.write() as conn:
        now = database.now(conn)
        if action == "create":
            account = tokens.Account(
                name=name, max_jobs=max_jobs, rate=rate,
                max_bytes=None if quota is None else parse_size(quota),
            )  # fmt: skip
            typer.echo(tokens.create(conn, account, now))
        elif action == "revoke":
            if not tokens.revoke(conn, name, now):
                raise InputError(f"there is no token named {name!r}; see 'hdgemm token list'")
        else:
            for known, created, revoked in tokens.names(conn):
                state = "" if revoked is None else f"  revoked {iso(revoked)}"
                typer.echo(f"{known}  created {iso(created)}{state}")
    database.close()
