"""A plan's stage operations and what each must wait for, as data.

The executor runs them and the simulator prices them: both see the same dependencies. Operations
of one stage run in order; an operation may start when each stage named in its `needs` has
finished that many of its own. That is enough to say everything the pipeline must respect: a
slot is written after its last reader, and read after its writer.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from hdgemm.pipeline.staging import pieces_of
from hdgemm.pipeline.plan import STAGES, flops_per_multiply_add

if TYPE_CHECKING:
    from hdgemm.pipeline.ledger import Ledger
    from hdgemm.pipeline.plan import Load, Operand, Plan, Rect, Stage, Step, WorkUnit

Need = tuple["Stage", int]


class Op(NamedTuple):
    """One operation of one stage.

    Parameters
    ----------
    number
        Its place in its stage, from 0.
    load
        Index of the load it belongs to, -1 for mult1 and stores.
    rect
        What it moves, or the C tile that it multiplies into, in op-space.
    ring
        Which piece of the staging ring it uses, -1 for none.
    nbytes, flops
        What it moves or computes; store2 counts the old C that it reads.
    needs
        ``(stage, count)``: it may start when that stage has finished `count` operations.
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


def build_schedule(plan: Plan) -> Schedule:
    """List the operations of every stage of a plan, each stage in its own order."""
    builder = ScheduleBuilder(plan, plan)
    for unit in plan.units:
        builder.append(unit)
    return builder.schedule


class ScheduleBuilder:
    """Appends operations unit by unit and remembers who was last in each slot.

    Parameters
    ----------
    plan
        Slots, rings, paths and overlap.
    ledger
        Where loads, units and steps are looked up: the plan itself, or one that grows.
    """

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self.plan = plan
        self.ledger = ledger
        self.following = 0  # the next load to be scheduled
        self.schedule: Schedule = {stage: [] for stage in STAGES}
        self.last_load: Stage = "load1" if plan.device.unified else "load2"
        self.drains = plan.overlap.c_on_device and not plan.device.unified
        self.ready: dict[int, Need] = {}  # load → when its tile is whole
        self.reader: dict[tuple[Operand, int], int] = {}  # slot → its last reader's step
        self.stored: dict[int, Need] = {}  # C slot → when its last tile has left it
        self.rings: dict[str, list[int]] = defaultdict(list)

    def append(self, unit: WorkUnit) -> None:
        """Schedule the next unit: its steps, the loads that they are first to read, its stores."""
        loads = self.ledger.loads
        for number in range(unit.first, unit.last + 1):
            while self.following < len(loads) and loads[self.following].step <= number:
                self._load(self.following, loads[self.following])
                self.following += 1
            self._multiply(self.ledger.steps[number], unit)
        self._store(unit)

    def _load(self, number: int, load: Load) -> None:
        plan, spec = self.plan, self.plan.problem.spec(load.operand)
        itemsize = plan.problem.itemsize
        free: list[Need] = self._before_load(load)
        if (reader := self.reader.get((load.operand, load.slot))) is not None:
            free.append(("mult1", reader + 1))
        for rect in pieces_of(plan, load.operand, load.rect):
            area = rect.rows * rect.cols
            staged = None
            if spec.path == "staged":
                staged = self._load1(load, number, rect, area * spec.itemsize, free)
            if not plan.device.unified:
                needs: list[Need] = [("load1", staged.number + 1)] if staged else []
                needs += free
                ring = staged.ring if staged else -1
                self._add("load2", load.operand, rect, needs, load=number, ring=ring,
                          step=load.step, nbytes=area * itemsize)  # fmt: skip
                if staged:
                    self.rings["up"].append(len(self.schedule["load2"]))
            free = []
        self.ready[number] = (self.last_load, len(self.schedule[self.last_load]))

    def _load1(self, load: Load, number: int, rect: Rect, nbytes: int, free: list[Need]) -> Op:
        needs: list[Need] = list(free)
        ring = -1
        if not self.plan.device.unified:
            ring, used = self._next("up")
            # The slot is load2's to wait for; staging is what load1 overwrites.
            needs = [need for need in free if need[0] != "mult1" or not self.plan.overlap.loads]
            needs += [("load2", used)] if used else []
        return self._add("load1", load.operand, rect, needs, load=number, ring=ring,
                         step=load.step, nbytes=nbytes)  # fmt: skip

    def _next(self, ring: str) -> tuple[int, int]:
        """Return the ring's next piece, and the count its last user must have reached."""
        used = self.rings[ring]
        count = (self.plan.up if ring == "up" else self.plan.down).count
        number = len(used)
        return number % count, used[number - count] if number >= count else 0

    def _before_load(self, load: Load) -> list[Need]:
        if self.plan.overlap.loads:
            return []
        stored = len(self.schedule["store2"])
        needs: list[Need] = [("mult1", load.step)]
        return [*needs, ("store2", stored)] if stored else needs

    def _multiply(self, step: Step, unit: WorkUnit) -> None:
        needs: list[Need] = []
        for operand, number in (("A", step.a), ("B", step.b)):
            if number >= 0:
                needs.append(self.ready[number])
                self.reader[operand, self.ledger.loads[number].slot] = step.number  # type: ignore[index]
        if step.number == unit.first:
            if (stored := self.stored.get(unit.slot)) is not None:
                needs.append(stored)
            if not self.plan.overlap.stores and self.schedule["store2"]:
                needs.append(("store2", len(self.schedule["store2"])))
        area = unit.rect.rows * unit.rect.cols
        flops = area * step.kb * flops_per_multiply_add(self.plan.problem.dtype)
        self._add("mult1", "C", unit.rect, needs, unit=unit.number, step=step.number, flops=flops)

    def _store(self, unit: WorkUnit) -> None:
        plan, spec = self.plan, self.plan.problem.c
        if spec.path == "resident":
            return
        itemsize = plan.problem.itemsize
        for rect in pieces_of(plan, "C", unit.rect):
            area = rect.rows * rect.cols
            needs: list[Need] = [("mult1", unit.last + 1)]
            ring = -1
            if self.drains:
                needs = [self._store1(unit, rect, area * itemsize)]
                ring = self.schedule["store1"][-1].ring
            if spec.path == "staged":
                nbytes = area * spec.itemsize * (2 if plan.problem.reads_c else 1)
                self._add("store2", "C", rect, needs, unit=unit.number, ring=ring,
                          step=unit.last, nbytes=nbytes)  # fmt: skip
                if self.drains:
                    self.rings["down"].append(len(self.schedule["store2"]))
        stage: Stage = "store1" if self.drains else "store2"
        self.stored[unit.slot] = (stage, len(self.schedule[stage]))

    def _store1(self, unit: WorkUnit, rect: Rect, nbytes: int) -> Need:
        needs: list[Need] = [("mult1", unit.last + 1)]
        ring = -1
        if self.plan.problem.c.path == "staged":
            ring, used = self._next("down")
            needs += [("store2", used)] if used else []
        self._add("store1", "C", rect, needs, unit=unit.number, ring=ring,
                  step=unit.last, nbytes=nbytes)  # fmt: skip
        return "store1", len(self.schedule["store1"])

    def _add(
        self,
        stage: Stage,
        operand: Operand,
        rect: Rect,
        needs: list[Need],
        *,
        unit: int = -1,
        step: int = -1,
        load: int = -1,
        ring: int = -1,
        nbytes: int = 0,
        flops: int = 0,
    ) -> Op:
        ops = self.schedule[stage]
        if unit < 0:
            unit = self.ledger.steps[step].unit
        op = Op(stage, len(ops), operand, unit, step, load, rect, ring, nbytes, flops, tuple(needs))
        ops.append(op)
        return op
