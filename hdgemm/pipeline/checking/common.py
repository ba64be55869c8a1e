"""What checked stages of either kind are made with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hdgemm.pipeline.checking.bounds import Rounding
from hdgemm.pipeline.checking.inspection import Inspector
from hdgemm.pipeline.checking.reread import Source
from hdgemm.pipeline.checking.sums import Signs, draw_signs

if TYPE_CHECKING:
    import threading

    from hdgemm.pipeline.checking.inspection import Access
    from hdgemm.pipeline.checking.tally import Tally
    from hdgemm.pipeline.plan import Plan
    from hdgemm.pipeline.slots import Operands


def make_inspector(
    plan: Plan,
    operands: Operands,
    factors: tuple[complex, complex],
    tally: Tally,
    access: Access,
) -> tuple[Signs, Inspector, threading.Lock]:
    """Return a run's signs, what judges its tiles, and the lock of those who read its matrices.

    Parameters
    ----------
    factors
        alpha, and the beta that a tile itself starts with.
    """
    dtype = np.dtype(plan.problem.dtype)
    with np.errstate(all="ignore"):
        alpha, beta = (dtype.type(factor).item() for factor in factors)
    signs = draw_signs(plan.problem.m, plan.problem.n, dtype, tally.seed)
    source = Source(plan, operands, tally.scratch_bytes)
    inspector = Inspector(
        Rounding.of(plan.problem, alpha, beta), signs,
        source, access, (alpha, beta), tally,
        plan.device.name,
    )  # fmt: skip
    return signs, inspector, source.reading
