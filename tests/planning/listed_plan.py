"""What a plan generates, checked step by step, whatever generated it: an oracle for formulas."""

from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from hdgemm.pipeline.plan import Plan
from hdgemm.pipeline.tiles import Load, Rect, Step, WorkUnit


class Listed(NamedTuple):
    """The work units, steps and loads of a plan, or those that were drawn in its memory."""

    plan: Plan
    units: tuple[WorkUnit, ...]
    steps: tuple[Step, ...]
    loads: tuple[Load, ...]
    done: tuple[Rect, ...] = ()

    @property
    def problem(self):
        return self.plan.problem


def listed(plan):
    """Generate everything that a plan does."""
    course = plan.course
    return Listed(
        plan, tuple(plan.units), tuple(course.steps()), tuple(course.loads()), tuple(plan.done)
    )


def drawn(plan, batches):
    """List the units that were drawn in the memory of a plan."""
    steps = tuple(step for batch in batches for step in batch.steps)
    loads = tuple(load for batch in batches for load in batch.loads)
    return Listed(plan, tuple(batch.unit for batch in batches), steps, loads)


def check(found):
    """Check that each element of C is computed once, from tiles that slots hold."""
    _check_units(found)
    _check_steps(found)
    if not found.plan.in_place:
        _check_coverage(found)
        _check_slots(found)


def _check_units(plan):
    m, n = plan.problem.m, plan.problem.n
    in_slot = plan.problem.c.path != "resident"
    expected_first = 0
    for number, unit in enumerate(plan.units):
        if unit.number != number or unit.first != expected_first or unit.last < unit.first:
            raise AssertionError(f"unit {number} should begin at step {expected_first}: {unit}")
        expected_first = unit.last + 1
        if in_slot and not 0 <= unit.slot < plan.plan.c_slots.count:
            raise AssertionError(
                f"unit {number} uses slot {unit.slot} of {plan.plan.c_slots.count}"
            )
    if expected_first != len(plan.steps):
        raise AssertionError(f"units have {expected_first} steps, the plan {len(plan.steps)}")
    rects = [*plan.done, *(unit.rect for unit in plan.units)]
    for rect in rects:
        if min(rect) < 0 or min(rect.rows, rect.cols) < 1:
            raise AssertionError(f"a tile of C is empty or negative: {rect}")
        if not Rect(0, 0, m, n).covers(rect):
            raise AssertionError(f"a tile reaches past C ({m}×{n}): {rect}")
    _check_cover(rects, m, n)


def _check_cover(rects, m, n):
    """Check that the rectangles fill m×n without overlap.

    Rectangles within m×n that have its area and do not overlap fill it.
    """
    area = sum(rect.area for rect in rects)
    if area != m * n:
        raise AssertionError(f"the units hold {area} elements, C has {m * n}")
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
                raise AssertionError(f"units overlap: {upper} and {lower}")


def _check_disjoint(rects):
    """Check rectangles that form no columns, in a sweep over rows.

    Those that a row crosses must lie side by side; in any sensible plan they are few.
    """
    open_now: list[Rect] = []
    for rect in sorted(rects):
        open_now = [other for other in open_now if other.row + other.rows > rect.row]
        for other in open_now:
            if rect.col < other.col + other.cols and other.col < rect.col + rect.cols:
                raise AssertionError(f"units overlap: {other} and {rect}")
        open_now.append(rect)


def _check_steps(plan):
    """Check that each unit's chunks fill k, in either direction."""
    steps = _table(plan.steps, 6)
    number, unit, k0, kb = (steps[:, i] for i in range(4))
    own = np.repeat(np.arange(len(plan.units)), [unit.last - unit.first + 1 for unit in plan.units])
    if (i := _first((number != np.arange(len(steps))) | (unit != own))) is not None:
        raise AssertionError(f"step {i} should be of unit {own[i]}: {plan.steps[i]}")
    order = np.lexsort((k0, unit))
    ends = (k0 + kb)[order]
    first = np.diff(unit, prepend=-1) > 0
    expected = np.where(first, 0, np.roll(ends, 1))
    if (i := _first((k0[order] != expected) | (kb[order] < 1))) is not None:
        raise AssertionError(f"unit {unit[i]} takes k from {k0[order][i]}, expected {expected[i]}")
    last = np.diff(unit, append=len(plan.units)) > 0
    if (i := _first(last & (ends != plan.problem.k))) is not None:
        raise AssertionError(f"unit {unit[i]} sums {ends[i]} of k = {plan.problem.k}")


def _check_coverage(plan):
    """Check that each step finds its block of A and of B in the loads that it names."""
    steps = _table(plan.steps, 6)
    rects = _table((unit.rect for unit in plan.units), 4)[steps[:, 1]]
    k0, kb = steps[:, 2], steps[:, 3]
    a = np.stack([rects[:, 0], k0, rects[:, 2], kb], axis=1)
    b = np.stack([k0, rects[:, 1], kb, rects[:, 3]], axis=1)
    _check_reads(plan, "A", steps[:, 4], a)
    _check_reads(plan, "B", steps[:, 5], b)


def _check_reads(plan, operand, reads, blocks):
    resident = plan.problem.spec(operand).path == "resident"
    bad = (reads >= 0) if resident else (reads < 0) | (reads >= len(plan.loads))
    if (i := _first(bad)) is not None:
        raise AssertionError(f"step {i} reads {operand} from load {reads[i]}")
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
        raise AssertionError(
            f"step {i} reads {operand} {blocks[i].tolist()}, load {reads[i]} is {load}"
        )


def _check_slots(plan):
    """Check that loads are in order, within A and B, fit their slots, and that each is read."""
    m, n, k = plan.problem.m, plan.problem.n, plan.problem.k
    is_b = _column(load.operand == "B" for load in plan.loads)
    slot = _column(load.slot for load in plan.loads)
    coming = _column(load.step for load in plan.loads)
    row, col, rows, cols = _table((load.rect for load in plan.loads), 4).T
    if (i := _first(np.diff(coming) < 0)) is not None:
        raise AssertionError(f"load {i + 1} is for step {coming[i + 1]}, load {i} for {coming[i]}")
    high, wide = np.where(is_b, k, m), np.where(is_b, n, k)
    outside = (rows > high - row) | (cols > wide - col) | (np.minimum(row, col) < 0)
    if (i := _first(outside | (np.minimum(rows, cols) < 1))) is not None:
        raise AssertionError(
            f"load {i} is empty or reaches past {high[i]}×{wide[i]}: {plan.loads[i]}"
        )
    counts = np.where(is_b, plan.plan.b_slots.count, plan.plan.a_slots.count)
    if (i := _first((slot < 0) | (slot >= counts))) is not None:
        raise AssertionError(f"load {i} goes to slot {slot[i]} of {counts[i]}")
    needed = rows * cols * plan.problem.itemsize
    sizes = np.where(is_b, plan.plan.b_slots.nbytes, plan.plan.a_slots.nbytes)
    if (i := _first(needed > sizes)) is not None:
        raise AssertionError(f"load {i} takes {needed[i]} bytes, its slot has {sizes[i]}")
    # Where several steps read a load, the last assignment names its last reader.
    steps = _table(plan.steps, 6)
    last = np.full(len(plan.loads) + 1, -1)
    last[steps[:, 4]] = last[steps[:, 5]] = steps[:, 0]
    if (i := _first(last[:-1] < 0)) is not None:
        raise AssertionError(f"load {i} is never read")
    _check_overwriting(is_b, slot, coming, last[:-1])


def _check_overwriting(is_b, slot, coming, last):
    """Check that a slot keeps its tile until the last step that reads it."""
    order = np.lexsort((np.arange(len(slot)), slot, is_b))
    before, after = order[:-1], order[1:]
    same = (slot[before] == slot[after]) & (is_b[before] == is_b[after])
    if (i := _first(same & (last[before] >= coming[after]))) is not None:
        old, new = before[i], after[i]
        raise AssertionError(
            f"load {new} overwrites slot {slot[new]} of {'AB'[is_b[new]]} before step {last[old]} "
            f"has read load {old}"
        )


def _table(rows, width):
    return np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, width)


def _column(values):
    return np.fromiter(values, np.int64)


def _first(bad):
    """Return the first place that is true."""
    return int(np.argmax(bad)) if bad.any() else None
