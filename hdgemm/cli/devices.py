"""`hdgemm devices`: lists the devices, or checks one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hdgemm.cli.arguments import Json, complete_device
from hdgemm.cli.output import print_json, print_table

if TYPE_CHECKING:
    from hdgemm.device_check import CheckedGroup


def command(
    *,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_device,
            help="Check that this device multiplies correctly; exits with 1 if not.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the devices and why one cannot be used, or check a device."""
    if check is not None:
        _check(check, as_json=as_json)
    else:
        _list(as_json=as_json)


def _list(*, as_json: bool) -> None:
    from dataclasses import asdict

    import hdgemm
    from hdgemm.tables import Table
    from hdgemm.units import format_size

    found = hdgemm.devices()
    if as_json:
        print_json([asdict(device) for device in found])
        return
    rows = [
        (
            device.name,
            format_size(device.memory_bytes) if device.memory_bytes else "–",
            "yes" if device.usable else "no",
            f"{device.description}; {device.note}" if device.note else device.description,
        )
        for device in found
    ]
    print_table(Table(("device", "memory", "usable", "description"), rows))


def _check(name: str, *, as_json: bool) -> None:
    import hdgemm
    from hdgemm.units import format_duration

    def show(group: CheckedGroup) -> None:
        if not as_json:
            verdict = "passed" if group.passed else f"FAILED: {group.failure}"
            typer.echo(
                f"{group.dtype:10} {group.strategy:16} {group.memory:11} "
                f"{group.products} products, worst error {group.worst:.3f} of its bound: {verdict}"
            )

    result = hdgemm.check_device(name, progress=show)
    if as_json:
        print_json(result.to_dict())
    else:
        verdict = "PASSED" if result.passed else "FAILED"
        took = format_duration(result.seconds)
        typer.echo(f"{result.device}, {result.description}: {verdict} in {took}")
    raise typer.Exit(0 if result.passed else 1)
