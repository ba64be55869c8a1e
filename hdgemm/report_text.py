"""Reports of runs as text and as HTML: the table of stages, the summary, the split."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from hdgemm.tables import Table
from hdgemm.units import format_count, format_duration, format_rate, format_size, format_speed

if TYPE_CHECKING:
    from hdgemm.report import Report, StageReport

#: Lines of a printed report; rows of a split beyond them are counted, not printed.
_MOST_LINES: Final = 25


def report_title(report: Report) -> str:
    """Return in one line what was multiplied, under which limit, and how fast."""
    plan = report.plan
    shape = " × ".join(str(plan[name]) for name in ("m", "n", "k") if name in plan)
    shape = f"{plan['kind']}, {shape}" if "kind" in plan else shape
    limit = format_size(plan.get("host_limit"))
    return f"{shape}, {plan['dtype']}, {limit} of host memory: {format_speed(report.gflops)}"


def report_text(report: Report) -> str:
    """Return the report as the command line prints it, in at most 25 lines."""
    if not report.stages:
        return f"{format_duration(report.seconds)}: {_idle(report)}"
    lines = [*_stage_table(report).lines(), *_summary(report)]
    if report.split is not None:
        notes, rows = report.split.notes(), report.split.table().lines()
        room = max(2, _MOST_LINES - len(lines) - len(notes))
        if len(rows) > room:
            rows[room - 1 :] = [f"and {len(rows) - room + 1} more devices"]
        lines += [*rows, *notes]
    return "\n".join(lines[:_MOST_LINES])


def report_html(report: Report) -> str:
    """Return the report as HTML for a notebook, with the Gantt picture and the tile map."""
    if not report.stages:
        return f"<p>{escape(report_text(report))}</p>"
    from hdgemm.pictures.figure import inline_picture
    from hdgemm.pictures.gantt import save_gantt
    from hdgemm.pictures.tilemap import save_tilemap

    parts = [_stage_table(report).html(), f"<p>{'<br>'.join(map(escape, _summary(report)))}</p>"]
    parts.append(inline_picture(lambda file: save_gantt(report.timeline, file), "Gantt picture"))
    if (split := report.split) is not None:
        extents = (report.plan["m"], report.plan["n"])
        parts += [split.table().html(), f"<p>{'<br>'.join(map(escape, split.notes()))}</p>"]
        parts.append(
            inline_picture(lambda file: save_tilemap(split.tiles, extents, file), "tiles of C")
        )
    return "".join(parts)


def _idle(report: Report) -> str:
    """Say why a run had nothing to do."""
    found = report.resumption
    if found is None:
        return "nothing to multiply"
    noun, whole = ("slab", "") if "kind" in report.plan else ("tile", " of C")
    parts = ("the " if found.tiles == 1 else "all ") + format_count(found.tiles, noun) + whole
    return f"an earlier run had stored {parts} (journal {found.journal})"


def _stage_table(report: Report) -> Table:
    """Return operations, bytes, busy time, rate and share of the run for each stage."""
    rows = [
        (
            name,
            f"{stage.operations}",
            format_size(stage.nbytes) if stage.nbytes else "–",
            format_size(stage.planned_bytes) if stage.planned_bytes else "–",
            format_duration(stage.seconds),
            _rate(stage),
            f"{100 * stage.seconds / report.seconds if report.seconds > 0 else 0.0:.1f} %",
        )
        for name, stage in report.stages.items()
    ]
    return Table(("stage", "operations", "bytes", "planned", "busy", "rate", "of the run"), rows)


def _rate(stage: StageReport) -> str:
    if stage.gflops is not None:
        return format_speed(stage.gflops)
    if stage.gbytes_per_second is not None:
        return format_rate(stage.gbytes_per_second * 1e9)
    return "–"


def _summary(report: Report) -> list[str]:
    """Return speed, bytes against the plan's, memory against the limit, and what was checked."""
    moved, planned = sum(report.moved_bytes.values()), sum(report.planned_bytes.values())
    equal = report.moved_bytes == report.planned_bytes
    against = "as planned, stage by stage" if equal else f"{moved - planned:+d} B against the plan"
    against = f", {against}" if planned else ""
    bottleneck = f"; {report.limit} was the bottleneck" if report.limit is not None else ""
    speed, allowed = format_speed(report.gflops), format_size(report.plan.get("host_limit"))
    lines = [
        f"{format_duration(report.seconds)}, {speed} on {', '.join(report.devices)}{bottleneck}",
        f"bytes moved: {format_size(moved)}{against}",
        f"peak memory added: {format_size(report.peak_memory_bytes)} of {allowed} allowed",
    ]
    if expected := report.plan.get("expected_phase_seconds"):
        took = [
            f"{name} {format_duration(seconds)} ({format_duration(expected.get(name))})"
            for name, seconds in report.phases.items()
        ]
        lines.append(f"phases, and as expected: {', '.join(took)}")
    if (found := report.resumption) is not None:
        parts = format_count(found.tiles, "slab" if "kind" in report.plan else "tile")
        lines.append(
            f"journal {found.journal}: {found.kept} of {parts} done already,"
            f" {format_count(found.damaged, 'damaged piece')} computed again"
        )
    if (checks := report.checks) is not None:
        lines.append(
            f"{format_count(checks.tiles, 'tile')} checked in {format_duration(checks.seconds)}:"
            f" {checks.recomputed} computed again, worst deviation {checks.worst:.2g} of its bound,"
            f" {format_count(checks.unchecked_rows, 'row')} and"
            f" {format_count(checks.unchecked_cols, 'column')} of tiles unchecked"
        )
    if report.energy is not None:
        lines.append(report.energy.line(report.gflops))
    return lines
