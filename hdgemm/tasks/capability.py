"""Capability weights: how fast each device runs each kind of task, and how fast data reaches it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.tasks.task import Kernel

#: Name of the host, where all tiles lie at first.
HOST: Final = "host"
#: Kinds of tasks that every device runs, and those that the host alone runs.
UPDATES: Final = ("gemm", "trsm", "laswp", "larfb")
KINDS: Final = (*UPDATES, "potrf", "panel trsm", "getrf", "geqrt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One device, as the scheduler sees it (Dongarra et al., section 6.2).

    Parameters
    ----------
    rates
        Flop/s by kind of task, for a deep summation. A kind that is missing cannot run here.
    depth_half
        Depth of a summation at which a kernel runs at half its rate.
    memory
        Bytes/s of kernels that are limited by memory.
    latency
        Seconds that each task takes in addition.
    up, down
        Bytes/s from the host and to it; not used for the host itself.
    memory_bytes
        Bytes of tiles that it can hold; None for no limit.
    lanes
        Tasks that it runs at once, each at the full rates.
    """

    name: str
    rates: Mapping[str, float] = field(hash=False)
    depth_half: float = 0.0
    memory: float = 10e9
    latency: float = 0.0
    up: float = 6e9
    down: float = 6e9
    memory_bytes: int | None = None
    lanes: int = 1

    def runs(self, kind: str) -> bool:
        """Say whether it can run a kind of task."""
        return self.rates.get(kind, 0.0) > 0

    def seconds(self, kernel: Kernel) -> float:
        """Return the time of one kernel call on tiles that are here."""
        work = kernel.flops * (1 + self.depth_half / kernel.depth) / self.rates[kernel.kind]
        return self.latency + work + kernel.nbytes / self.memory


def coarse(capability: Capability, group: int) -> Capability:
    """Return a capability that takes as long for panels `group` times as wide, and fewer tasks."""
    rates = {
        kind: rate if kind in UPDATES else group * rate for kind, rate in capability.rates.items()
    }
    return replace(
        capability,
        rates=rates,
        latency=group**2 * capability.latency,
        depth_half=group * capability.depth_half,
    )
