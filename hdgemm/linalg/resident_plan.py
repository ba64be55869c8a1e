"""Which columns of a slab each device holds, and the bytes that updates move over the link.

The columns of a slab are cut into strips: the panels that the host factors, and strips of the
columns right of the last pivot. Each strip crosses the link once in each direction: up before the
updates, and down when all columns left of it have updated it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hdgemm.linalg.slab_plan import Columns
from hdgemm.linalg.updates import PANEL

if TYPE_CHECKING:
    from hdgemm.linalg.slab_plan import SlabPlan
    from hdgemm.pipeline.plan import Stage


def panels(plan: SlabPlan, slab: Columns) -> list[Columns]:
    """Return the panels of a slab, from the first row on that crosses the link.

    A block of reflectors has one T, and is factored whole.
    """
    if plan.kind in ("form q", "apply q"):
        return []
    if plan.kind == "qr":
        return [part._replace(top=slab.top) for part in plan.parts(slab)]
    return _cut(plan, plan.eliminated(slab))


def strips(plan: SlabPlan, slab: Columns) -> list[Columns]:
    """Return the panels of a slab, and strips of the other columns."""
    own = panels(plan, slab)
    first = own[-1].last if own else slab.first
    return own + _cut(plan, slab._replace(first=first))


def _cut(plan: SlabPlan, columns: Columns) -> list[Columns]:
    """Cut columns into strips; trapezoids have rows from their diagonal on."""
    step = min(plan.block, PANEL)
    return [
        Columns(first, min(first + step, columns.last), first if plan.kind == "cholesky" else 0)
        for first in range(columns.first, columns.last, step)
    ]


def factored(plan: SlabPlan, panel: Columns) -> Columns:
    """Return the rows of a factored panel that update the columns right of it."""
    return panel._replace(top=panel.last if plan.kind == "cholesky" else panel.first)


def dealt(plan: SlabPlan, slab: Columns) -> list[list[Columns]]:
    """Deal the strips of a slab to the devices of a plan, in proportion to their weights.

    Each strip goes to the device that will have the least for its weight. So that all devices have
    columns to update until the end, neighbouring strips are on different ones.
    """
    held: list[list[Columns]] = [[] for _ in plan.devices]
    taken = [0] * len(held)
    for strip in strips(plan, slab):
        at = min(range(len(held)), key=lambda i: (taken[i] + strip.width) / plan.weights[i])
        held[at].append(strip)
        taken[at] += strip.width
    return held


def link_bytes(plan: SlabPlan, start: int = 0) -> dict[Stage, int]:
    """Return the bytes that cross the link where `start` slabs are finished.

    {} where the host updates slabs, or nothing does.
    """
    if not plan.devices or plan.kind == "copy":
        return {}
    streamed = replace(plan, whole=False).streamed_bytes()
    count, up, down, earlier = len(plan.devices), 0, 0, 0
    for number, slab in enumerate(plan.slabs):
        if number >= start:
            own = sum(map(plan.nbytes, strips(plan, slab)))
            sent = [factored(plan, x) for x in panels(plan, slab) if x.last < slab.last]
            squares = earlier + sum(_square(plan, panel) for panel in sent)
            if plan.kind in ("form q", "apply q"):
                squares = sum(_square(plan, block) for _, block in plan.blocks(number))
            up += own + count * (streamed[number] + sum(map(plan.nbytes, sent)) + squares)
            down += own
        earlier += sum(_square(plan, block) for block in plan.parts(slab))
    return {"load2": up, "store1": down}


def _square(plan: SlabPlan, block: Columns) -> int:
    """Return the bytes of T of a block of reflectors."""
    return 0 if plan.kind in ("lu", "cholesky") else block.width**2 * plan.itemsize
