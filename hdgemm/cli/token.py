"""`hdgemm token`: the tokens of a service, with their limits."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads it
from typing import Annotated, Final, Literal

import typer

from hdgemm.cli.arguments import Json  # noqa: TC001 - typer reads it
from hdgemm.cli.output import print_json
from hdgemm.cli.serve import DatabaseUrl, DataDir, check_folders, make_settings

_NONE_USABLE: Final = (
    "no token is valid now, and requests still need one: create another, or delete the revoked "
    "ones to serve this machine without tokens"
)
_NONE_LEFT: Final = "no token is left: requests from this machine need none"


def command(
    action: Annotated[Literal["create", "list", "revoke", "delete"], typer.Argument()],
    name: Annotated[str, typer.Option(help="The token's name.")] = "",
    *,
    quota: Annotated[
        str | None, typer.Option(help="Bytes of matrices and results it may keep, like 10GB.")
    ] = None,
    max_jobs: Annotated[
        int | None, typer.Option(min=1, help="Unfinished jobs it may have; default: 1000.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Requests a second.")] = None,
    max_priority: Annotated[
        int | None,
        typer.Option(min=-100, max=100, help="Highest priority of its jobs; default: 0."),
    ] = None,
    read: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A folder that its jobs may read; default: all roots."),
    ] = None,
    write: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="A folder that its jobs may read and write; default: none."
        ),
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Create, list, revoke or delete the tokens of a service.

    A token is printed once and stored as a hash. Revoked ones still close the service; once all
    are deleted, it needs no token on its own machine.
    """
    from hdgemm.errors import InputError
    from hdgemm.options import parse_size
    from hdgemm.server import tokens
    from hdgemm.server.database import open_database
    from hdgemm.server.documents import iso
    from hdgemm.tables import Table, is_printable

    if action != "list" and not (all(map(is_printable, name)) and 0 < len(name) <= 200):
        raise InputError(f"token {action} needs --name, up to 200 printable characters")
    account = tokens.Account(
        name=name,
        max_jobs=max_jobs,
        rate=rate,
        max_priority=max_priority,
        max_bytes=None if quota is None else parse_size(quota, "--quota"),
        read_roots=_real(read) if read else None,
        write_roots=_real(write or []),
    )
    database = open_database(make_settings(data_dir=data_dir, database_url=database_url))
    with database.write() as conn:
        now = database.now(conn)
        if action == "create":
            secret = tokens.create(conn, account, now)
            if as_json:
                print_json({"name": name, "token": secret})
            else:
                typer.echo(secret)
        elif action == "revoke":
            if not tokens.revoke(conn, name, now):
                raise InputError(f"there is no token named {name!r}; see 'hdgemm token list'")
            if not tokens.usable(conn):
                typer.echo(_NONE_USABLE, err=True)
        elif action == "delete":
            tokens.delete(conn, name)
            if not tokens.required(conn):
                typer.echo(_NONE_LEFT, err=True)
        else:
            rows = [
                (known, str(iso(created)), "" if revoked is None else str(iso(revoked)))
                for known, created, revoked in tokens.names(conn)
            ]
            heads = ("name", "created", "revoked")
            if as_json:
                print_json([dict(zip(heads, row, strict=True)) for row in rows])
            elif rows:
                typer.echo("\n".join(Table(heads, rows, text=True).lines()))
    database.close()


def _real(folders: list[Path]) -> list[str]:
    check_folders(folders, "--read and --write take")
    return [str(folder.resolve()) for folder in folders]
