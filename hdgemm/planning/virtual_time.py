"""Virtual time: a processor-sharing simulation of lanes of tasks that share resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from hdgemm.planning.costs import Cost

#: A task is done when less than this part of it is left.
_DONE: Final = 1e-12


class Activity(NamedTuple):
    """One operation in a lane; it starts when each lane in `needs` has finished so many tasks."""

    cost: Cost
    needs: Sequence[tuple[Hashable, int]]


class Interval(NamedTuple):
    """Start and end of a task in seconds from the start of the simulation."""

    start: float
    end: float


def speeds(costs: Sequence[Cost]) -> list[float]:
    """Divide the resources among operations that run at once, max-min fair.

    Progressive filling: all speeds rise together, as a part of each operation's speed when alone,
    until a resource is used up. The speeds of its users are then fixed, the others rise on.

    Returns
    -------
    For each operation the part of it that is done in a second.
    """
    part = [1.0] * len(costs)
    rising = set(range(len(costs)))
    left: dict[str, float] = {}
    for cost in costs:
        for resource, _ in cost.demands:
            left[resource] = 1.0
    while rising:
        rates = dict.fromkeys(left, 0.0)
        for i in rising:
            for resource, seconds in costs[i].demands:
                rates[resource] += seconds / costs[i].seconds
        tightest = min((left[name] / rate for name, rate in rates.items() if rate > 0), default=1.0)
        if tightest >= 1.0 - _DONE:
            break
        full = {
            name
            for name, rate in rates.items()
            if rate > 0 and left[name] / rate <= tightest * (1 + _DONE)
        }
        stopped = {i for i in rising if any(name in full for name, _ in costs[i].demands)}
        for i in stopped:
            part[i] = tightest
            for resource, seconds in costs[i].demands:
                left[resource] -= tightest * seconds / costs[i].seconds
        rising -= stopped
    return [one / cost.seconds for one, cost in zip(part, costs, strict=True)]


def run_lanes(lanes: Mapping[Hashable, Sequence[Activity]]) -> dict[Hashable, list[Interval]]:
    """Simulate every lane's tasks, each lane in order, and return the interval of each task;
    `ValueError` when their needs form a cycle.
    """
    return _Clock(lanes).run()


class _Running:
    """The current task of a lane, and the part of it that is left."""

    __slots__ = ("cost", "left", "start")

    def __init__(self, cost: Cost, start: float) -> None:
        self.cost, self.start, self.left = cost, start, 1.0


class _Clock:
    """The state of one simulation."""

    def __init__(self, lanes: Mapping[Hashable, Sequence[Activity]]) -> None:
        self.lanes = {lane: tasks for lane, tasks in lanes.items() if tasks}
        self.done: dict[Hashable, list[Interval]] = {lane: [] for lane in lanes}
        self.running: dict[Hashable, _Running] = {}
        self.now = 0.0
        # Plans repeat few different operations, so that the same sets of them recur.
        self.known: dict[tuple[Cost, ...], list[float]] = {}

    def run(self) -> dict[Hashable, list[Interval]]:
        while self._start() or self.running:
            self._advance()
        for lane, tasks in self.lanes.items():
            if len(self.done[lane]) < len(tasks):
                raise ValueError(f"task {len(self.done[lane])} of lane {lane} can never start")
        return self.done

    def _start(self) -> bool:
        """Start every lane's next task that can start; return whether any did."""
        started = False
        for lane, tasks in self.lanes.items():
            number = len(self.done[lane])
            if lane in self.running or number == len(tasks):
                continue
            task = tasks[number]
            if all(len(self.done[other]) >= count for other, count in task.needs):
                self.running[lane] = _Running(task.cost, self.now)
                started = True
        return started

    def _advance(self) -> None:
        """Advance the time until the next task ends."""
        running = list(self.running.values())
        costs = tuple(one.cost for one in running)
        rates = self.known.get(costs)
        if rates is None:
            rates = self.known[costs] = speeds(costs)
        step = min(one.left / rate for one, rate in zip(running, rates, strict=True))
        self.now += step
        for one, rate in zip(running, rates, strict=True):
            one.left -= step * rate
        for lane, one in list(self.running.items()):
            if one.left <= _DONE:
                self.done[lane].append(Interval(one.start, self.now))
                del self.running[lane]
