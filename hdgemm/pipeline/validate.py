"""Checks of a plan before anything is allocated: whatever a plan's origin, C is computed once."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.pipeline.plan import OPERANDS, Rect
from hdgemm.pipeline.slots import piece_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.plan import Operand, Plan

#: Bytes and elements are counted in signed 64-bit numbers.
_MOST: Final = 2**63
#: Slots of one kind: each is an allocation of its own.
_MOST_SLOTS: Final = 2**22


class PlanError(InputError):
    """A plan that would compute or hold something wrong; the message names the first fault."""


def validate(plan: Plan) -> None:
    """Check that a plan stores each element of C once and stays within its limits.

    Takes time in proportion to the plan's units, steps and loads. Raises `PlanError` where an
    element of C is not computed, not stored, or computed twice; where a step reads what its loads
    do not cover, a slot is overwritten before its last reader, or more memory is held than allowed.
    """
    try:
        _check_problem(plan)
        _check_counts(plan)
        _check_paths(plan)
        _check_units(plan)
        _check_steps(plan)
        if not plan.in_place:
            _check_coverage(plan)
            _check_slots(plan)
            _check_staging(plan)
            _check_memory(plan)
    except (TypeError, OverflowError) as error:
        raise PlanError(f"a field of the plan is not a 64-bit whole number: {error}") from error


def _check_problem(plan: Plan) -> None:
    problem = plan.problem
    m, n, k = problem.m, problem.n, problem.k
    if min(m, n, k) < 1:
        raise PlanError(f"extents must be at least 1: m = {m}, n = {n}, k = {k}")
    if max(m * k, k * n, m * n) * problem.itemsize >= _MOST:
        raise PlanError(f"a matrix of m = {m}, n = {n}, k = {k} has 2^63 bytes or more")


def _check_counts(plan: Plan) -> None:
    for name in ("a_slots", "b_slots", "c_slots", "up", "down"):
        slots = getattr(plan, name)
        if not (0 <= slots.count <= _MOST_SLOTS and 0 <= slots.total < _MOST and slots.nbytes >= 0):
            raise PlanError(
                f"{name} are {slots.count} of {slots.nbytes} bytes: there can be 0 to {_MOST_SLOTS}"
                " of less than 2^63 bytes together"
            )


def _check_paths(plan: Plan) -> None:
    """Check that the stages which the paths and the device leave do move A, B and C."""
    problem, unified = plan.problem, plan.device.unified
    if plan.in_place and not problem.in_place:
        raise PlanError("a plan in place needs A, B and C in memory that the kernel uses")
    for operand in OPERANDS:
        if unified and problem.spec(operand).path == "direct":
            raise PlanError(f"{operand} moves by DMA, but staging is the device's memory")
    if problem.c.path == "direct" and not plan.overlap.c_on_device:
        raise PlanError("nothing stores C: it moves by DMA, but the kernel writes into staging")
    if problem.c.path == "direct" and problem.reads_c:
        raise PlanError("nothing adds beta·C: it moves by DMA, and store2 would add it")


def _check_units(plan: Plan) -> None:
    m, n = plan.problem.m, plan.problem.n
    in_slot = plan.problem.c.path != "resident"
    expected_first = 0
    for number, unit in enumerate(plan.units):
        if unit.number != number or unit.first != expected_first or unit.last < unit.first:
            raise PlanError(f"unit {number} should begin at step {expected_first}: {unit}")
        expected_first = unit.last + 1
        if in_slot and not 0 <= unit.slot < plan.c_slots.count:
            raise PlanError(f"unit {number} uses slot {unit.slot} of {plan.c_slots.count}")
    if expected_first != len(plan.steps):
        raise PlanError(f"units have {expected_first} steps, the plan {len(plan.steps)}")
    rects = [*plan.done, *(unit.rect for unit in plan.units)]
    for rect in rects:
        if min(rect) < 0 or min(rect.rows, rect.cols) < 1:
            raise PlanError(f"a tile of C is empty or negative: {rect}")
        if not Rect(0, 0, m, n).covers(rect):
            raise PlanError(f"a tile reaches past C ({m}×{n}): {rect}")
    _check_cover(rects, m, n)


def _check_cover(rects: Sequence[Rect], m: int, n: int) -> None:
    """Check that the rectangles fill m×n without overlap.

    Rectangles within m×n that have its area and do not overlap fill it.
    """
    area = sum(rect.area for rect in rects)
    if area != m * n:
        raise PlanError(f"the units hold {area} elements, C has {m * n}")
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
    """Check rectangles that form no columns, in a sweep over rows.

    Those that a row crosses must lie side by side; in any sensible plan they are few.
    """
    open_now: list[Rect] = []
    for rect in sorted(rects):
        open_now = [other for other in open_now if other.row + other.rows > rect.row]
        for other in open_now:
            if rect.col < other.col + other.cols and other.col < rect.col + rect.cols:
                raise PlanError(f"units overlap: {other} and {rect}")
        open_now.append(rect)


def _check_steps(plan: Plan) -> None:
    """Check that each unit's chunks fill k, in either direction."""
    steps = _table(plan.steps, 6)
    number, unit, k0, kb = (steps[:, i] for i in range(4))
    own = np.repeat(np.arange(len(plan.units)), [unit.last - unit.first + 1 for unit in plan.units])
    if (i := _first((number != np.arange(len(steps))) | (unit != own))) is not None:
        raise PlanError(f"step {i} should be of unit {own[i]}: {plan.steps[i]}")
    order = np.lexsort((k0, unit))
    ends = (k0 + kb)[order]
    first = np.diff(unit, prepend=-1) > 0
    expected = np.where(first, 0, np.roll(ends, 1))
    if (i := _first((k0[order] != expected) | (kb[order] < 1))) is not None:
        raise PlanError(f"unit {unit[i]} takes k from {k0[order][i]}, expected {expected[i]}")
    last = np.diff(unit, append=len(plan.units)) > 0
    if (i := _first(last & (ends != plan.problem.k))) is not None:
        raise PlanError(f"unit {unit[i]} sums {ends[i]} of k = {plan.problem.k}")


def _check_coverage(plan: Plan) -> None:
    """Check that each step finds its block of A and of B in the loads that it names."""
    steps = _table(plan.steps, 6)
    rects = _table((unit.rect for unit in plan.units), 4)[steps[:, 1]]
    k0, kb = steps[:, 2], steps[:, 3]
    a = np.stack([rects[:, 0], k0, rects[:, 2], kb], axis=1)
    b = np.stack([k0, rects[:, 1], kb, rects[:, 3]], axis=1)
    _check_reads(plan, "A", steps[:, 4], a)
    _check_reads(plan, "B", steps[:, 5], b)


def _check_reads(
    plan: Plan, operand: Operand, reads: NDArray[np.int64], blocks: NDArray[np.int64]
) -> None:
    resident = plan.problem.spec(operand).path == "resident"
    bad = (reads >= 0) if resident else (reads < 0) | (reads >= len(plan.loads))
    if (i := _first(bad)) is not None:
        raise PlanError(f"step {i} reads {operand} from load {reads[i]}")
    if resident:
        return
    held = _table((load.rect for load in plan.loads), 4)[reads]
    inside = (held[:, :2] <= blocks[:, :2]) & (
        blocks[:, :2] + blocks[:, 2:] <= held[:, :2] + held[:, 2:]
    )
    own = _column(load.operand == operand for load in plan.loads)[reads] == 1
    coming = _column(load.step for load in plan.loads)[reads]
    if (i := _first(~inside.all(axis=1) | ~own | (coming > np.arange(len(reads))))) is not None:
        load = plan.loads[reads[i]]
        raise PlanError(f"step {i} reads {operand} {blocks[i].tolist()}, load {reads[i]} is {load}")


def _check_slots(plan: Plan) -> None:
    """Check that loads are in order, within A and B, fit their slots, and that each is read."""
    m, n, k = plan.problem.m, plan.problem.n, plan.problem.k
    is_b = _column(load.operand == "B" for load in plan.loads)
    slot = _column(load.slot for load in plan.loads)
    coming = _column(load.step for load in plan.loads)
    row, col, rows, cols = _table((load.rect for load in plan.loads), 4).T
    if (i := _first(np.diff(coming) < 0)) is not None:
        raise PlanError(f"load {i + 1} is for step {coming[i + 1]}, load {i} for {coming[i]}")
    high, wide = np.where(is_b, k, m), np.where(is_b, n, k)
    outside = (rows > high - row) | (cols > wide - col) | (np.minimum(row, col) < 0)
    if (i := _first(outside | (np.minimum(rows, cols) < 1))) is not None:
        raise PlanError(f"load {i} is empty or reaches past {high[i]}×{wide[i]}: {plan.loads[i]}")
    counts = np.where(is_b, plan.b_slots.count, plan.a_slots.count)
    if (i := _first((slot < 0) | (slot >= counts))) is not None:
        raise PlanError(f"load {i} goes to slot {slot[i]} of {counts[i]}")
    needed = rows * cols * plan.problem.itemsize
    sizes = np.where(is_b, plan.b_slots.nbytes, plan.a_slots.nbytes)
    if (i := _first(needed > sizes)) is not None:
        raise PlanError(f"load {i} takes {needed[i]} bytes, its slot has {sizes[i]}")
    # Where several steps read a load, the last assignment names its last reader.
    steps = _table(plan.steps, 6)
    last = np.full(len(plan.loads) + 1, -1)
    last[steps[:, 4]] = last[steps[:, 5]] = steps[:, 0]
    if (i := _first(last[:-1] < 0)) is not None:
        raise PlanError(f"load {i} is never read")
    _check_overwriting(is_b, slot, coming, last[:-1])


def _check_overwriting(
    is_b: NDArray[np.int64],
    slot: NDArray[np.int64],
    coming: NDArray[np.int64],
    last: NDArray[np.int64],
) -> None:
    """Check that a slot keeps its tile until the last step that reads it."""
    order = np.lexsort((np.arange(len(slot)), slot, is_b))
    before, after = order[:-1], order[1:]
    same = (slot[before] == slot[after]) & (is_b[before] == is_b[after])
    if (i := _first(same & (last[before] >= coming[after]))) is not None:
        old, new = before[i], after[i]
        raise PlanError(
            f"load {new} overwrites slot {slot[new]} of {'AB'[is_b[new]]} before step {last[old]} "
            f"has read load {old}"
        )


def _table(rows: Iterable[tuple[int, ...]], width: int) -> NDArray[np.int64]:
    return np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, width)


def _column(values: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(values, np.int64)


def _first(bad: NDArray[np.bool_]) -> int | None:
    """Return the first place that is true."""
    return int(np.argmax(bad)) if bad.any() else None


def _check_staging(plan: Plan) -> None:
    """Check that what passes through staging finds pieces that hold one stored row."""
    c = [unit.rect for unit in plan.units] if plan.overlap.c_on_device else []
    tiles: dict[Operand, list[Rect]] = {"A": [], "B": [], "C": c}
    for load in plan.loads:
        tiles[load.operand].append(load.rect)
    for operand, rects in tiles.items():
        spec = plan.problem.spec(operand)
        if spec.path != "staged" or not rects or plan.device.unified:
            continue
        widest = max(rect.rows if spec.trans else rect.cols for rect in rects)
        needed = min(widest, spec.chunk[1] if spec.chunk else widest) * plan.problem.itemsize
        ring = plan.down if operand == "C" else plan.up
        if ring.count < 1 or needed > piece_bytes(plan, operand):
            raise PlanError(f"a row of {operand} takes {needed} bytes of staging, there is {ring}")


def _check_memory(plan: Plan) -> None:
    for unit in plan.units:
        nbytes = unit.rect.area * plan.problem.itemsize
        if plan.problem.c.path != "resident" and nbytes > plan.c_slots.nbytes:
            raise PlanError(f"unit {unit.number} needs {nbytes} of {plan.c_slots.nbytes} bytes")
    if plan.device_bytes > plan.device_limit:
        raise PlanError(
            f"the plan holds {plan.device_bytes} bytes on the device, "
            f"allowed are {plan.device_limit}"
        )
    if plan.host_bytes > plan.host_limit:
        raise PlanError(
            f"the plan holds {plan.host_bytes} bytes in host memory, allowed are {plan.host_limit}"
        )
    largest = max(plan.a_slots.nbytes, plan.b_slots.nbytes, plan.c_slots.nbytes)
    if largest > (plan.device.max_buffer_bytes or largest):
        raise PlanError(
            f"a slot of {largest} bytes is above the device's largest buffer, "
            f"{plan.device.max_buffer_bytes}"
        )
