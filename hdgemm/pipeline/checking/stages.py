"""The stages of a run: plain, or checked in the way that suits the device."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hdgemm.errors import InputError
from hdgemm.pipeline.checking.separate import SeparateCheckedStages
from hdgemm.pipeline.checking.unified import UnifiedCheckedStages
from hdgemm.pipeline.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.pipeline.checking.tally import Tally
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.ledger import Ledger
    from hdgemm.pipeline.plan import Plan
    from hdgemm.pipeline.slots import Operands, SlotMemory


@contextmanager
def open_stages(
    plan: Plan,
    ledger: Ledger,
    device: Device,
    memory: SlotMemory,
    operands: Operands,
    factors: tuple[complex, complex],
    tally: Tally | None,
) -> Iterator[Stages]:
    """Give the stages of one run; what their checks hold is freed on leaving.

    Raises
    ------
    InputError
        When tiles are to be checked whose inputs the host cannot read.
    """
    if tally is None:
        yield Stages(plan, ledger, device, memory, operands, *factors)
        return
    if plan.device.unified:
        yield UnifiedCheckedStages(plan, ledger, device, memory, operands, *factors, tally)
        return
    specs = {"A": plan.problem.a, "B": plan.problem.b, "C": plan.problem.c}
    there = [name for name, spec in specs.items() if spec.path == "resident"]
    if there:
        raise InputError(
            f"verify='tiles' sums the matrices on the host, and {', '.join(there)} lies on "
            f"{plan.device.name}: bring it to the host, or check the product with verify=True"
        )
    stages = SeparateCheckedStages(plan, ledger, device, memory, operands, *factors, tally)
    try:
        yield stages
    finally:
        stages.close()
