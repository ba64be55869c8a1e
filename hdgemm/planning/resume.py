"""The rest of a plan, for a run that resumes after some of its work units were stored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hdgemm.pipeline.validate import validate
from hdgemm.planning.build import load_read_by_step, merge_loads
from hdgemm.planning.reuse import Residence, fetch_always, keep_nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hdgemm.pipeline.plan import Load, Operand, Plan, Step, WorkUnit


def remaining(plan: Plan, done: Collection[int]) -> Plan:
    """Return the plan of the work units whose numbers are not in `done`.

    The units left keep their tiles, their order and their sweeps over k, so that they compute the
    same bits as in the whole plan. Units, steps and loads are numbered from 0 again, and loads
    are assigned anew. `Plan.done` lists the rectangles left out.
    """
    if not done:
        return plan
    kept = [unit for unit in plan.units if unit.number not in done]
    sweeps = [plan.steps[unit.first : unit.last + 1] for unit in kept]
    old = [step for sweep in sweeps for step in sweep]
    a, b = (_residence(plan, "A", old), _residence(plan, "B", old))
    loads, a_places, b_places = merge_loads(_loads(plan, a), _loads(plan, b))
    reads_a = load_read_by_step(a, a_places, len(old))
    reads_b = load_read_by_step(b, b_places, len(old))
    units: list[WorkUnit] = []
    steps: list[Step] = []
    for number, (unit, sweep) in enumerate(zip(kept, sweeps, strict=True)):
        first = len(steps)
        for step in sweep:
            at = len(steps)
            steps.append(step._replace(number=at, unit=number, a=reads_a[at], b=reads_b[at]))
        slot = number % plan.c_slots.count if plan.c_slots.count else -1
        units.append(unit._replace(number=number, slot=slot, first=first, last=len(steps) - 1))
    rest = replace(
        plan,
        loads=loads,
        units=tuple(units),
        steps=tuple(steps),
        done=plan.done + tuple(unit.rect for unit in plan.units if unit.number in done),
        expected=None,
    )
    validate(rest)
    return rest


def _residence(plan: Plan, operand: Operand, steps: Sequence[Step]) -> Residence | None:
    """Assign loads and slots again; a tile is identified by the plan's first load of it."""
    if plan.problem.spec(operand).path == "resident":
        return None
    if not steps:
        return Residence([], [])
    loads = [step.a if operand == "A" else step.b for step in steps]
    count = plan.slots(operand).count
    if not plan.overlap.loads:
        # Each load of the whole plan has one owner.
        return fetch_always(loads, loads, count)
    first: dict[tuple[int, ...], int] = {}
    tiles = [first.setdefault(tuple(plan.loads[load].rect), load) for load in loads]
    return keep_nearest(tiles, count)


def _loads(plan: Plan, residence: Residence | None) -> list[Load]:
    fetches = () if residence is None else residence.fetches
    return [plan.loads[tile]._replace(slot=slot, step=step) for tile, slot, step in fetches]
