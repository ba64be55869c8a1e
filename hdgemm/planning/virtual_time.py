"""Virtual time: lanes of tasks in order, and resources divided among whoever uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from hdgemm.planning.costs import Cost

#: What is left of a task, as a part of the whole, below which it is done.
_DONE: Final = 1e-12


class Task(NamedTuple):
    """One operation in a lane: it starts when each named lane has finished so many of its own."""

    cost: Cost
    needs: Sequence[tuple[Hashable, int]]


class Interval(NamedTuple):
    """When a task ran, in seconds from the beginning."""

    start: float
    end: float


def speeds(costs: Sequence[Cost]) -> list[float]:
    """Divide the resources among operations that run at once, by progressive filling.

    All speeds rise together, each as a part of the operation's own speed when alone, until a
    resource is used up; its users keep their speed and the others rise on.

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


def run_lanes(lanes: Mapping[Hashable, Sequence[Task]]) -> dict[Hashable, list[Interval]]:
    """Run every lane's tasks, each lane in its order, and return when each task ran.

    Raises
    ------
    ValueError
        When tasks wait for one another in a circle.
    """
    return _Clock(lanes).run()


class _Running:
    """A lane's current task."""

    __slots__ = ("cost", "left", "start")

    def __init__(self, cost: Cost, start: float) -> None:
        self.cost, self.start, self.left = cost, start, 1.0


class _Clock:
    def __init__(self, lanes: Mapping[Hashable, Sequence[Task]]) -> None:
        self.lanes = {lane: tasks for lane, tasks in lanes.items() if tasks}
        self.done: dict[Hashable, list[Interval]] = {lane: [] for lane in lanes}
        self.running: dict[Hashable, _Running] = {}
        self.now = 0.0
        # Plans repeat the same few operations, so the same few sets of them meet.
        self.known: dict[tuple[Cost, ...], list[float]] = {}

    def run(self) -> dict[Hashable, list[Interval]]:
        while self._start() or self.running:
            self._advance()
        for lane, tasks in self.lanes.items():
            if len(self.done[lane]) < len(tasks):
                raise ValueError(f"task {len(self.done[lane])} of lane {lane} can never start")
        return self.done

    def _start(self) -> bool:
        """Start what can start, and say whether anything did."""
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
        """Let time pass until the next task ends."""
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
