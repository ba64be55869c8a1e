"""Task graphs in virtual time: the dispatcher of real runs, on devices given by their rates."""

from __future__ import annotations

import heapq
from operator import attrgetter
from typing import TYPE_CHECKING

from hdgemm.errors import HdgemmError
from hdgemm.pipeline.timeline import Event, Timeline
from hdgemm.tasks._dispatcher import Dispatcher
from hdgemm.tasks.capability import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from hdgemm.pipeline.plan import Stage
    from hdgemm.tasks._dispatcher import Issued
    from hdgemm.tasks._residency import Move
    from hdgemm.tasks.capability import Capability
    from hdgemm.tasks.task import Access, Kernel
    from hdgemm.tasks.tiles import TaskTile


class VirtualRun:
    """Runs inserted tasks in virtual time.

    Each device has so many lanes, and a link that carries one transfer in each direction at a time;
    the transfers of the next tasks overlap the running ones. Insertion takes no time, but waits
    while `window` tasks are unfinished.
    """

    #: Tasks that are issued to a device in addition to the running ones.
    ahead = 1

    def __init__(
        self, capabilities: Sequence[Capability], *, window: int = 4096, priorities: bool = True
    ) -> None:
        self.dispatcher = Dispatcher(capabilities, priorities=priorities)
        self.now = 0.0
        #: The most tasks that were unfinished at once.
        self.most_unfinished = 0
        self._window = window
        self._issued = dict.fromkeys(self.dispatcher.capabilities, 0)
        self._lanes = {each.name: [0.0] * each.lanes for each in capabilities}
        self._links: dict[tuple[str, str], float] = {}
        self._arrivals: dict[tuple[TaskTile, str], float] = {}
        self._ends: list[tuple[float, int, Issued]] = []
        self._events: list[Event] = []

    def insert(self, kernel: Kernel, **access: Unpack[Access]) -> None:
        """Insert one task; advance the clock while the window is full."""
        while self.dispatcher.graph.unfinished >= self._window:
            self._advance()
        device = self.dispatcher.insert(kernel, **access)
        self.most_unfinished = max(self.most_unfinished, self.dispatcher.graph.unfinished)
        self._fetch(kernel)
        if device is not None:
            self._issue(device)

    def finish(self) -> Timeline:
        """Run all tasks; return the timeline, in which all tiles come back to the host."""
        while self.dispatcher.graph.unfinished:
            self._advance()
        end = self.now
        for move in self.dispatcher.residency.write_back():
            end = max(end, self._transfer(move, 0, 0))
        return Timeline(tuple(sorted(self._events, key=attrgetter("start"))), end)

    def links(self, device: str) -> set[str]:
        """Return the links that a transfer from or to a device occupies."""
        return {device}

    def _advance(self) -> None:
        """Go on to the end of the next task."""
        if not self._ends:
            raise HdgemmError("no task runs, and none is ready: the devices cannot hold the tiles")
        self.now, _, issued = heapq.heappop(self._ends)
        self._issued[issued.device] -= 1
        ready = self.dispatcher.finish(issued)
        self._fetch(issued.task.kernel)
        for device in dict.fromkeys((issued.device, *ready)):
            self._issue(device)

    def _fetch(self, kernel: Kernel) -> None:
        """Start the copies to the host of what ready tasks need there."""
        for move in self.dispatcher.fetches:
            self._transfer(move, kernel.unit, kernel.step)
        self.dispatcher.fetches.clear()

    def _issue(self, device: str) -> None:
        """Issue waiting tasks to a device as long as it takes them."""
        most = len(self._lanes[device]) + self.ahead
        while self._issued[device] < most:
            issued = self.dispatcher.take(device, issued=self._issued[device] > 0)
            if issued is None:
                return
            self._issued[device] += 1
            self._run(issued)

    def _run(self, issued: Issued) -> None:
        task, device, moves = issued
        kernel = task.kernel
        for move in moves:
            self._transfer(move, kernel.unit, kernel.step)
        lanes = self._lanes[device]
        arrived = (self._arrivals.get((tile, device), 0.0) for tile in task.reads)
        start = max(self.now, lanes[0], *arrived)
        end = start + self.dispatcher.capabilities[device].seconds(kernel)
        heapq.heapreplace(lanes, end)
        for tile in task.writes:
            self._arrivals.pop((tile, device), None)
        self._events.append(
            Event(
                device,
                "mult1",
                task.number,
                kernel.unit,
                kernel.step,
                start,
                end,
                kernel.nbytes,
                kernel.flops,
            )
        )
        heapq.heappush(self._ends, (end, task.number, issued))

    def _transfer(self, move: Move, unit: int, step: int) -> float:
        """Occupy the links of one move; return when it is done."""
        tile, source, target = move
        if source is None or target is None:
            self._arrivals.pop((tile, source or target or HOST), None)
            return self.now
        down = target == HOST
        device = self.dispatcher.capabilities[source if down else target]
        channel = "down" if down else "up"
        links = {(link, channel) for link in self.links(device.name)}
        start = max(
            self.now,
            self._arrivals.get((tile, source), 0.0),
            *(self._links.get(link, 0.0) for link in links),
        )
        end = start + tile.nbytes / (device.down if down else device.up)
        self._links |= dict.fromkeys(links, end)
        self._arrivals[tile, target] = end
        stage: Stage = "store1" if down else "load2"
        self._events.append(
            Event(device.name, stage, len(self._events), unit, step, start, end, tile.nbytes, 0)
        )
        return end
