"""The operations of a plan's stages and their dependencies, as data.

The executor runs them and the simulator prices them. The operations of one stage run in order.
An operation may start when each stage named in its `needs` has finished that many operations:
the writer of a slot waits for the last reader, and a reader for the writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hdgemm.pipeline.plan import OPERANDS, STAGES, flops_per_multiply_add
from hdgemm.pipeline.slots import piece_bytes, pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.pipeline.plan import Load, Operand, Plan, Rect, Stage, Step, WorkUnit

Need = tuple["Stage", int]


class Op(NamedTuple):
    """One operation of one stage: what it moves, or the C tile that it multiplies into, is `rect`.

    `number` counts from 0 in its stage; `load` is -1 for mult1 and stores; `ring` is the piece of
    the staging ring, -1 for none. store2's `nbytes` count the old C that it reads. It may start
    when each stage named in `needs` has finished so many operations.
    """

    stage: Stage
    number: int
    operand: Operand
    unit: int
    step: int
    load: int
    rect: Rect
    ring: int
    nbytes: int
    flops: int
    needs: tuple[Need, ...]


Schedule = dict["Stage", list[Op]]


class Ledger(NamedTuple):
    """Loads, work units and steps by number, each in the order in which the run needs them.

    Those of a plan, or the ones that a dynamic schedule has drawn so far.
    """

    loads: Sequence[Load]
    units: Sequence[WorkUnit]
    steps: Sequence[Step]

    @classmethod
    def of(cls, plan: Plan) -> Ledger:
        """Return the schedule of a plan."""
        return cls(plan.loads, plan.units, plan.steps)


def build_schedule(plan: Plan) -> Schedule:
    """List the operations of every stage of a plan, each stage in its own order."""
    builder = ScheduleBuilder(plan, Ledger.of(plan))
    for unit in plan.units:
        builder.append(unit)
    return builder.schedule


class _Ring:
    """A staging ring: its pieces are filled in turn, each after its last content has left."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._emptied: list[int] = []

    def fill(self, emptying: Stage) -> tuple[int, tuple[Need, ...]]:
        """Return the next piece, and what must precede filling it."""
        number = len(self._emptied)
        if number < self._count:
            return number, ()
        return number % self._count, ((emptying, self._emptied[number - self._count]),)

    def emptied(self, count: int) -> None:
        """Note that the last piece filled is empty after `count` operations of a later stage."""
        self._emptied.append(count)


class ScheduleBuilder:
    """Appends operations unit by unit; keeps the last reader and writer of each slot."""

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self.schedule: Schedule = {stage: [] for stage in STAGES}
        self._plan = plan
        self._ledger = ledger
        self._overlap = plan.overlap
        self._unified = plan.device.unified
        self._itemsize = plan.problem.itemsize
        self._flops = flops_per_multiply_add(plan.problem.dtype)
        self._piece_bytes = {x: piece_bytes(plan, x) for x in OPERANDS}
        self._up, self._down = _Ring(plan.up.count), _Ring(plan.down.count)
        self._next_load = 0
        self._loaded: dict[int, Need] = {}  # load → when its tile is complete
        self._reader: dict[tuple[Operand, int], Need] = {}  # slot → its last reader
        self._stored: dict[int, tuple[Need, ...]] = {}  # C slot → when its last tile has left it

    def append(self, unit: WorkUnit) -> None:
        """Schedule a unit: its steps, the loads whose first readers they are, its stores."""
        loads = self._ledger.loads
        for number in range(unit.first, unit.last + 1):
            while self._next_load < len(loads) and loads[self._next_load].step <= number:
                self._load(self._next_load, loads[self._next_load])
                self._next_load += 1
            self._multiply(self._ledger.steps[number], unit)
        self._store(unit)

    def _pieces(self, operand: Operand, rect: Rect) -> Sequence[Rect]:
        if rect.area * self._itemsize <= self._piece_bytes[operand]:
            return (rect,)
        return pieces_of(self._plan, operand, rect)

    def _load(self, number: int, load: Load) -> None:
        operand, _, slot, step = load
        spec = self._plan.problem.spec(operand)
        unit = self._ledger.steps[step].unit
        load1, load2 = self.schedule["load1"], self.schedule["load2"]
        free = self._before_load(step)
        if (reader := self._reader.get((operand, slot))) is not None:
            free = (*free, reader)
        for rect in self._pieces(operand, load.rect):
            ring, needs = -1, free
            if spec.path == "staged":
                if not self._unified:
                    ring, needs = self._up.fill("load2")
                    if not self._overlap.loads:  # otherwise load1 overwrites staging only
                        needs = free + needs
                place = (operand, unit, step, number, rect, ring)
                nbytes = rect.area * spec.itemsize
                load1.append(Op("load1", len(load1), *place, nbytes, 0, needs))
                needs = (("load1", len(load1)), *free)
            if not self._unified:
                place = (operand, unit, step, number, rect, ring)
                nbytes = rect.area * self._itemsize
                load2.append(Op("load2", len(load2), *place, nbytes, 0, needs))
                if ring >= 0:
                    self._up.emptied(len(load2))
            free = ()
        self._loaded[number] = ("load1", len(load1)) if self._unified else ("load2", len(load2))

    def _before_load(self, step: int) -> tuple[Need, ...]:
        if self._overlap.loads:
            return ()
        return ("mult1", step), *self._all_stored()

    def _all_stored(self) -> tuple[Need, ...]:
        stored = len(self.schedule["store2"])
        return (("store2", stored),) if stored else ()

    def _multiply(self, step: Step, unit: WorkUnit) -> None:
        needs: tuple[Need, ...] = ()
        loads = self._ledger.loads
        for number in (step.a, step.b):
            if number >= 0:
                load = loads[number]
                needs = (*needs, self._loaded[number])
                self._reader[load.operand, load.slot] = ("mult1", step.number + 1)
        if step.number == unit.first:
            needs += self._stored.get(unit.slot, ())
            if not self._overlap.stores:
                needs += self._all_stored()
        flops = unit.rect.area * step.kb * self._flops
        mult1 = self.schedule["mult1"]
        place = (unit.number, step.number, -1, unit.rect, -1)
        mult1.append(Op("mult1", len(mult1), "C", *place, 0, flops, needs))

    def _store(self, unit: WorkUnit) -> None:
        problem = self._plan.problem
        path = problem.c.path
        if path == "resident":
            return
        store1, store2 = self.schedule["store1"], self.schedule["store2"]
        drains = self._overlap.c_on_device and not self._unified
        for rect in self._pieces("C", unit.rect):
            ring = -1
            needs: tuple[Need, ...] = (("mult1", unit.last + 1),)
            if drains:
                if path == "staged":
                    ring, empty = self._down.fill("store2")
                    needs += empty
                nbytes = rect.area * self._itemsize
                place = (unit.number, unit.last, -1, rect, ring)
                store1.append(Op("store1", len(store1), "C", *place, nbytes, 0, needs))
                needs = (("store1", len(store1)),)
            if path == "staged":
                nbytes = rect.area * problem.c.itemsize * (2 if problem.reads_c else 1)
                place = (unit.number, unit.last, -1, rect, ring)
                store2.append(Op("store2", len(store2), "C", *place, nbytes, 0, needs))
                if drains:
                    self._down.emptied(len(store2))
        self._stored[unit.slot] = (("store1", len(store1)) if drains else ("store2", len(store2)),)
