"""The stages of a run, plain or with ABFT checksums, for the kind of device."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from hdgemm.errors import InputError
from hdgemm.pipeline.abft.device import DeviceCheckedStages
from hdgemm.pipeline.abft.host import HostCheckedStages
from hdgemm.pipeline.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.pipeline.abft.counters import TileChecks
    from hdgemm.pipeline.stages import Bound


@contextmanager
def open_stages(bound: Bound, checks: TileChecks | None) -> Iterator[Stages]:
    """Yield the stages of one run; the memory of their checks is freed at the end.

    Raises `InputError` where an operand lies on the device: the host cannot read it for the checks.
    """
    if checks is None:
        yield Stages(bound)
        return
    plan = bound.plan
    specs = {"A": plan.problem.a, "B": plan.problem.b, "C": plan.problem.c}
    there = [name for name, spec in specs.items() if spec.path == "resident"]
    if there and not plan.device.unified:
        raise InputError(
            f"verify='tiles' sums the matrices on the host, and {', '.join(there)} lies on "
            f"{plan.device.name}: bring it to the host, or check the product with verify=True"
        )
    kind = HostCheckedStages if plan.device.unified else DeviceCheckedStages
    with closing(kind(bound, checks)) as stages:
        yield stages
