"""The stages of a run, plain or with ABFT checksums, for the kind of device."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from hdgemm.errors import InputError
from hdgemm.pipeline.abft.bounds import Rounding
from hdgemm.pipeline.abft.checksums import draw_signs
from hdgemm.pipeline.abft.inspection import Inspector, TileAccess
from hdgemm.pipeline.abft.recompute import InputReader
from hdgemm.pipeline.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.pipeline.abft.counters import TileChecks
    from hdgemm.pipeline.devices.protocol import After, Completion
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.stages import Bound


@contextmanager
def open_stages(bound: Bound, checks: TileChecks | None) -> Iterator[Stages]:
    """Yield the stages of one run; the memory of their checks is freed at the end.

    Raises
    ------
    InputError
        When an operand lies on the device, where the host cannot read it for the checks.
    """
    from hdgemm.pipeline.abft.device import DeviceCheckedStages
    from hdgemm.pipeline.abft.host import HostCheckedStages

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
    stages = kind(bound, checks)
    try:
        yield stages
    finally:
        stages.close()


class CheckedStages(Stages, TileAccess):
    """Stages with an inspector, which accesses the tiles through `TileAccess`."""

    def __init__(self, bound: Bound, checks: TileChecks) -> None:
        super().__init__(bound)
        problem, dtype = self._plan.problem, np.dtype(self._plan.problem.dtype)
        # For staged C, store2 applies beta.
        starts_with = self._beta if problem.c.path == "resident" else 0.0
        with np.errstate(all="ignore"):
            alpha, beta = (dtype.type(factor).item() for factor in (self._alpha, starts_with))
        reader = InputReader(self._plan, self._operands, checks.scratch_bytes)
        self._checks = checks
        self._signs = draw_signs(problem.m, problem.n, dtype, checks.seed)
        self._reading = reader.reading
        self._inspector = Inspector(
            Rounding.of(problem, alpha, beta), self._signs, reader, self, (alpha, beta), checks,
            self._plan.device.name,
        )  # fmt: skip

    def close(self) -> None:
        """Drop the inspector: a cycle of references would keep the files of the operands open."""
        del self._inspector

    def load1(self, op: Op, after: After) -> Completion:
        """Read, unless inputs of a tile are being read again."""
        with self._reading:
            return super().load1(op, after)
