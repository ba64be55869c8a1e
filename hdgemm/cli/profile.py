"""`hdgemm profile`: which shared resource limits products on this machine."""

import itertools
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdgemm.cli.arguments import Json, complete_device
from hdgemm.cli.output import (
    after_the_result,
    check_file,
    make_folder,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.profiling.results import Profile


def command(
    *,
    out: Annotated[
        Path, typer.Option(help="Folder for report.html, report.json, pictures and traces.")
    ] = Path("hdgemm-profile"),
    quick: Annotated[bool, typer.Option("--quick", help="Within a minute instead of ten.")] = False,
    device: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_device,
            help="host, opencl:0, cuda:0; default: an accelerator, else OpenCL, else host.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for the matrices: the disk that is measured.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="OLD NEW", help="Compare two report.json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what limits products here, and say what to do.

    Measures strategies, scaling and contention. Ctrl-C writes a report of what was measured
    until then.
    """
    if compare is not None:
        from dataclasses import asdict

        from hdgemm.profiling.compare import compare as compare_reports, load_report

        compared = compare_reports(*map(load_report, compare))
        if as_json:
            print_json(asdict(compared))
        else:
            typer.echo(compared.text())
        return
    if folder is not None and not folder.is_dir():
        from hdgemm.errors import InputError

        raise InputError(f"--folder {folder}: there is no such folder")
    _check_output(out)
    with _one_interrupt():
        result = _run(device, folder, quick=quick)
        with after_the_result():
            result.save(out)
    if as_json:
        print_json(result.to_dict())
    else:
        _print(result, out)
    if not result.complete:
        raise typer.Exit(130)


def _check_output(out: Path) -> None:
    """Make the folder of the report, and refuse what would fail after minutes of measurements."""
    from hdgemm.pictures.figure import check_pictures

    check_pictures("the report of hdgemm profile")
    make_folder(out, "--out")
    check_file(out / "report.json", "--out", ".json")


@contextmanager
def _one_interrupt() -> "Iterator[None]":
    """Ignore the second Ctrl-C, so that the report is written; the third one ends the process."""
    presses = itertools.count(1)

    def interrupt(_number: int, _frame: object) -> None:
        if next(presses) == 2:
            typer.echo("hdgemm: writing the report; press Ctrl-C once more to stop", err=True)
            return
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run(device: str | None, folder: Path | None, *, quick: bool) -> "Profile":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from hdgemm import profiling

    columns = (
        BarColumn(bar_width=16),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as bar:
        task = bar.add_task("", total=1.0)

        def show(part: float, what: str) -> None:
            bar.update(task, completed=part, description=what)

        return profiling.profile(device, quick=quick, folder=folder, progress=show)


def _print(result: "Profile", out: Path) -> None:
    """Print the verdict, then tables (the report has every stage's prediction, too)."""
    from hdgemm.profiling.report import sections

    report = result.to_dict()
    for line in (report["verdict"] or {"text": ()})["text"]:
        typer.echo(line)
    for section in sections({**report, "predictions": ()}):
        typer.echo()
        print_table(section.table)
        for remark in section.remarks:
            typer.echo(remark)
    for line in (*(f"Note: {note}" for note in result.notes), f"written: {out / 'report.html'}"):
        typer.echo(line)
