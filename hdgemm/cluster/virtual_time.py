"""A cluster in virtual time: the pool of a real run, workers and storage as numbers.

All tasks share the storage. Where they ask for more than its bandwidth, all are slowed down in
proportion, so that one clock of work, which runs slower than time, orders the ends of all tasks.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hdgemm.cluster.blocks import BlockPool, Costs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.pipeline.tiles import Rect

#: Seconds that a task takes beside its work: the scheduler, opening of files, planning.
TASK_SECONDS: Final = 0.05
#: Blocks that a worker has at a time, as in a real run.
_DEPTH: Final = 2


@dataclass(frozen=True, slots=True)
class VirtualWorker:
    """One worker.

    It reaches `flop_rate`, and reports `expected` when it joins; None for the same. Its memory
    holds a block of `most_elements`, and it reads `bandwidth` bytes/s from the storage at most.
    """

    name: str
    flop_rate: float
    expected: float | None = None
    most_elements: float = math.inf
    bandwidth: float = math.inf


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """A run in virtual time: seconds, blocks in the order of their ends, bytes read by each worker.

    The same work takes `perfect_seconds` on the same workers without reading or waiting.
    """

    seconds: float
    perfect_seconds: float
    blocks: tuple[Rect, ...]
    bytes_read: dict[str, int]

    @property
    def efficiency(self) -> float:
        """The perfect time as a part of the time taken."""
        return self.perfect_seconds / self.seconds


@dataclass
class _Running:
    """A task: the demand on the storage in bytes/s of work."""

    block: Rect
    demand: float
    began: float


@dataclass
class _State:
    worker: VirtualWorker
    queue: list[Rect] = field(default_factory=list)
    running: _Running | None = None


class VirtualCluster:
    """Discrete-event simulation of one product, with C's rows and columns as `shape`.

    The storage serves all workers together at `bandwidth` bytes/s.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        costs: Costs,
        workers: Sequence[VirtualWorker],
        *,
        bandwidth: float,
        flops_per_element: int,
        quantum: tuple[int, int] = (1, 1),
    ) -> None:
        self._costs, self._bandwidth = costs, bandwidth
        self._flops = flops_per_element
        self._total = shape[0] * shape[1] * flops_per_element
        self._pool = BlockPool(shape, costs, bandwidth=bandwidth, quantum=quantum)
        self._states = {worker.name: _State(worker) for worker in workers}
        for worker in workers:
            rate = (worker.expected or worker.flop_rate) / flops_per_element
            self._pool.join(worker.name, rate, worker.most_elements)
        self._now = self._work = self._demand = 0.0
        self._ends: list[tuple[float, str, _Running]] = []
        self._blocks: list[Rect] = []
        self._read = dict.fromkeys(self._states, 0)

    def run(self) -> VirtualRun:
        """Return when every element of C is stored."""
        self._fill()
        while self._pool.left:
            self._advance(self._next_end())
            self._finish()
        return self._result()

    def _result(self) -> VirtualRun:
        return VirtualRun(self._now, self._perfect(), tuple(self._blocks), self._read)

    @property
    def _speed(self) -> float:
        """Work per second of every task: 1 where the storage serves all that is asked."""
        return min(1.0, self._bandwidth / self._demand) if self._demand > 0 else 1.0

    def _next_end(self) -> float:
        return self._now + (self._ends[0][0] - self._work) / self._speed

    def _advance(self, time: float) -> None:
        self._work += (time - self._now) * self._speed
        self._now = time

    def _fill(self) -> None:
        for name in self._states:
            self._draw(name)

    def _draw(self, name: str) -> None:
        """Fill a worker's queue and start its next task."""
        state = self._states[name]
        while len(self._pool.out(name)) < _DEPTH and (block := self._pool.draw(name)) is not None:
            state.queue.append(block)
        if state.running is None and state.queue:
            self._start(name, state)

    def _start(self, name: str, state: _State) -> None:
        block, worker = state.queue.pop(0), state.worker
        nbytes = self._costs.nbytes(block.rows, block.cols)
        computing = block.area * self._flops / worker.flop_rate
        seconds = TASK_SECONDS + max(computing, nbytes / worker.bandwidth)
        state.running = _Running(block, nbytes / seconds, self._now)
        self._read[name] += nbytes
        self._demand += state.running.demand
        heapq.heappush(self._ends, (self._work + seconds, name, state.running))

    def _finish(self) -> None:
        _, name, running = heapq.heappop(self._ends)
        self._demand -= running.demand
        self._states[name].running = None
        self._pool.finished(name, running.block, self._now - running.began)
        self._blocks.append(running.block)
        self._draw(name)

    def _perfect(self) -> float:
        """Return the seconds of perfect balance: no waiting, no reading."""
        return self._total / sum(state.worker.flop_rate for state in self._states.values())
