"""Summaries of a plan: bytes that its stages move, plain values, text, HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

from hdgemm.pipeline.plan import STAGES
from hdgemm.tables import Table
from hdgemm.units import format_duration, format_flops, format_size, format_speed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hdgemm.pipeline.plan import Load, Plan, Stage

#: Devices whose plans are printed; the others are counted.
_MOST_DEVICES: Final = 4


def planned_bytes(plan: Plan) -> dict[Stage, int]:
    """Return the bytes that each stage moves in a whole run of the plan.

    load1 and store2 count bytes as the application stores them, load2 and store1 as the device
    does; store2 counts the old C that it reads.
    """
    return bytes_of(plan, plan.loads, plan.elements)


def bytes_of(plan: Plan, loads: Iterable[Load], elements: int) -> dict[Stage, int]:
    """Return the bytes that each stage moves for loads and for elements of C of the plan."""
    moved: dict[Stage, int] = dict.fromkeys(STAGES, 0)
    problem, unified = plan.problem, plan.device.unified
    for load in loads:
        spec, area = problem.spec(load.operand), load.rect.area
        if spec.path == "staged":
            moved["load1"] += area * spec.itemsize
        if not unified:
            moved["load2"] += area * problem.itemsize
    if plan.in_place or problem.c.path == "resident":
        return moved
    if plan.overlap.c_on_device and not unified:
        moved["store1"] = elements * problem.itemsize
    if problem.c.path == "staged":
        moved["store2"] = elements * problem.c.itemsize * (2 if problem.reads_c else 1)
    return moved


def summarize_all(plans: Sequence[Plan]) -> dict[str, Any]:
    """Return the summary of a run's plan: of one device, or of each with the limits in all."""
    first = summarize(plans[0])
    if len(plans) == 1:
        return first
    members = [summarize(plan) for plan in plans]
    summed = ("host_bytes", "staging_bytes", "device_bytes", "host_limit")
    return {
        **{name: first[name] for name in ("m", "n", "k", "dtype", "strategy", "in_place", "tile")},
        **{name: sum(member[name] for member in members) for name in summed},
        "members": members,
    }


def summarize(plan: Plan) -> dict[str, Any]:
    """Return a plan's shape, tiles, counts and memory as plain values; bytes and seconds."""
    problem, expected = plan.problem, plan.expected
    return {
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "dtype": problem.dtype,
        "device": plan.device.name,
        "strategy": plan.strategy,
        "in_place": plan.in_place,
        "paths": {"A": problem.a.path, "B": problem.b.path, "C": problem.c.path},
        "tile": list(plan.tile),
        "units": len(plan.units),
        "steps": len(plan.steps),
        "loads": len(plan.loads),
        "host_bytes": plan.host_bytes,
        "staging_bytes": plan.staging_bytes,
        "device_bytes": plan.device_bytes,
        "host_limit": plan.host_limit,
        "device_limit": plan.device_limit,
        "expected_seconds": None if expected is None else expected.seconds,
        "expected_stage_seconds": None if expected is None else dict(expected.stage_seconds),
        "expected_limit": None if expected is None else expected.limit,
    }


def plan_lines(plan: Plan, *, alone: bool = True) -> list[str]:
    """Return what a plan does in a few lines: shape, tiles, order, time and the bottleneck.

    A device that is not `alone` draws an unknown number of tiles.
    """
    p, (mb, nb, kb) = plan.problem, plan.tile
    lines = [
        f"C ({p.m} × {p.n}) := A ({p.m} × {p.k}) · B ({p.k} × {p.n}), {p.dtype}",
        f"{format_flops(p.flops)} on {plan.device.name}, {plan.strategy}",
    ]
    if plan.in_place:
        lines.append("in place: one BLAS call on the caller's arrays, nothing is copied")
    else:
        bars = len({unit.bar for unit in plan.units})
        counts = (
            f"; wriggled order: bars {bars}, work units {len(plan.units)}, steps "
            f"{len(plan.steps)}, loads {len(plan.loads)}"
        )
        tiles = f"tiles: C {mb} × {nb}, A {mb} × {kb}, B {kb} × {nb}"
        lines.append(tiles + counts if alone else tiles)
    if plan.expected is not None:
        seconds = plan.expected.seconds
        speed = format_speed(p.flops / seconds / 1e9 if seconds > 0 else 0.0)
        lines.append(
            f"expected{'' if alone else ' without the other devices'}: {format_duration(seconds)}, "
            f"{speed}, limited by {plan.expected.limit}"
        )
    return lines


def stage_table(plan: Plan) -> Table:
    """Return the bytes that each stage will move and the time it is expected to be busy."""
    moved = planned_bytes(plan)
    busy = plan.expected.stage_seconds if plan.expected is not None else {}
    return Table(
        ("stage", "bytes", "expected busy"),
        [
            (stage, format_size(moved[stage]) if moved[stage] else "–",
             format_duration(busy.get(stage)))
            for stage in STAGES
            if moved[stage] or busy.get(stage)
        ],
    )  # fmt: skip


def memory_table(plan: Plan) -> Table:
    """Return the memory that a plan holds, by kind, and its limits."""
    kinds = {
        "A tiles": plan.a_slots,
        "B tiles": plan.b_slots,
        "C tiles": plan.c_slots,
        "staging up": plan.up,
        "staging down": plan.down,
    }
    rows = [
        (kind, f"{slots.count}", format_size(slots.total))
        for kind, slots in kinds.items()
        if slots.total
    ]
    rows.append(("host, in all", "", _against(plan.host_bytes, plan.host_limit)))
    if not plan.device.unified:
        rows.append(("device, in all", "", _against(plan.device_bytes, plan.device_limit)))
    return Table(("memory held", "slots", "bytes"), rows)


def _against(held: int, limit: int) -> str:
    return f"{format_size(held)} of {format_size(limit)}"


def plan_text(plan: Plan) -> str:
    """Return the plan as `hdgemm plan` prints it, in at most 25 lines."""
    tables = (stage_table(plan), memory_table(plan))
    return "\n".join([*plan_lines(plan), *("\n".join(["", *table.lines()]) for table in tables)])


def plan_html(plan: Plan) -> str:
    """Return the plan as HTML for a notebook; a picture of its tiles needs Matplotlib."""
    from hdgemm.pictures.figure import inline_picture
    from hdgemm.pictures.tilemap import save_order

    lines = "<br>".join(map(escape, plan_lines(plan)))
    picture = inline_picture(lambda file: save_order(plan, file), "order of the tiles of C")
    return f"<p>{lines}</p>{stage_table(plan).html()}{memory_table(plan).html()}{picture}"


class Plans(list["Plan"]):
    """Plans of one product, one for each device; printed as `hdgemm plan` prints them."""

    def __str__(self) -> str:
        if not self:
            return "nothing is multiplied: alpha is 0 or an extent is 0"
        if len(self) == 1:
            return plan_text(self[0])
        lines = plan_lines(self[0])[:1]
        for plan in self[:_MOST_DEVICES]:
            lines += [*plan_lines(plan, alone=False)[1:], _held(plan), ""]
        if len(self) > _MOST_DEVICES:
            lines.append(f"and {len(self) - _MOST_DEVICES} more devices")
        lines.append("The devices draw tiles of C from one pool while the run lasts.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return "".join(map(plan_html, self)) or f"<p>{self}</p>"


def _held(plan: Plan) -> str:
    held = f"memory held: host {_against(plan.host_bytes, plan.host_limit)}"
    if not plan.device.unified:
        held += f", device {_against(plan.device_bytes, plan.device_limit)}"
    return held
