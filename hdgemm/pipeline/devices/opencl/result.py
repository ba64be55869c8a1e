"""What became of one candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.opencl.shape import Shape

Outcome = Literal["timed", "wrong", "failed", "crashed", "slow"]


class Result(NamedTuple):
    """What became of one candidate; `note` says why it was not timed.

    It was tried on a product of the class `of` at the tuning extent `n`.
    """

    shape: Shape
    n: int
    outcome: Outcome
    gflops: float = 0.0
    error: float = 0.0
    note: str = ""
    of: str = "square"
