"""Hook of the document site: a page for each command and for each public name."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from html import escape
from inspect import ismodule
from textwrap import dedent
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

import hdgemm
from hdgemm.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Packages whose public names have pages.
PACKAGES = ("hdgemm", "hdgemm.linalg", "hdgemm.decomposition", "hdgemm.cluster", "hdgemm.mpi")
#: Names with pages that no package's `__all__` has: the client needs an extra, errors a module.
MORE_NAMES = (
    *("hdgemm.Client", "hdgemm.client.RemoteError", "hdgemm.client.RemoteJob"),
    *("hdgemm.client.RemoteMatrix", "hdgemm.errors"),
)
#: Classes that only functions make: their pages leave out how.
MADE = ("hdgemm.StoredMatrix", "hdgemm.client.RemoteJob")
#: This line of docs/reference/library.md is replaced by the list of these pages.
NAMES_MARK = "<!-- functions -->"
#: This line of docs/reference/cli.md is replaced by the list of the commands' pages.
MARK = "<!-- commands -->"
#: The section "See Also" of a docstring, as mkdocstrings renders it, and an entry of it.
_SEE_ALSO = re.compile(
    r'(<details class="see-also"[^>]*>\s*<summary>.*?</summary>)\s*<p>(.*?)</p>', re.DOTALL
)
_ENTRY = re.compile(r"^(\S[^:]*) : (.*(?:\n(?!\S[^:]* : ).*)*)", re.MULTILINE)
#: Members of classes that the package calls itself, by class: their pages leave them out.
_INTERNAL = {
    "hdgemm.DoesNotFitError": ("within",),
    "hdgemm.linalg.SingularMatrixError": ("of_pivot",),
    "hdgemm.Session": (
        *("check_consumer", "consumed", "device", "free_slots", "machine", "reopen", "running"),
        *("slots", "warn_of_memory"),
    ),
    "hdgemm.StoredMatrix": ("operand",),
    "hdgemm.decomposition.PCA": ("__sklearn_tags__",),
    "hdgemm.mpi.BlockCyclicArray": ("axes", "check", "copy_to", "like"),
}
#: The type of `**keywords`, which says nothing beside the link to their list.
_UNPACKED = re.compile(
    r"\s*\(<code>(?:(?!</code>).)*>Unpack<.*?</code>, default:\s*<code>\{\}</code>\s*\)", re.DOTALL
)
#: The first paragraph of a page, and what of it is no plain text.
_PARAGRAPH = re.compile(r"^(?![#<|`!\-:])\S.*(?:\n\S.*)*", re.MULTILINE)
_MARKUP = re.compile(r"\[([^\]]*)\]\([^)]*\)|[`*]")
#: Characters of a paragraph that describes a page.
_SHORTEST = 60
#: The page of an address that does not exist, as the theme has it.
_NOT_FOUND = re.compile(r"<h1>404[^<]*</h1>")
#: Words of docstrings that lead to the list of these keywords.
_KEYWORDS = "Keywords of every call"
#: Code within a sentence, and the options of a command in it, which no line may break.
_INLINE_CODE = re.compile(r"<code>[^<\n]+</code>")
_OPTION = re.compile(r"(?<=[\s>])(--[a-z][\w-]*)")


def public_names() -> Iterator[str]:
    """Yield the full public name of every function, class and module that has a page."""
    for package in PACKAGES:
        room = hdgemm if package == "hdgemm" else getattr(hdgemm, package.partition(".")[2])
        for name in room.__all__:
            if not ismodule(getattr(room, name)):
                yield f"{package}.{name}"
    yield from MORE_NAMES


def documented_path(name: str) -> str:
    """Return the path of a public name for mkdocstrings.

    A function's public name may also be its module's, which mkdocstrings would show instead.
    """
    room, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(room), last)
    if ismodule(value) or name not in sys.modules:
        return name
    return f"{inspect.getmodule(inspect.unwrap(value)).__name__}.{last}"


def on_config(config: Any) -> Any:
    """Add the version and the public names; without a repository there is nothing to edit."""
    config.copyright = f"hdgemm {hdgemm.__version__}"
    if not config.repo_url:
        config.edit_uri = None
    packages: dict[str, list[dict[str, str]]] = {package: [] for package in PACKAGES}
    for name in public_names():
        package, _, last = name.rpartition(".")
        packages.setdefault(package, []).append({last: f"reference/names/{name}.md"})
    pages = [{package: names} for package, names in packages.items()]
    reference = next(part["Reference"] for part in config.nav if "Reference" in part)
    commands = [{name: f"reference/commands/{name}.md"} for name in shown_commands()]
    reference += [{"Commands": commands}, {"Functions and classes": pages}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the commands, and of the public names, which mkdocstrings fills in."""
    from mkdocs.structure.files import File

    pages = {f"reference/names/{name}.md": name_page(name) for name in public_names()}
    for name, command in shown_commands().items():
        text = "\n".join(command_reference(f"hdgemm {name}", command))
        pages[f"reference/commands/{name}.md"] = f"---\ntitle: hdgemm {name}\n---\n{text}\n"
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def name_page(name: str) -> str:
    """Return the page of a public name: title, description, and what mkdocstrings fills in."""
    room, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(room), last)
    summary = (inspect.getdoc(value) or "").partition("\n\n")[0]
    lines = [
        f"---\ntitle: {name}\ndescription: {json.dumps(summary)}\n---\n",
        f"::: {documented_path(name)}\n    options:\n      heading_level: 1\n      heading: {name}",
    ]
    if ismodule(value):
        errors = inspect.getmembers(value, inspect.isclass)
        shown = [each for each, kind in errors if kind.__module__ == value.__name__]
        lines.append(f"      members: {shown}")
    hidden = {name, *(f"hdgemm.{each}" for each in dir(value) if ismodule(value))} & set(_INTERNAL)
    internal = [f"!^{each}$" for owner in sorted(hidden) for each in _INTERNAL[owner]]
    if name in MADE:
        lines.append("      merge_init_into_class: false")
        internal.append("!^__init__$")
    lines.append(f"      filters: {['!^_[^_]', *internal]}")
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Describe a page for search engines, and replace its marks; mkdocs calls this for each."""
    page.meta["description"] = description(markdown, page.meta.get("description"), page.title)
    names = "\n".join(f"- [`{name}`](names/{name}.md)" for name in public_names())
    markdown = markdown.replace(NAMES_MARK, names)
    if MARK not in markdown:
        return markdown
    commands = (
        f"- [`hdgemm {name}`](commands/{name}.md): {_cell(command.help or '').partition('. ')[0]}"
        for name, command in shown_commands().items()
    )
    return markdown.replace(MARK, "\n".join(commands))


def description(markdown: str, given: str | None, title: str) -> str:
    """Return the given description, else the first paragraph if it says something, as HTML."""
    found = _PARAGRAPH.search(markdown)
    text = _MARKUP.sub(r"\1", " ".join((given or (found[0] if found else "")).split()))
    if not given and (len(text) < _SHORTEST or text.endswith(":")):
        text = f"{title}: dense linear algebra for matrices larger than memory, with hdgemm"
    return escape(text)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Mark options in the text; on a function's page make links of "See Also" and keywords."""
    html = _INLINE_CODE.sub(lambda code: _OPTION.sub(r"<span>\1</span>", code[0]), html)
    room = page.file.src_uri.rpartition("/")[2].removesuffix(".md").rpartition(".")[0]
    if not page.file.src_uri.startswith("reference/names/"):
        return html
    html = _UNPACKED.sub("", html)
    html = html.replace(_KEYWORDS, f'<a href="../../library/#calls">{_KEYWORDS}</a>')
    return _SEE_ALSO.sub(lambda found: f"{found[1]}{_links(found[2], room)}", html)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """Say on the page of a wrong address where to look."""
    if template_name != "404.html":
        return output_content
    home = urlsplit(config.site_url or "").path or "/"
    text = (
        "<h1>There is no page at this address</h1>\n<p>It may have moved. Search finds it, or:</p>"
    )
    pages = {"home": "", "recipes": "recipes/", "functions and classes": "reference/library/",
             "command line": "reference/cli/"}  # fmt: skip
    items = "".join(f'<li><a href="{home}{path}">{name}</a></li>' for name, path in pages.items())
    output = on_post_page(output_content).replace("<title>", "<title>No such page - ")
    return _NOT_FOUND.sub(f"{text}\n<ul>{items}</ul>", output)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search for screen readers; site.js completes what the theme's script adds."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')


def _links(entries: str, room: str) -> str:
    """Return "See Also" as a list; names of the same package have no prefix."""
    pages, items = set(public_names()), []
    for names, text in _ENTRY.findall(entries):
        shown = []
        for name in names.split(", "):
            full = name if "." in name else f"{room}.{name}"
            code = f"<code>{name}</code>"
            shown.append(f'<a href="../{full}/">{code}</a>' if full in pages else code)
        items.append(f"<li>{', '.join(shown)}: {text}</li>")
    return f"<ul>{''.join(items)}</ul>"


def shown_commands() -> dict[str, Any]:
    """Return the commands of `hdgemm` that its help shows."""
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {name: command for name, command in commands.items() if not command.hidden}


def command_reference(name: str, command: Any, heading: str = "#") -> Iterator[str]:
    """Yield the lines that describe a command, then its subcommands."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option"]
    subcommands = getattr(command, "commands", {})
    usage = [name, *map(_argument, arguments)]
    usage += ["COMMAND"] if subcommands else []
    yield from ("", f"{heading} {name}", "", (command.help or "").strip(), "")
    yield from ("```text", " ".join([*usage, "[OPTIONS]"] if options else usage), "```", "")
    if command.epilog:
        examples = dedent(command.epilog.partition("Examples:\n")[2]).rstrip()
        yield from ("```text", examples, "```", "")
    shown = [param for param in (*arguments, *options) if not getattr(param, "hidden", False)]
    if shown:
        yield from ("| option | default | meaning |", "|---|---|---|")
        yield from (_row(param) for param in shown)
    for part, subcommand in subcommands.items():
        if not subcommand.hidden:
            yield from command_reference(f"{name} {part}", subcommand, f"{heading}#")


def _argument(param: Any) -> str:
    shown: str = param.metavar or param.name.upper()
    return shown


def _row(param: Any) -> str:
    if param.param_type_name == "argument":
        names = f"`{_argument(param)}`"  # no bar within code ends a cell
    else:
        names = ", ".join(f"`{opt}`" for opt in (*param.opts, *param.secondary_opts))
        names += f" {_cell(param.metavar)}" if param.metavar else ""
    default = "required" if param.required else _default(param)
    return f"| {names} | {default} | {_cell(param.help or '')} |"


def _default(param: Any) -> str:
    value = param.default
    shown = isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
    return f"`{_cell(str(value))}`" if shown else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
