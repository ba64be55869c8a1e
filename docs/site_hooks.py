"""Hook of the document site: the reference of all commands, made from the command tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from hdgemm.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

#: This line of docs/reference/cli.md is replaced by the reference.
MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark of a page; mkdocs calls this for every page."""
    if MARK not in markdown:
        return markdown
    reference = command_reference("hdgemm", typer.main.get_command(app))
    return markdown.replace(MARK, "\n".join(reference))


def command_reference(name: str, command: Any) -> Iterator[str]:
    """Yield the lines that describe a command, then those of its subcommands."""
    if getattr(command, "hidden", False):
        return
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option"]
    subcommands = getattr(command, "commands", {})
    usage = [name, *(argument.name.upper() for argument in arguments)]
    usage += ["COMMAND"] if subcommands else []
    yield from ("", f"### {name}", "", (command.help or "").strip(), "")
    yield from ("```text", " ".join([*usage, "[OPTIONS]"] if options else usage), "```", "")
    if command.epilog:
        yield from ("```text", command.epilog.partition("Examples:\n")[2], "```", "")
    shown = [param for param in (*arguments, *options) if not getattr(param, "hidden", False)]
    if shown:
        yield from ("| option | default | meaning |", "|---|---|---|")
        yield from (_row(param) for param in shown)
    for part, subcommand in subcommands.items():
        yield from command_reference(f"{name} {part}", subcommand)


def _row(param: Any) -> str:
    if param.param_type_name == "argument":
        names = f"`{param.name.upper()}`"
    else:
        names = ", ".join(f"`{opt}`" for opt in (*param.opts, *param.secondary_opts))
        names += f" {param.metavar}" if param.metavar else ""
    default = "required" if param.required else _default(param)
    return f"| {names} | {default} | {_cell(param.help or '')} |"


def _default(param: Any) -> str:
    value = param.default
    shown = isinstance(value, str | int | float) and not isinstance(value, bool)
    return f"`{_cell(str(value))}`" if shown else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
