"""Plans of factorisations as text and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hdgemm.tables import Table
from hdgemm.units import format_count, format_duration, format_flops, format_size, format_speed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.linalg.row_plan import RowPlan
    from hdgemm.linalg.slab_plan import SlabPlan
    from hdgemm.linalg.solve_plan import SolvePlan
    from hdgemm.pipeline.plan import Stage


#: Fields for the bytes that cross the link to devices and back.
_LINK: Final[dict[Stage, str]] = {"load2": "upload_bytes", "store1": "download_bytes"}


def slab_plan_text(plan: SlabPlan) -> str:
    """Return what a plan does in a few lines: slabs, bytes, memory, disk, time, what limits."""
    moved = plan.planned_bytes
    widest = max((slab.width for slab in plan.slabs), default=0)
    slabs = (
        f"{len(plan.slabs)} slabs of {format_count(widest, 'column')} at most, {plan.slab_buffers} "
        f"in memory; earlier columns stream in blocks of {plan.block}"
        if len(plan.slabs) > 1
        else f"1 slab of {format_count(widest, 'column')}"
    )
    if plan.copied:
        slabs += "; slabs of the row-major A are copied to the output first"
    return "\n".join(
        [
            f"{plan.kind} of a {plan.m} × {plan.n} {plan.dtype} matrix: {format_flops(plan.flops)}",
            slabs,
            *_updates(plan),
            f"bytes read {format_size(moved['load1'])}, written {format_size(moved['store2'])}",
            f"memory held {format_size(plan.bytes_held)} of {format_size(plan.host_limit)}",
            f"disk space for the output {format_size(plan.disk_bytes)}",
            *_phases(plan.phase_seconds),
            _expected(plan.flops, plan.seconds, plan.limit),
        ]
    )


def _updates(plan: SlabPlan) -> list[str]:
    """Return the devices of the updates, where they do not run on the host."""
    moved = plan.planned_bytes
    if "load2" not in moved:
        return []
    names = ", ".join(plan.devices)
    up, down = (format_size(moved[stage]) for stage in ("load2", "store1"))
    return [f"slabs are updated in the memory of {names}: {up} to it, {down} back"]


def solve_plan_text(plan: SolvePlan) -> str:
    """Return what a solve with stored triangles does in a few lines."""
    moved = plan.planned_bytes
    widest = max((group.width for group in plan.slabs), default=0)
    systems = f"{format_count(plan.triangles, 'triangular system')} of order {plan.n}"
    groups = f"{format_count(len(plan.slabs), 'group')} of {format_count(widest, 'column')} of B"
    groups += " at most" if len(plan.slabs) > 1 else ""
    sides = format_count(plan.p, "right-hand side")
    written = moved.get("store2", 0)
    return "\n".join(
        [
            f"{systems}, {sides}, {plan.dtype}: {format_flops(plan.flops)}",
            f"{groups}; the triangle streams in blocks of {format_count(plan.block, 'column')}",
            f"bytes read {format_size(moved['load1'])}, written {format_size(written)}",
            f"memory held {format_size(plan.bytes_held)} of {format_size(plan.host_limit)}",
            _expected(plan.flops, plan.seconds, plan.limit),
        ]
    )


def slab_plan_summary(plan: SlabPlan) -> dict[str, Any]:
    """Return shape, slabs, memory and expectations as plain values, for reports."""
    moved = plan.planned_bytes
    return {
        "kind": plan.kind,
        "m": plan.m,
        "n": plan.n,
        "dtype": plan.dtype,
        "slabs": len(plan.slabs),
        "slab_buffers": plan.slab_buffers,
        "slab_columns": max((slab.width for slab in plan.slabs), default=0),
        "block_columns": plan.block,
        "read_bytes": moved["load1"],
        "write_bytes": moved["store2"],
        "flops": plan.flops,
        "host_bytes": plan.bytes_held,
        "host_limit": plan.host_limit,
        "expected_seconds": plan.seconds,
        "expected_phase_seconds": dict(plan.phase_seconds),
        "expected_limit": plan.limit,
        **({"devices": list(plan.devices)} if plan.devices else {}),
        **{_LINK[stage]: moved[stage] for stage in _LINK if stage in moved},
    }


def row_plan_text(plan: RowPlan) -> str:
    """Return what a plan of one pass over the rows does in a few lines."""
    shape, sides = f"{plan.m} × {plan.n} {plan.dtype}", format_count(plan.p, "right-hand side")
    return "\n".join(
        [
            f"TSQR of a {shape} matrix, {sides}: {format_flops(plan.flops)}",
            f"blocks of {format_count(plan.rows, 'row')} on {format_count(plan.cores, 'core')}",
            f"bytes read {format_size(plan.planned_bytes['load1'])}, in one pass",
            f"memory held {format_size(plan.bytes_held)} of {format_size(plan.host_limit)}",
            *_phases(plan.expected_phase_seconds),
            _expected(plan.flops, plan.expected_seconds, plan.expected_limit),
        ]
    )


def _phases(expected: Mapping[str, float]) -> list[str]:
    """Return a table of the seconds of each phase."""
    took = [(name, format_duration(seconds)) for name, seconds in expected.items() if seconds]
    return Table(("phase", "expected"), took).lines()


def _expected(flops: int, seconds: float, limit: str) -> str:
    """Return a line with the duration, the speed and what limits it."""
    speed = format_speed(flops / seconds / 1e9 if seconds > 0 else 0.0)
    return f"expected: {format_duration(seconds)}, {speed}, limited by the {limit}"
