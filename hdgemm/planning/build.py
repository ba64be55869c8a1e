"""From a shape to a plan: slots and rings in bytes, the order of C tiles, the depths of loads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hdgemm.pipeline.plan import NO_SLOTS, Expectation, Plan, Slots
from hdgemm.pipeline.walk import Layout
from hdgemm.planning.byte_counts import slot_bytes, staging

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Operand
    from hdgemm.planning.case import Case
    from hdgemm.planning.shapes import Shape


def build_plan(case: Case, shape: Shape) -> Plan:
    """Lay out a product in this shape, without checking that it fits the limits."""
    problem = case.problem
    slots = {operand: _slots(case, operand, shape) for operand in ("A", "B", "C")}
    rings = staging(case, shape.extents(problem), shape.slots[2])
    return Plan(
        problem=problem,
        device=case.device,
        strategy=case.strategy,
        overlap=case.overlap,
        tile=shape.tile,
        a_slots=slots["A"],
        b_slots=slots["B"],
        c_slots=slots["C"],
        up=rings.up.slots(),
        down=rings.down.slots(),
        layout=_layout(case, shape),
        host_limit=case.limits.host,
        device_limit=case.limits.device,
    )


def _layout(case: Case, shape: Shape) -> Layout:
    problem = case.problem
    quantum = case.device.granularity[0]
    if problem.c.encoded and problem.c.chunk is not None:
        # Two stores into one chunk would encode it twice.
        quantum = math.lcm(quantum, problem.c.chunk[0])
    bars = "columns" if shape.blocks > 1 else shape.bars  # blocks lie one below the other
    depths = shape.a_depth, shape.b_depth
    return Layout(*depths, bars, shape.halvings, quantum, shape.blocks)


def in_place_plan(case: Case) -> Plan:
    """Return the plan of one BLAS call on the caller's arrays: no loads, no slots."""
    problem, machine = case.problem, case.machine
    m, n, k = problem.m, problem.n, problem.k
    seconds = problem.flops / machine.flop_rate(problem.dtype) / machine.efficiency(m, n, k)
    return Plan(
        problem=problem,
        device=case.device,
        strategy=case.strategy,
        overlap=case.overlap,
        tile=(m, n, k),
        a_slots=NO_SLOTS,
        b_slots=NO_SLOTS,
        c_slots=NO_SLOTS,
        up=NO_SLOTS,
        down=NO_SLOTS,
        layout=Layout(k, k),
        host_limit=case.limits.host,
        device_limit=case.limits.device,
        in_place=True,
        expected=Expectation(seconds, {"mult1": seconds}, "cores"),
    )


def _slots(case: Case, operand: Operand, shape: Shape) -> Slots:
    if case.problem.spec(operand).path == "resident":
        return NO_SLOTS
    count = shape.slots["ABC".index(operand)]
    rows, cols = shape.extents(case.problem)[operand]
    return Slots(count, int(slot_bytes(case.problem, case.device, operand, rows, cols)))
