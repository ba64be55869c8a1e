"""The operations of a plan's stages and their dependencies, as data.

The executor runs them and the simulator prices them. The operations of one stage run in order.
An operation may start when each stage named in its `needs` has finished that many operations:
the writer of a slot waits for the last reader, and a reader for the writer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from hdgemm.pipeline.plan import OPERANDS, STAGES, flops_per_multiply_add
from hdgemm.pipeline.slots import piece_bytes, pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.pipeline.plan import Operand, Plan, Stage
    from hdgemm.pipeline.slot_reuse import PlannedStep
    from hdgemm.pipeline.tiles import Load, Rect, Step, WorkUnit

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
    """Loads, work units and steps by number: those that operations still refer to."""

    loads: dict[int, Load]
    units: dict[int, WorkUnit]
    steps: dict[int, Step]


def build_schedule(plan: Plan) -> Schedule:
    """List the operations of every stage of a plan, each stage in its own order."""
    builder = ScheduleBuilder(plan)
    for planned in plan.course.planned():
        builder.append(planned)
    return {stage: list(ops) for stage, ops in builder.waiting.items()}


def stages_of(plan: Plan) -> list[Stage]:
    """Return the stages that have operations in a plan."""
    problem, unified = plan.problem, plan.device.unified
    loaded = {problem.a.path, problem.b.path} - {"resident"}
    drained = plan.overlap.c_on_device and not unified and problem.c.path != "resident"
    found: dict[Stage, bool] = {
        "load1": "staged" in loaded,
        "load2": bool(loaded) and not unified,
        "mult1": True,
        "store1": drained,
        "store2": problem.c.path == "staged",
    }
    return [stage for stage, works in found.items() if works]


class _Ring:
    """A staging ring: its pieces are filled in turn, each after its last content has left."""

    def __init__(self, count: int) -> None:
        self._count, self._filled = count, 0
        self._emptied: deque[int] = deque(maxlen=max(1, count))

    def fill(self, emptying: Stage) -> tuple[int, tuple[Need, ...]]:
        """Return the next piece, and what must precede filling it."""
        number = self._filled
        self._filled += 1
        if number < self._count:
            return number, ()
        return number % self._count, ((emptying, self._emptied[0]),)

    def emptied(self, count: int) -> None:
        """Note that the last piece filled is empty after `count` operations of a later stage."""
        self._emptied.append(count)


class ScheduleBuilder:
    """Appends operations step by step; keeps the last reader and writer of each slot.

    `waiting` are the operations of each stage that no lane has taken, `counts` all so far.
    """

    def __init__(self, plan: Plan) -> None:
        self.waiting: dict[Stage, deque[Op]] = {stage: deque() for stage in STAGES}
        self.counts: dict[Stage, int] = dict.fromkeys(STAGES, 0)
        self.ledger = Ledger({}, {}, {})
        self._plan = plan
        self._overlap = plan.overlap
        self._unified = plan.device.unified
        self._itemsizes = {x: plan.problem.tile_itemsize(x) for x in OPERANDS}
        self._flops = flops_per_multiply_add(plan.problem.dtype)
        self._piece_bytes = {x: piece_bytes(plan, x) for x in OPERANDS}
        self._up, self._down = _Ring(plan.up.count), _Ring(plan.down.count)
        self._loads = 0
        self._loaded: dict[int, Need] = {}  # load → when its tile is complete
        self._reader: dict[tuple[Operand, int], Need] = {}  # slot → its last reader
        self._stored: dict[int, tuple[Need, ...]] = {}  # C slot → when its last tile has left it

    def append(self, planned: PlannedStep) -> None:
        """Schedule a step: the loads whose first reader it is, its multiplication, the stores of
        its unit behind the last one.
        """
        step, unit, loads, gone = planned
        ledger = self.ledger
        if step.number == unit.first:
            ledger.units[unit.number] = unit
        ledger.steps[step.number] = step
        for load in loads:
            ledger.loads[self._loads] = load
            self._load(self._loads, load, unit.number)
            self._loads += 1
        for number in gone:
            del self._loaded[number]
        self._multiply(step, unit)
        if step.number == unit.last:
            self._store(unit)

    def _add(self, op: Op) -> None:
        self.counts[op.stage] = op.number + 1
        self.waiting[op.stage].append(op)

    def _pieces(self, operand: Operand, rect: Rect) -> Sequence[Rect]:
        if rect.area * self._itemsizes[operand] <= self._piece_bytes[operand]:
            return (rect,)
        return pieces_of(self._plan, operand, rect)

    def _load(self, number: int, load: Load, unit: int) -> None:
        operand, _, slot, step = load
        spec, counts = self._plan.problem.spec(operand), self.counts
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
                self._add(Op("load1", counts["load1"], *place, nbytes, 0, needs))
                needs = (("load1", counts["load1"]), *free)
            if not self._unified:
                place = (operand, unit, step, number, rect, ring)
                nbytes = rect.area * self._itemsizes[operand]
                self._add(Op("load2", counts["load2"], *place, nbytes, 0, needs))
                if ring >= 0:
                    self._up.emptied(counts["load2"])
            free = ()
        last: Stage = "load1" if self._unified else "load2"
        self._loaded[number] = last, counts[last]

    def _before_load(self, step: int) -> tuple[Need, ...]:
        if self._overlap.loads:
            return ()
        return ("mult1", step), *self._all_stored()

    def _all_stored(self) -> tuple[Need, ...]:
        stored = self.counts["store2"]
        return (("store2", stored),) if stored else ()

    def _multiply(self, step: Step, unit: WorkUnit) -> None:
        needs: tuple[Need, ...] = ()
        loads = self.ledger.loads
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
        place = (unit.number, step.number, -1, unit.rect, -1)
        self._add(Op("mult1", self.counts["mult1"], "C", *place, 0, flops, needs))

    def _store(self, unit: WorkUnit) -> None:
        problem = self._plan.problem
        path = problem.c.path
        if path == "resident":
            return
        counts = self.counts
        drains = self._overlap.c_on_device and not self._unified
        for rect in self._pieces("C", unit.rect):
            ring = -1
            needs: tuple[Need, ...] = (("mult1", unit.last + 1),)
            if drains:
                if path == "staged":
                    ring, empty = self._down.fill("store2")
                    needs += empty
                nbytes = rect.area * self._itemsizes["C"]
                place = (unit.number, unit.last, -1, rect, ring)
                self._add(Op("store1", counts["store1"], "C", *place, nbytes, 0, needs))
                needs = (("store1", counts["store1"]),)
            if path == "staged":
                nbytes = rect.area * problem.c.itemsize * (2 if problem.reads_c else 1)
                place = (unit.number, unit.last, -1, rect, ring)
                self._add(Op("store2", counts["store2"], "C", *place, nbytes, 0, needs))
                if drains:
                    self._down.emptied(counts["store2"])
        last: Stage = "store1" if drains else "store2"
        self._stored[unit.slot] = ((last, counts[last]),)
