"""From a drawn C tile to the steps and loads that compute it, one tile at a time.

Without the future, the tile to give up is the one used longest ago. While a device walks its bar
and sweeps k forwards and backwards in turn, that is the very tile whose next use is farthest
away, so that nothing is lost against a known order (`hdgemm.planning.reuse`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hdgemm.pipeline.dynamic_schedule import Batch
from hdgemm.pipeline.plan import Load, Rect, Step, WorkUnit
from hdgemm.planning.order import cut, sweep

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Plan


@dataclass(slots=True)
class _Held:
    """A tile in a slot: its load's number, and the step that used it last."""

    load: int
    slot: int
    used: int


class _Cache:
    """The slots of A or B."""

    def __init__(self, operand: Literal["A", "B"], slots: int) -> None:
        self.operand = operand
        self._slots = slots
        self._held: dict[Rect, _Held] = {}

    def read(self, rect: Rect, step: int, number: int) -> tuple[int, Load | None]:
        """Return the load that step `step` reads for `rect`; a new one gets `number`.

        With two slots or more the tile of the step before keeps its slot, so that this one can
        be loaded while that step still multiplies.
        """
        held = self._held.get(rect)
        if held is not None:
            held.used = step
            return held.load, None
        if len(self._held) < self._slots:
            slot = len(self._held)
        else:
            oldest = min(self._held, key=lambda tile: self._held[tile].used)
            slot = self._held.pop(oldest).slot
        self._held[rect] = _Held(number, slot, step)
        return number, Load(self.operand, rect, slot, step)


class Increment:
    """Numbers units, steps and loads of one device, and keeps its slots.

    Parameters
    ----------
    plan
        Gives the slots, the paths, k, and the chunk of k of a step. Loads of A and B are as
        deep as the plan's own.
    """

    def __init__(self, plan: Plan) -> None:
        self._chunks = cut(plan.problem.k, plan.tile[2])
        self._c_slots = plan.c_slots.count
        self._caches = [
            _Cache(operand, plan.slots(operand).count) if plan.slots(operand).count else None
            for operand in ("A", "B")
        ]
        deep = {load.operand: load.rect for load in reversed(plan.loads)}
        self._depths = (
            deep["A"].cols if "A" in deep else plan.tile[2],
            deep["B"].rows if "B" in deep else plan.tile[2],
        )
        self._k = plan.problem.k
        self._units = self._steps = self._loads = 0

    def append(self, rect: Rect) -> Batch:
        """Return the unit that computes one C tile, in the slots as they are now."""
        first = self._steps
        steps: list[Step] = []
        loads: list[Load] = []
        for chunk in sweep(self._chunks, self._units, wriggled=True):
            blocks = (
                self._deep(Rect(rect.row, chunk.start, rect.rows, chunk.length), 0),
                self._deep(Rect(chunk.start, rect.col, chunk.length, rect.cols), 1),
            )
            reads = []
            for cache, block in zip(self._caches, blocks, strict=True):
                number = -1
                if cache is not None:
                    number, load = cache.read(block, self._steps, self._loads)
                    if load is not None:
                        loads.append(load)
                        self._loads += 1
                reads.append(number)
            steps.append(Step(self._steps, self._units, chunk.start, chunk.length, *reads))
            self._steps += 1
        slot = self._units % self._c_slots if self._c_slots else -1
        unit = WorkUnit(self._units, 0, rect, slot, first, self._steps - 1)
        self._units += 1
        return Batch(unit, tuple(steps), tuple(loads))

    def _deep(self, block: Rect, side: int) -> Rect:
        """Widen a step's block of A or B along k to the load that brings it."""
        depth = self._depths[side]
        start = block.col if side == 0 else block.row
        begin = start - start % depth
        length = min(depth, self._k - begin)
        if side == 0:
            return block._replace(col=begin, cols=length)
        return block._replace(row=begin, rows=length)
