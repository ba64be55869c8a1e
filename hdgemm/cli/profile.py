"""`hdgemm profile`: which shared resource holds this machine back."""

import itertools
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.profiling.results import Profile


def command(
    *,
    out: Annotated[
        Path, typer.Option(help="folder for report.html, report.json, pictures and traces")
    ] = Path("hdgemm-profile"),
    quick: Annotated[bool, typer.Option("--quick", help="within a minute instead of ten")] = False,
    device: Annotated[
        str | None, typer.Option(help="host, opencl:0, cuda:0; left out: the best there is")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="where matrices lie meanwhile: the disk that is measured")
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(help="hd5970 (the paper's machine), h200 or gh200, no hardware")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="two report.json, old and new")
    ] = None,
) -> None:
    """Run the paper's ladder, scaling and contention, and say what holds the machine back.

    Ctrl-C leaves a report of what was done.
    """
    if compare is not None:
        _compare(*compare)
        return
    if folder is not None and not folder.is_dir():
        from hdgemm.errors import InputError

        raise InputError(f"--folder {folder}: there is no such folder")
    with _one_interrupt():
        result = _run(simulate, device, folder, quick=quick)
        result.save(out)
    _say(result, out)
    if not result.complete:
        raise typer.Exit(130)


@contextmanager
def _one_interrupt() -> "Iterator[None]":
    """Let the second Ctrl-C pass, so that the report is written; the third ends it all."""
    presses = itertools.count(1)

    def interrupt(_number: int, _frame: object) -> None:
        if next(presses) == 2:
            typer.echo("hdgemm: writing what was done; once more to leave without", err=True)
            return
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _compare(old: Path, new: Path) -> None:
    from hdgemm.profiling.compare import compare, load_report

    typer.echo(compare(load_report(old), load_report(new)).text())


def _run(
    simulate: str | None, device: str | None, folder: Path | None, *, quick: bool
) -> "Profile":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from hdgemm.profiling.session import profile
    from hdgemm.simulation.profile import simulate_profile

    columns = (BarColumn(bar_width=16), TextColumn("{task.percentage:3.0f} %"),
               TimeElapsedColumn(), TextColumn("{task.description}"))  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as bar:
        task = bar.add_task("", total=1.0)

        def show(part: float, what: str) -> None:
            bar.update(task, completed=part, description=what)

        if simulate is not None:
            return simulate_profile(simulate, progress=show)
        return profile(device, quick=quick, folder=folder, progress=show)


def _say(result: "Profile", out: Path) -> None:
    from rich.console import Console

    from hdgemm.cli.profile_tables import profile_tables

    console = Console()
    for table in profile_tables(result):
        console.print(table)
    for line in result.verdict.text if result.verdict is not None else ():
        console.print(line, highlight=False, soft_wrap=True)
    for each in result.verdict.observations if result.verdict is not None else ():
        told = {True: "confirmed", False: "not confirmed", None: "cannot be told"}[each.confirmed]
        console.print(f"Observation {each.number}, {each.claim}: {told} ({each.why})",
                      highlight=False, soft_wrap=True)  # fmt: skip
    for note in result.notes:
        console.print(f"Note: {note}", highlight=False, soft_wrap=True)
    console.print(f"written: {out / 'report.html'}", highlight=False, soft_wrap=True)
