"""`hdgemm devices`: what there is to multiply on."""

import typer

from hdgemm.cli.arguments import Json


def command(*, as_json: Json = False) -> None:
    """List the devices, what each can hold, and why one is not usable."""
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
