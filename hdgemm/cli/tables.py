"""Reports and plans as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from hdgemm.pipeline.plan import STAGES

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Plan
    from hdgemm.report import Report, StageReport

_PREFIXES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def format_bytes(nbytes: int | None) -> str:
    """Write a number of bytes with a decimal prefix, three digits or more."""
    if nbytes is None:
        return "not measured"
    for size, prefix in _PREFIXES:
        if nbytes >= size:
            value = nbytes / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {prefix}"
    return f"{nbytes} B"


def new_table(title: str | None = None) -> Table:
    """Return an empty table in the style that all commands share."""
    return Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")


def stage_table(report: Report) -> Table:
    """Return stage, operations, bytes moved and planned, busy seconds, rate, share of the run."""
    table = new_table()
    table.add_column("stage")
    for heading in ("operations", "bytes", "planned", "busy", "rate", "of the run"):
        table.add_column(heading, justify="right")
    for name, stage in report.stages.items():
        share = stage.seconds / report.seconds if report.seconds > 0 else 0.0
        table.add_row(
            name,
            f"{stage.operations}",
            format_bytes(stage.nbytes) if stage.nbytes else "–",
            format_bytes(stage.planned_bytes) if stage.planned_bytes else "–",
            f"{stage.seconds:.2f} s",
            _rate(stage),
            f"{100 * share:.1f} %",
        )
    return table


def summary_lines(report: Report) -> list[str]:
    """Return the run in a few lines: speed, bytes against the plan's, memory against the limit."""
    moved, planned = sum(report.moved_bytes.values()), sum(report.planned_bytes.values())
    equal = report.moved_bytes == report.planned_bytes
    against = "as planned, stage by stage" if equal else f"{moved - planned:+d} against the plan"
    allowed = format_bytes(report.plan["host_limit"])
    bottleneck = f"; {report.limit} was the bottleneck" if report.limit is not None else ""
    devices = ", ".join(report.devices)
    lines = [
        f"{report.seconds:.2f} s, {report.gflops:.1f} GFLOP/s on {devices}{bottleneck}",
        f"bytes moved: {moved} ({format_bytes(moved)}), {against}",
        f"peak memory added: {format_bytes(report.peak_memory_bytes)} of {allowed} allowed",
    ]
    if (found := report.resumption) is not None:
        lines.append(
            f"journal {found.journal}: {found.kept} of {found.tiles} tiles were done already,"
            f" {found.damaged} damaged pieces computed again"
        )
    if (checks := report.checks) is not None:
        lines.append(
            f"tiles of C checked: {checks.tiles}, in {checks.seconds:.2f} s; "
            f"{checks.recomputed} computed again, worst deviation {checks.worst:.2g} of its bound, "
            f"{checks.unchecked_rows} rows and {checks.unchecked_cols} columns of tiles unchecked"
        )
    return lines


def _rate(stage: StageReport) -> str:
    if stage.gflops is not None:
        return f"{stage.gflops:.1f} GFLOP/s"
    if stage.gbytes_per_second is not None:
        return f"{stage.gbytes_per_second:.2f} GB/s"
    return "–"


def plan_lines(plan: Plan) -> list[str]:
    """Return what a plan does in a few lines: shape, tiles, order, time and what limits."""
    p, (mb, nb, kb) = plan.problem, plan.tile
    lines = [
        f"C ({p.m} × {p.n}) := A ({p.m} × {p.k}) · B ({p.k} × {p.n}), {p.dtype}",
        f"{p.flops / 1e9:.1f} GFLOP on {plan.device.name}, {plan.strategy}",
    ]
    if plan.in_place:
        lines.append("in place: one BLAS call on the caller's arrays, nothing is copied")
    else:
        bars = len({unit.bar for unit in plan.units})
        lines.append(
            f"tiles: C {mb} × {nb}, A {mb} × {kb}, B {kb} × {nb}; wriggled order: bars {bars},"
            f" work units {len(plan.units)}, steps {len(plan.steps)}, loads {len(plan.loads)}"
        )
    if plan.expected is not None:
        seconds = plan.expected.seconds
        speed = p.flops / seconds / 1e9 if seconds > 0 else 0.0
        lines.append(
            f"expected: {seconds:.2f} s, {speed:.1f} GFLOP/s, limited by {plan.expected.limit}"
        )
    return lines


def planned_stage_table(plan: Plan) -> Table:
    """Return the bytes that each stage will move and the seconds it is expected to be busy."""
    from hdgemm.planning.byte_counts import planned_bytes

    moved = planned_bytes(plan)
    busy = plan.expected.stage_seconds if plan.expected is not None else {}
    table = new_table()
    table.add_column("stage")
    table.add_column("bytes", justify="right")
    table.add_column("", justify="right")
    table.add_column("expected busy", justify="right")
    for stage in STAGES:
        nbytes, seconds = moved.get(stage, 0), busy.get(stage)
        if nbytes or seconds:
            table.add_row(
                stage,
                f"{nbytes}" if nbytes else "–",
                format_bytes(nbytes) if nbytes else "",
                "–" if seconds is None else f"{seconds:.2f} s",
            )
    return table


def memory_table(plan: Plan) -> Table:
    """Return the memory that a plan holds, by kind, against what it was made for."""
    table = new_table()
    table.add_column("memory held")
    table.add_column("slots", justify="right")
    table.add_column("bytes", justify="right")
    kinds = {
        "A tiles": plan.a_slots,
        "B tiles": plan.b_slots,
        "C tiles": plan.c_slots,
        "staging up": plan.up,
        "staging down": plan.down,
    }
    for kind, slots in kinds.items():
        if slots.total:
            table.add_row(kind, f"{slots.count}", format_bytes(slots.total))
    table.add_row("host, in all", "", _against(plan.host_bytes, plan.host_limit))
    if not plan.device.unified:
        table.add_row("device, in all", "", _against(plan.device_bytes, plan.device_limit))
    return table


def _against(held: int, limit: int) -> str:
    return f"{format_bytes(held)} of {format_bytes(limit)}"
