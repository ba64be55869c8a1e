"""The rest of a plan, for a run that resumes after some of its work units were stored."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from hdgemm.pipeline.validate import validate
from hdgemm.pipeline.walk import runs_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from hdgemm.pipeline.plan import Plan


def remaining(plan: Plan, done: Collection[int]) -> Plan:
    """Return the plan of the work units whose numbers are not in `done`.

    The units left keep their tiles, their order and their sweeps over k, so that they compute the
    same bits as in the whole plan. Units, steps and loads are numbered from 0 again, and loads
    are assigned anew. `Plan.skipped` counts the units left out in the whole plan.
    """
    if not done:
        return plan
    numbers = list(chain.from_iterable(range(*run) for run in plan.units.runs))
    earlier = chain.from_iterable(range(*run) for run in plan.skipped)
    skipped = runs_of(sorted({*earlier, *(numbers[number] for number in done)}))
    rest = replace(plan, skipped=skipped, expected=None)
    validate(rest)
    return rest
