"""Output of commands: text or JSON on standard output, files and pictures beside it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from hdgemm.errors import HdgemmError, InputError
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from hdgemm.pipeline.plan import Plan
    from hdgemm.progress import Progress
    from hdgemm.progress_view import ProgressView
    from hdgemm.report import Report
    from hdgemm.tables import Table

    #: A product that takes a function which shows its progress, and returns its report.
    Call: TypeAlias = Callable[[Callable[[Progress], None] | None], Report]

#: A result of more bytes, and of more than so many times the operands' bytes, is asked about.
_LARGE_BYTES: Final = 1 << 30
_DWARFS: Final = 10
_SUFFIXES: Final = {"trace": ".json", "gantt": ".png", "tilemap": ".png", "report": ".json"}


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Files that a run leaves (None for none), and what it prints.

    With `quiet`, neither progress nor the table; with `as_json`, the report as JSON instead of the
    table.
    """

    trace: Path | None = None
    gantt: Path | None = None
    tilemap: Path | None = None
    report: Path | None = None
    quiet: bool = False
    as_json: bool = False

    def check(self) -> None:
        """Refuse before the run what could not be written after it."""
        written: dict[Path, str] = {}
        for name, suffix in _SUFFIXES.items():
            path: Path | None = getattr(self, name)
            check_file(path, f"--{name}", suffix)
            if path is None:
                continue
            if (other := written.setdefault(path.resolve(), name)) != name:
                raise InputError(f"--{other} and --{name} write the same file {path}: name two")

    def show(
        self, label: str, call: Call, view: Callable[[str], ProgressView] | None = None
    ) -> Report:
        """Run `call` with progress on standard error, then write and print its report.

        `view` makes the view of the progress; None makes one of a run on this machine.
        """
        self.check()
        if self.quiet:
            report = call(None)
        else:
            from hdgemm.progress_view import show_progress

            with (view or show_progress)(label) as progress:
                report = call(progress)
        with after_the_result():
            self._write(report)
        if self.as_json:
            typer.echo(report.to_json())
        elif not self.quiet:
            typer.echo(str(report))
        return report

    def _write(self, report: Report) -> None:
        from hdgemm.report import report_title

        if self.report is not None:
            report.save(self.report)
        if self.trace is not None:
            from hdgemm.pictures.trace import save_trace

            save_trace(report.timeline, self.trace)
        if self.gantt is not None and not report.timeline.events:
            typer.echo(f"no {self.gantt}: no stage did anything", err=True)
        elif self.gantt is not None:
            from hdgemm.pictures.gantt import save_gantt

            save_gantt(report.timeline, self.gantt, title=report_title(report))
        if self.tilemap is not None and report.split is None:
            typer.echo(f"no {self.tilemap}: one device computed all of C", err=True)
        elif self.tilemap is not None and report.split is not None:
            from hdgemm.pictures.tilemap import save_tilemap

            extents = (report.plan["m"], report.plan["n"])
            save_tilemap(report.split.tiles, extents, self.tilemap, title=report_title(report))


def check_file(path: Path | None, option: str, suffix: str) -> None:
    """Refuse a file that could not be written after the run, for which `option` names it.

    Its suffix belongs to another format, its folder is missing, it may not be written, or a picture
    needs Matplotlib.
    """
    if path is None:
        return
    if path.suffix and path.suffix.lower() != suffix:
        raise InputError(f"{option} writes {suffix[1:].upper()}: name the file {path.stem}{suffix}")
    if not path.absolute().parent.is_dir():
        from hdgemm.matrices.draft import missing_folder

        raise InputError(f"cannot write {path}: {missing_folder(path.absolute().parent)}")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise InputError(f"cannot write {path}: permission denied")
    if suffix == ".png":
        from hdgemm.pictures.figure import check_pictures

        check_pictures(option)


def make_folder(path: Path, option: str) -> None:
    """Make a folder for results, which `option` names, where there is none."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{option} {path} is no folder: a file has this name") from error


@contextmanager
def after_the_result() -> Iterator[None]:
    """Raise errors of reports and pictures as `HdgemmError`: the result itself is there.

    `InputError` and its exit code would say that nothing was written.
    """
    try:
        yield
    except (HdgemmError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HdgemmError(
            f"the result is complete, but its report or picture cannot be written: {reason}"
        ) from error


def refuse_existing(location: str | os.PathLike[str] | None) -> None:
    """Refuse to replace a matrix, or to remove files of a factorisation, for `--no-clobber`."""
    from hdgemm.matrices.factor_files import FactorFiles
    from hdgemm.matrices.location import parse_location

    if location is None:
        return
    place = parse_location(location)
    if place.holds_matrix():
        raise _kept(location)
    if place.kind.whole_file:
        for path in FactorFiles.of(place.path.resolve()).described():
            raise _kept(path)


def refuse_existing_beside(matrix: str | os.PathLike[str], kind: str) -> None:
    """Refuse to replace the files that a kind of factorisation stores beside its matrix."""
    from hdgemm.matrices.factor_files import FactorFiles
    from hdgemm.matrices.location import parse_location

    place = parse_location(matrix)
    if place.kind.whole_file:
        for path in FactorFiles.of(place.path.resolve()).stored_by(kind):
            if path.exists():
                raise _kept(path)


def confirm_size(stored: int, read: int, command: str) -> None:
    """Ask whether a result of `stored` bytes, of operands of `read` bytes, is meant.

    Raises
    ------
    InputError
        When nobody can be asked, or the answer is no.
    """
    if stored <= max(_LARGE_BYTES, _DWARFS * read):
        return
    what = f"the result has {format_size(stored)}, the operands have {format_size(read)}"
    if not sys.stdin.isatty():
        raise InputError(f"{what}: pass --yes to store it, or see hdgemm {command} --help")
    if not typer.confirm(f"{what}. Store it?", err=True):
        raise InputError(f"{what}: nothing is stored")


def _kept(path: str | os.PathLike[str]) -> InputError:
    return InputError(f"{path} exists, and --no-clobber keeps it: name another output")


def print_json(values: Any) -> None:
    """Print plain values as JSON; a number that is not finite becomes null."""
    finite = json.loads(json.dumps(values), parse_constant=lambda _: None)
    typer.echo(json.dumps(finite, indent=2))


def print_result(value: Any, *, as_json: bool) -> None:
    """Print a value that has `to_dict`, as JSON or as text."""
    if as_json:
        print_json(value.to_dict())
    else:
        typer.echo(str(value))


def print_plans(plans: Sequence[Plan], *, as_json: bool) -> None:
    """Print the plan of each device."""
    if as_json:
        texts = [each.to_json() for each in plans]
        many = '{"members": [' + ", ".join(texts) + "]}"
        typer.echo(texts[0] if len(texts) == 1 else many)
    else:
        typer.echo(str(plans))


def print_table(table: Table) -> None:
    """Print a table with long cells wrapped to the terminal's width."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(
        title=table.title or None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for head in table.heads:
        shown.add_column(head)
    for row in table.rows:
        shown.add_row(*map(Text, row))
    Console().print(shown)
