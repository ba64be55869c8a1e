"""What checked stages of either kind have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.pipeline.abft.bounds import Rounding
from hdgemm.pipeline.abft.inspection import Inspector
from hdgemm.pipeline.abft.reread import Source
from hdgemm.pipeline.abft.sums import draw_signs
from hdgemm.pipeline.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.abft.tally import Tally
    from hdgemm.pipeline.devices.protocol import Completion
    from hdgemm.pipeline.plan import WorkUnit
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.stages import Bound


class CheckedStages(Stages):
    """Stages with an inspector, which reaches their tiles by `panels` and `multiply`."""

    def __init__(self, bound: Bound, tally: Tally) -> None:
        super().__init__(bound)
        problem, dtype = self._plan.problem, np.dtype(self._plan.problem.dtype)
        # Of a tile in a slot, beta is store2's.
        starts_with = self._beta if problem.c.path == "resident" else 0.0
        with np.errstate(all="ignore"):
            alpha, beta = (dtype.type(factor).item() for factor in (self._alpha, starts_with))
        source = Source(self._plan, self._operands, tally.scratch_bytes)
        self._tally = tally
        self._signs = draw_signs(problem.m, problem.n, dtype, tally.seed)
        self._reading = source.reading
        self._inspector = Inspector(
            Rounding.of(problem, alpha, beta), self._signs,
            source, self, (alpha, beta), tally,
            self._plan.device.name,
        )  # fmt: skip

    def load1(self, op: Op, after: Sequence[Completion]) -> Completion:
        """Read, while no tile's inputs are read again."""
        with self._reading:
            return super().load1(op, after)

    @abstractmethod
    def panels(self, unit: WorkUnit) -> Iterable[tuple[int, NDArray[Any]]]:
        """Give a C tile by panels of whole rows; each is valid until the next."""

    @abstractmethod
    def multiply(self, unit: WorkUnit, a: NDArray[Any], b: NDArray[Any], *, first: bool) -> None:
        """C tile := alpha·A·B, or += where this is not the first; `a`, `b` in op-space."""
