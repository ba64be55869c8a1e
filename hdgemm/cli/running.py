"""One product run from the command line: progress while it runs, then tables, files, pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from rich.console import Console

from hdgemm.cli.live import show_progress
from hdgemm.cli.split import split_lines, split_table
from hdgemm.cli.tables import stage_table, summary_lines
from hdgemm.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from hdgemm.options import Options
    from hdgemm.report import Report


class Factors(TypedDict):
    """alpha and beta."""

    alpha: complex
    beta: complex


class Durability(TypedDict):
    """Whether a journal is kept, and whether an earlier one is forgotten."""

    checkpoint: bool
    restart: bool


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where a run's trace, Gantt picture and report go; `quiet` prints nothing."""

    trace: Path | None = None
    gantt: Path | None = None
    tilemap: Path | None = None
    report: Path | None = None
    quiet: bool = False

    def check(self) -> None:
        """Refuse before the run what could not be written after it."""
        for path in (self.trace, self.gantt, self.tilemap, self.report):
            if path is not None and not path.absolute().parent.is_dir():
                raise InputError(
                    f"cannot write {path}: there is no folder {path.absolute().parent}"
                )

    def write(self, report: Report, title: str) -> None:
        """Write what was asked for."""
        if self.report is not None:
            report.save(self.report)
        if self.trace is not None:
            from hdgemm.pictures.trace import save_trace

            save_trace(report.timeline, self.trace)
        if self.gantt is not None and not report.timeline.events:
            Console(stderr=True).print(f"no {self.gantt}: no stage did anything")
        elif self.gantt is not None:
            from hdgemm.pictures.gantt import save_gantt

            save_gantt(report.timeline, self.gantt, title=title)
        if self.tilemap is not None:
            self._write_tilemap(self.tilemap, report, title)

    def _write_tilemap(self, path: Path, report: Report, title: str) -> None:
        if report.split is None:
            Console(stderr=True).print(f"no {path}: one device computed all of C")
            return
        from hdgemm.pictures.tilemap import save_tilemap

        extents = (report.plan["m"], report.plan["n"])
        save_tilemap(report.split, extents, path, title=title)


def run(
    a: Path,
    b: Path,
    *,
    out: Path,
    c: Path | None = None,
    factors: Factors | None = None,
    trans: tuple[bool, bool] = (False, False),
    options: Options,
    outputs: Outputs,
    durability: Durability | None = None,
) -> Report:
    """Multiply files, show how it goes, and write what `outputs` asks for."""
    from hdgemm.blas import multiply

    outputs.check()
    product = partial(
        multiply,
        a,
        b,
        **(factors or {"alpha": 1.0, "beta": 0.0}),
        c=c,
        trans_a=trans[0],
        trans_b=trans[1],
        out=out,
        options=options,
        **(durability or {"checkpoint": False, "restart": False}),
    )
    if outputs.quiet:
        report = product()
    else:
        with show_progress(out.name) as progress:
            report = product(progress=progress)
    outputs.write(report, title(report))
    if not outputs.quiet:
        show_report(report)
    return report


def title(report: Report) -> str:
    """Return what was multiplied, under which limit, and how fast, in one line."""
    plan = report.plan
    shape = f"{plan['m']} × {plan['n']} × {plan['k']}"
    limit = plan["host_limit"] / 1e6
    return f"{shape}, {plan['dtype']}, {limit:.0f} MB of host memory: {report.gflops:.1f} GFLOP/s"


def _idle(report: Report) -> str:
    """Say why a run had nothing to do."""
    found = report.resumption
    if found is None:
        return "nothing to multiply"
    return f"all {found.tiles} tiles of C were done already, says {found.journal}"


def show_report(report: Report) -> None:
    """Print the stage table and the summary on standard output."""
    console = Console()
    if not report.stages:
        console.print(f"{report.seconds:.2f} s: {_idle(report)}", highlight=False, soft_wrap=True)
        return
    console.print(stage_table(report))
    for line in summary_lines(report):
        console.print(line, highlight=False, soft_wrap=True)
    if report.split is not None:
        console.print(split_table(report.split))
        for line in split_lines(report.split):
            console.print(line, highlight=False, soft_wrap=True)
