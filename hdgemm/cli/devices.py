"""`hdgemm devices`: lists the devices, or checks one."""

from typing import Annotated

import typer

from hdgemm.cli.arguments import Json


def command(
    *,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Check that this device multiplies correctly; exits with 1 if not."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the devices, what each can hold, and why one is not usable; or check one."""
    if check is not None:
        _check(check, as_json=as_json)
    else:
        _list(as_json=as_json)


def _list(*, as_json: bool) -> None:
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.markup import escape

    import hdgemm
    from hdgemm.cli.tables import format_bytes, new_table

    found = hdgemm.devices()
    if as_json:
        typer.echo(json.dumps([asdict(device) for device in found], indent=2))
        return
    table = new_table()
    for heading in ("device", "memory", "usable", "what it is"):
        table.add_column(heading)
    for device in found:
        table.add_row(
            device.name,
            format_bytes(device.memory_bytes) if device.memory_bytes else "–",
            "yes" if device.usable else "no",
            escape(f"{device.description}; {device.note}" if device.note else device.description),
        )
    Console().print(table)


def _check(name: str, *, as_json: bool) -> None:
    import json

    import hdgemm
    from hdgemm.device_check import CheckedGroup

    def show(group: CheckedGroup) -> None:
        if not as_json:
            verdict = "passed" if group.passed else f"FAILED: {group.failure}"
            typer.echo(
                f"{group.dtype:10} {group.strategy:16} {group.memory:11} "
                f"{group.products} products, worst error {group.worst:.3f} of its bound: {verdict}"
            )

    result = hdgemm.check_device(name, progress=show)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    else:
        verdict = "PASSED" if result.passed else "FAILED"
        typer.echo(f"{result.device}, {result.description}: {verdict} in {result.seconds:.0f} s")
    raise typer.Exit(0 if result.passed else 1)
