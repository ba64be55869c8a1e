"""What every plan must keep, checked before anything is allocated."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hdgemm.errors import InputError
from hdgemm.pipeline.plan import Rect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.pipeline.plan import Load, Operand, Plan


class PlanError(InputError):
    """A plan that would compute or hold something wrong; the message names the first fault."""


def validate(plan: Plan) -> None:
    """Check that a plan computes C once, reads what is there, and stays within its limits.

    Takes time in proportion to the plan's units, steps and loads.

    Raises
    ------
    PlanError
        When a cell of C is missing or computed twice, a step reads what its loads do not cover,
        a slot is overwritten before its last reader, or more memory is held than allowed.
    """
    _check_units(plan)
    _check_steps(plan)
    if plan.direct:
        return
    _check_coverage(plan)
    _check_slots(plan)
    _check_memory(plan)


def _check_units(plan: Plan) -> None:
    m, n = plan.problem.m, plan.problem.n
    whole = Rect(0, 0, m, n)
    expected_first = 0
    for number, unit in enumerate(plan.units):
        if unit.number != number or unit.first != expected_first or unit.last < unit.first:
            raise PlanError(f"unit {number} should begin at step {expected_first}: {unit}")
        expected_first = unit.last + 1
        if min(unit.rect) < 0 or min(unit.rect.rows, unit.rect.cols) < 1:
            raise PlanError(f"unit {number} is empty or negative: {unit.rect}")
        if not whole.covers(unit.rect):
            raise PlanError(f"unit {number} reaches past C ({m}×{n}): {unit.rect}")
        if not plan.direct and not -1 <= unit.slot < max(plan.c_slots.count, 0):
            raise PlanError(f"unit {number} uses slot {unit.slot} of {plan.c_slots.count}")
    if expected_first != len(plan.steps):
        raise PlanError(f"units have {expected_first} steps, the plan {len(plan.steps)}")
    _check_cover([*plan.done, *(unit.rect for unit in plan.units)], m, n)


def _check_cover(rects: Sequence[Rect], m: int, n: int) -> None:
    """Check that the rectangles fill m×n without overlap.

    Equal areas and no overlap suffice. Sweeping over rows, the rectangles that are open at once
    must lie side by side.
    """
    area = sum(rect.rows * rect.cols for rect in rects)
    if area != m * n:
        raise PlanError(f"the units hold {area} cells, C has {m * n}")
    by_column: dict[tuple[int, int], list[Rect]] = {}
    for rect in rects:
        by_column.setdefault((rect.col, rect.cols), []).append(rect)
    strips = sorted(by_column)
    if any(left[0] + left[1] > right[0] for left, right in pairwise(strips)):
        _check_disjoint(rects)
        return
    for strip in by_column.values():
        strip.sort()
        for upper, lower in pairwise(strip):
            if upper.row + upper.rows > lower.row:
                raise PlanError(f"units overlap: {upper} and {lower}")


def _check_disjoint(rects: Sequence[Rect]) -> None:
    """Check rectangles that form no columns; the open ones are few in any sensible plan."""
    open_now: list[Rect] = []
    for rect in sorted(rects):
        open_now = [other for other in open_now if other.row + other.rows > rect.row]
        for other in open_now:
            if rect.col < other.col + other.cols and other.col < rect.col + rect.cols:
                raise PlanError(f"units overlap: {other} and {rect}")
        open_now.append(rect)


def _check_steps(plan: Plan) -> None:
    """Check that each unit's chunks fill k, in either direction."""
    k = plan.problem.k
    for number, step in enumerate(plan.steps):
        if step.number != number:
            raise PlanError(f"step {number} calls itself {step.number}")
    for unit in plan.units:
        chunks = plan.steps[unit.first : unit.last + 1]
        if any(step.unit != unit.number for step in chunks):
            raise PlanError(
                f"a step between {unit.first} and {unit.last} is not unit {unit.number}'s"
            )
        at = 0
        for k0, kb in sorted((step.k0, step.kb) for step in chunks):
            if k0 != at or kb < 1:
                raise PlanError(f"unit {unit.number} takes k from {k0}, expected {at}")
            at += kb
        if at != k:
            raise PlanError(f"unit {unit.number} sums {at} of k = {k}")


def _check_coverage(plan: Plan) -> None:
    for step in plan.steps:
        rect = plan.units[step.unit].rect
        _check_read(plan, "A", step.a, Rect(rect.row, step.k0, rect.rows, step.kb), step.number)
        _check_read(plan, "B", step.b, Rect(step.k0, rect.col, step.kb, rect.cols), step.number)


def _check_read(plan: Plan, operand: Operand, number: int, block: Rect, step: int) -> None:
    resident = plan.problem.spec(operand).path == "resident"
    if resident != (number < 0) or number >= len(plan.loads):
        raise PlanError(f"step {step} reads {operand} from load {number}")
    if resident:
        return
    load = plan.loads[number]
    if load.operand != operand or not load.rect.covers(block):
        raise PlanError(f"step {step} reads {operand} {block}, but load {number} brings {load}")
    if load.step > step:
        raise PlanError(f"step {step} reads load {number}, which comes at step {load.step}")


def _check_slots(plan: Plan) -> None:
    """Check that a slot keeps its tile until the last step that reads it."""
    last_reader: dict[int, int] = {}
    for step in plan.steps:
        last_reader[step.a] = last_reader[step.b] = step.number
    held: dict[tuple[str, int], int] = {}
    before: Load | None = None
    for number, load in enumerate(plan.loads):
        if before is not None and load.step < before.step:
            raise PlanError(f"load {number} (step {load.step}) comes after step {before.step}'s")
        before = load
        slots = plan.slots(load.operand)
        if not 0 <= load.slot < slots.count:
            raise PlanError(f"load {number} goes to slot {load.slot} of {slots.count}")
        nbytes = load.rect.rows * load.rect.cols * plan.problem.itemsize
        if nbytes > slots.nbytes:
            raise PlanError(f"load {number} needs {nbytes} bytes, its slot has {slots.nbytes}")
        if number not in last_reader:
            raise PlanError(f"load {number} is never read")
        previous = held.get((load.operand, load.slot))
        if previous is not None and last_reader[previous] >= load.step:
            raise PlanError(
                f"load {number} overwrites slot {load.slot} of {load.operand} before step "
                f"{last_reader[previous]} has read load {previous}"
            )
        held[load.operand, load.slot] = number


def _check_memory(plan: Plan) -> None:
    for unit in plan.units:
        nbytes = unit.rect.rows * unit.rect.cols * plan.problem.itemsize
        if unit.slot >= 0 and nbytes > plan.c_slots.nbytes:
            raise PlanError(f"unit {unit.number} needs {nbytes} of {plan.c_slots.nbytes} bytes")
    if plan.device_bytes > plan.device_limit:
        raise PlanError(f"the plan holds {plan.device_bytes} bytes on the device, "
                        f"allowed are {plan.device_limit}")  # fmt: skip
    if plan.host_bytes > plan.host_limit:
        raise PlanError(f"the plan holds {plan.host_bytes} bytes in host memory, "
                        f"allowed are {plan.host_limit}")  # fmt: skip
    largest = max(plan.a_slots.nbytes, plan.b_slots.nbytes, plan.c_slots.nbytes)
    if largest > plan.device.max_buffer_bytes:
        raise PlanError(f"a slot of {largest} bytes is above the device's largest buffer, "
                        f"{plan.device.max_buffer_bytes}")  # fmt: skip
