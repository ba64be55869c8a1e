"""Checks of a plan before anything is allocated: whatever a plan's origin, C is computed once."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.pipeline.plan import OPERANDS, largest_tiles
from hdgemm.pipeline.slots import piece_bytes

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Plan

#: Bytes and elements are counted in signed 64-bit numbers.
_MOST: Final = 2**63
#: Slots of one kind: each is an allocation of its own.
_MOST_SLOTS: Final = 2**22
#: Halvings of the last C tile.
_MOST_HALVINGS: Final = 64


class PlanError(InputError):
    """A plan that would compute or hold something wrong; the message names the first fault."""


def validate(plan: Plan) -> None:
    """Check that a plan stores each element of C once and stays within its limits.

    Work units, steps and loads follow from a plan's shape, and fill C and k whatever it is. So the
    check takes the same time for a plan of any size. Raises `PlanError` where tiles or chunks are
    empty, a slot does not hold its tiles, an operand has no way to the device or C none back, or
    more memory is held than allowed.
    """
    try:
        _check_problem(plan)
        _check_counts(plan)
        _check_numbers(plan)
        _check_paths(plan)
        _check_layout(plan)
        if not plan.in_place:
            _check_slots(plan)
            _check_staging(plan)
            _check_memory(plan)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(f"a field of the plan is not a 64-bit whole number: {error}") from error


def _check_problem(plan: Plan) -> None:
    problem = plan.problem
    m, n, k = problem.m, problem.n, problem.k
    if min(m, n, k) < 1:
        raise PlanError(f"extents must be at least 1: m = {m}, n = {n}, k = {k}")
    if max(m * k, k * n, m * n) * problem.itemsize >= _MOST:
        raise PlanError(f"a matrix of m = {m}, n = {n}, k = {k} has 2^63 bytes or more")
    terms, halves = problem.exact_terms, problem.factor_dtype != problem.dtype
    if terms < 0 or (terms > 0 and not (halves and plan.device.widens)):
        raise PlanError(
            f"{plan.device.name} cannot add sums of {terms} products of half the precision of "
            f"{problem.dtype}"
        )


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
    for operand, spec in zip(OPERANDS, (problem.a, problem.b, problem.c), strict=True):
        if unified and spec.path == "direct":
            raise PlanError(f"{operand} moves by DMA, but staging is the device's memory")
    if problem.c.path == "direct" and not plan.overlap.c_on_device:
        raise PlanError("nothing stores C: it moves by DMA, but the kernel writes into staging")
    if problem.c.path == "direct" and problem.reads_c:
        raise PlanError("nothing adds beta·C: it moves by DMA, and store2 would add it")


def _check_numbers(plan: Plan) -> None:
    layout, slots = plan.layout, (plan.a_slots, plan.b_slots, plan.c_slots, plan.up, plan.down)
    numbers = [
        plan.tile,
        (layout.a_depth, layout.b_depth, layout.halvings, layout.quantum, layout.blocks),
        (plan.host_limit, plan.device_limit),
        *[(each.count, each.nbytes) for each in slots],
        *plan.skipped,
    ]
    for number in chain.from_iterable(numbers):
        if not isinstance(number, int) or not -_MOST <= number < _MOST:
            raise PlanError(f"a field of the plan is not a 64-bit whole number: {number!r}")


def _check_layout(plan: Plan) -> None:
    """Check that C tiles and k-chunks fill C and k, and that loads hold whole chunks."""
    layout, (mb, nb, kb), k = plan.layout, plan.tile, plan.problem.k
    if len(plan.tile) != len(OPERANDS) or min(mb, nb, kb) < 1:
        raise PlanError(f"the extents of a tile must be at least 1, got {plan.tile}")
    if layout.bars not in ("columns", "rows"):
        raise PlanError(f"bars are columns or rows, got {layout.bars!r}")
    for operand, depth in (("A", layout.a_depth), ("B", layout.b_depth)):
        if depth < 1 or (depth % kb and depth < k):
            raise PlanError(f"a load of {operand} takes {depth} of k, and steps take {kb}")
    if not 0 <= layout.halvings <= _MOST_HALVINGS or layout.quantum < 1 or layout.blocks < 1:
        raise PlanError(
            f"the last tile is halved {layout.halvings} times by {layout.quantum} rows, "
            f"{layout.blocks} tiles share their loads"
        )
    if layout.blocks > 1 and (plan.overlap.loads or kb < k or layout.bars == "rows"):
        raise PlanError(f"{layout.blocks} tiles share loads, which takes columns and an uncut k")
    _check_skipped(plan)


def _check_skipped(plan: Plan) -> None:
    """Check that the units left out are some of the plan's, in order."""
    behind, count = -1, plan.walk.units
    for first, end in plan.skipped:
        if not behind < first < end <= count:
            raise PlanError(f"units {first} to {end} are left out, of {count}; behind {behind}")
        behind = end


def _check_slots(plan: Plan) -> None:
    """Check that each operand has slots where it moves, and that its largest tile fits one."""
    for operand, (rows, cols) in largest_tiles(plan).items():
        slots, spec = plan.slots(operand), plan.problem.spec(operand)
        if (spec.path == "resident") != (slots.count == 0):
            raise PlanError(f"{operand} is {spec.path}, and has {slots.count} slots")
        needed = rows * cols * plan.problem.tile_itemsize(operand)
        if slots.count and needed > slots.nbytes:
            raise PlanError(f"a tile of {operand} takes {needed} bytes, its slot {slots.nbytes}")


def _check_staging(plan: Plan) -> None:
    """Check that what passes through staging finds pieces that hold one stored row."""
    if plan.device.unified:
        return
    for operand, (rows, cols) in largest_tiles(plan).items():
        spec = plan.problem.spec(operand)
        if spec.path != "staged" or (operand == "C" and not plan.overlap.c_on_device):
            continue
        widest = rows if spec.trans else cols
        elements = min(widest, spec.chunk[1] if spec.chunk else widest)
        needed = elements * plan.problem.tile_itemsize(operand)
        ring = plan.down if operand == "C" else plan.up
        if ring.count < 1 or needed > piece_bytes(plan, operand):
            raise PlanError(f"a row of {operand} takes {needed} bytes of staging, there is {ring}")


def _check_memory(plan: Plan) -> None:
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
