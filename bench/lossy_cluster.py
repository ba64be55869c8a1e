"""A cluster in virtual time that loses workers."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

from hdgemm.cluster.virtual_time import VirtualCluster, VirtualRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.cluster.blocks import Costs
    from hdgemm.cluster.virtual_time import VirtualWorker

#: Seconds until the client sees that a worker is gone.
NOTICE_SECONDS: Final = 5.0


class LossyCluster(VirtualCluster):
    """A `VirtualCluster` of which each worker in `lost` is lost at some second."""

    def __init__(
        self,
        shape: tuple[int, int],
        costs: Costs,
        workers: Sequence[VirtualWorker],
        lost: Mapping[str, float],
        *,
        bandwidth: float,
        flops_per_element: int,
    ) -> None:
        super().__init__(
            shape, costs, workers, bandwidth=bandwidth, flops_per_element=flops_per_element
        )
        self._lost = lost

    def run(self) -> VirtualRun:
        """Return when every element of C is stored.

        Raises
        ------
        ValueError
            When every worker is lost before.
        """
        losses = [(at, 0, name) for name, at in self._lost.items()]
        losses += [(at + NOTICE_SECONDS, 1, name) for at, _, name in losses]
        heapq.heapify(losses)
        self._fill()
        while self._pool.left:
            end = self._next_end()
            if losses and losses[0][0] <= end:
                at, noticed, name = heapq.heappop(losses)
                self._advance(at)
                (self._notice if noticed else self._lose)(name)
                continue
            if math.isinf(end):
                raise ValueError("every worker is lost before C is complete")
            self._advance(end)
            self._finish()
        return self._result()

    def _next_end(self) -> float:
        while self._ends and self._states[self._ends[0][1]].running is not self._ends[0][2]:
            heapq.heappop(self._ends)  # of a lost worker
        return super()._next_end() if self._ends else math.inf

    def _draw(self, name: str) -> None:
        if self._now < self._lost.get(name, math.inf) and name in self._pool:
            super()._draw(name)

    def _lose(self, name: str) -> None:
        state = self._states[name]
        if state.running is not None:
            self._demand -= state.running.demand
        state.running, state.queue = None, []

    def _notice(self, name: str) -> None:
        """Give a lost worker's blocks to the others."""
        self._pool.leave(name)
        self._fill()

    def _perfect(self) -> float:
        """Return the seconds of the same work on the same workers, lost when they were."""
        left, now = float(self._total), 0.0
        rates = {name: state.worker.flop_rate for name, state in self._states.items()}
        for name, at in sorted(self._lost.items(), key=lambda item: item[1]):
            rate = sum(rates.values())
            if now + left / rate <= at:
                break
            left -= (at - now) * rate
            now = at
            del rates[name]
        return now + left / sum(rates.values())
