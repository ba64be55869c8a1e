"""Dispatcher: which ready task runs where and when; the same for real runs and in virtual time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from hdgemm.errors import InputError
from hdgemm.tasks._graph import Graph
from hdgemm.tasks._residency import Residency
from hdgemm.tasks.capability import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from hdgemm.tasks._residency import Move
    from hdgemm.tasks.capability import Capability
    from hdgemm.tasks.task import Access, Kernel, Task


class Issued(NamedTuple):
    """A task that a device is to run now, after some transfers."""

    task: Task
    device: str
    moves: list[Move]


class Dispatcher:
    """The state of a run, without threads and without a clock.

    A task that is ready is assigned to the device that would finish it first: the seconds of the
    tasks that already wait there, of the transfers that it needs, and of the task itself. Each
    device takes the waiting task with the largest priority; of equal ones, the first inserted.
    Without `priorities`, tasks run in the order in which they get ready. It has no lock: its caller
    has one.
    """

    def __init__(self, capabilities: Sequence[Capability], *, priorities: bool = True) -> None:
        self.capabilities = {each.name: each for each in capabilities}
        self.graph = Graph()
        self.residency = Residency({each.name: each.memory_bytes for each in capabilities})
        self._kinds: dict[str, set[str]] = {}
        for each in capabilities:
            for kind in filter(each.runs, each.rates):
                self._kinds.setdefault(kind, set()).add(each.name)
        self._priorities = priorities
        self._waiting: dict[str, list[tuple[int, int, Task]]] = {x: [] for x in self.capabilities}
        self._backlog = dict.fromkeys(self.capabilities, 0.0)
        self._seconds: dict[Task, float] = {}
        self._became_ready = 0
        #: Copies to the host that tasks which wait there need; the caller starts them, and clears.
        self.fetches: list[Move] = []

    def insert(self, kernel: Kernel, **access: Unpack[Access]) -> str | None:
        """Insert a task; return the device that it is assigned to, None while it must wait.

        Where the device that is asked for cannot run it, another one does. Raise `InputError` when
        no device can.
        """
        if kernel.kind not in self._kinds:
            raise InputError(f"no device can run {kernel.kind}")
        if access.get("where") not in self._kinds[kernel.kind]:
            access["where"] = None
        task = self.graph.insert(kernel, **access)
        return self._assign(task) if task.waits_for == 0 else None

    def take(self, device: str, *, issued: bool = False) -> Issued | None:
        """Return the next task of a device with its transfers, None where none is ready.

        With `issued` tasks on the device, one whose tiles do not fit beside theirs must wait.
        """
        waiting = self._waiting[device]
        if not waiting:
            return None
        task = waiting[0][2]
        if issued and not self.residency.fits(task, device):
            return None
        heapq.heappop(waiting)
        return Issued(task, device, self.residency.acquire(task, device))

    def finish(self, issued: Issued) -> list[str]:
        """Note that a task has finished; return the devices of the tasks that got ready."""
        task, device, _ = issued
        self.residency.release(task, device)
        self._backlog[device] -= self._seconds.pop(task)
        return [self._assign(ready) for ready in self.graph.finish(task)]

    def _assign(self, task: Task) -> str:
        device = task.where or self._soonest(task)
        capability = self.capabilities[device]
        seconds = capability.seconds(task.kernel) / capability.lanes
        self._backlog[device] += seconds
        self._seconds[task] = seconds
        self._became_ready += 1
        key = (-task.priority, task.number) if self._priorities else (0, self._became_ready)
        heapq.heappush(self._waiting[device], (*key, task))
        if device == HOST:
            self.fetches += self.residency.fetch(task)
        return device

    def _soonest(self, task: Task) -> str:
        """Return the device that would finish a ready task first."""
        kernel = task.kernel
        best, best_seconds = "", float("inf")
        for name, capability in self.capabilities.items():
            if not capability.runs(kernel.kind):
                continue
            seconds = self._backlog[name] + capability.seconds(kernel)
            if len(self.capabilities) > 1:
                seconds += self._transfer_seconds(task, name)
            if seconds < best_seconds:
                best, best_seconds = name, seconds
        return best

    def _transfer_seconds(self, task: Task, device: str) -> float:
        """Return the time to bring what a task reads to a device, through the host."""
        seconds = 0.0
        for tile in task.reads:
            valid = self.residency.valid(tile)
            if device in valid or not tile.nbytes:
                continue
            if HOST not in valid:
                seconds += tile.nbytes / self.capabilities[min(valid)].down
            if device != HOST:
                seconds += tile.nbytes / self.capabilities[device].up
        return seconds
