"""The stages of a run: plain, or checked in the way that suits the device."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hdgemm.errors import InputError
from hdgemm.pipeline.abft.separate import SeparateCheckedStages
from hdgemm.pipeline.abft.unified import UnifiedCheckedStages
from hdgemm.pipeline.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.pipeline.abft.tally import Tally
    from hdgemm.pipeline.stages import Bound


@contextmanager
def open_stages(bound: Bound, tally: Tally | None) -> Iterator[Stages]:
    """Give the stages of one run; what their checks hold is freed on leaving.

    Raises
    ------
    InputError
        When tiles are to be checked whose inputs the host cannot read.
    """
    if tally is None:
        yield Stages(bound)
        return
    plan = bound.plan
    if plan.device.unified:
        yield UnifiedCheckedStages(bound, tally)
        return
    specs = {"A": plan.problem.a, "B": plan.problem.b, "C": plan.problem.c}
    there = [name for name, spec in specs.items() if spec.path == "resident"]
    if there:
        raise InputError(
            f"verify='tiles' sums the matrices on the host, and {', '.join(there)} lies on "
            f"{plan.device.name}: bring it to the host, or check the product with verify=True"
        )
    stages = SeparateCheckedStages(bound, tally)
    try:
        yield stages
    finally:
        stages.close()
