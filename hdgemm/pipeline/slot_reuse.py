"""Which loads bring the tiles of A and B that steps read: generated step by step, in little memory.

The least recently used tile leaves its slot (LRU). While bars are walked and k is swept to and fro,
it is the tile whose next use is farthest away, so that nothing loads fewer tiles (Belady). "Load
either A or B", the paper's data reuse (HDGEMM, section 3.2), is the special case of two slots and
an uncut k. Devices that draw C tiles from a pool use their slots by the same rule. Without
overlapped loads every work unit loads its tiles anew: the ladder's first two strategies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

from hdgemm.pipeline._load_counts import Loaded, loaded_in
from hdgemm.pipeline.tiles import Load, Rect, Span, Step, WorkUnit

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from hdgemm.pipeline._load_counts import Held
    from hdgemm.pipeline.walk import Cut, Units


class PlannedStep(NamedTuple):
    """One step, its work unit, and the loads whose first reader it is.

    `gone` are earlier loads whose slots these take: no later step reads them.
    """

    step: Step
    unit: WorkUnit
    loads: tuple[Load, ...]
    gone: tuple[int, ...]


class _Read(NamedTuple):
    """The load that a step reads, the new one where it is new, and the one that lost its slot."""

    number: int
    new: tuple[Load, ...]
    gone: tuple[int, ...]


_RESIDENT = _Read(-1, (), ())


class _Tiles:
    """The slots of A or B: an LRU cache of tiles; no slots for an operand that is used in place."""

    def __init__(self, operand: Literal["A", "B"], k: int, held: Held) -> None:
        self._operand: Literal["A", "B"] = operand
        self._k, self._depth, self._slots = k, held.depth, held.slots
        #: Load and slot of each tile that is held, the least recently used first.
        self._held: dict[Hashable, tuple[int, int]] = {}

    def read(self, panel: Span, k0: int, owner: Hashable, number: int, step: int) -> _Read:
        """Return what a step reads, as load `number` where no slot holds it.

        With two slots or more the tile of the step before keeps its slot, so that this one can be
        loaded while that step multiplies.
        """
        if not self._slots:
            return _RESIDENT
        start = k0 - k0 % self._depth
        key = panel, start, owner
        held = self._held.pop(key, None)
        if held is not None:
            self._held[key] = held
            return _Read(held[0], (), ())
        gone: tuple[int, ...] = ()
        slot = len(self._held)
        if slot == self._slots:
            old, slot = self._held.pop(next(iter(self._held)))
            gone = (old,)
        self._held[key] = number, slot
        return _Read(number, (Load(self._operand, self._rect(panel, start), slot, step),), gone)

    def _rect(self, panel: Span, start: int) -> Rect:
        length = min(self._depth, self._k - start)
        if self._operand == "A":
            return Rect(panel.start, start, panel.length, length)
        return Rect(start, panel.start, length, panel.length)


class SlotReuse:
    """Makes the steps of work units, given the tiles that slots hold: of A and of B."""

    def __init__(self, k: int, a: Held, b: Held) -> None:
        self._a, self._b = _Tiles("A", k, a), _Tiles("B", k, b)
        self.steps = self._loads = 0

    def unit_steps(
        self, unit: WorkUnit, sweep: Iterable[Span], a: Span, b: Span, owner: Hashable = None
    ) -> Iterator[PlannedStep]:
        """Yield a unit's steps over the chunks of k.

        `a` and `b` are the rows of A's tiles and the columns of B's. A tile is found again only by
        the same `owner`.
        """
        for k0, kb in sweep:
            number, loads = self.steps, self._loads
            in_a = self._a.read(a, k0, owner, loads, number)
            in_b = self._b.read(b, k0, owner, loads + len(in_a.new), number)
            new = in_a.new + in_b.new
            self.steps, self._loads = number + 1, loads + len(new)
            step = Step(number, unit.number, k0, kb, in_a.number, in_b.number)
            yield PlannedStep(step, unit, new, in_a.gone + in_b.gone)


@dataclass(frozen=True)
class Course:
    """The work units of a plan, how A's rows and B's columns are cut, and what slots hold of them.

    Everything that a plan does follows from it, step by step or as sums in closed form.
    """

    units: Units
    rows: Cut
    cols: Cut
    a: Held
    b: Held

    def planned(self) -> Iterator[PlannedStep]:
        """Yield the steps in their order, with the loads that they need first."""
        walk, rows, cols = self.units.walk, self.rows, self.cols
        reuse = SlotReuse(walk.chunks.extent, self.a, self.b)
        for number, unit in self.units.numbered():
            a = rows.span(unit.rect.row // rows.size)
            b = cols.span(unit.rect.col // cols.size)
            owner = None if walk.wriggled else (a.start, b.start)
            yield from reuse.unit_steps(unit, walk.sweep(number), a, b, owner)

    def steps(self) -> Iterator[Step]:
        """Yield the steps alone."""
        return (planned.step for planned in self.planned())

    def loads(self) -> Iterator[Load]:
        """Yield the loads alone, in the order of their first readers."""
        return chain.from_iterable(planned.loads for planned in self.planned())

    @cached_property
    def loaded(self) -> dict[Literal["A", "B"], Loaded]:
        """How many tiles of A and of B are loaded, and their elements.

        In closed form where the units follow one another; where an earlier run has left gaps
        between them, the loads are generated and counted.
        """
        return {"A": self._loaded("A"), "B": self._loaded("B")}

    def _loaded(self, operand: Literal["A", "B"]) -> Loaded:
        if len(self.units.runs) > 1:
            areas = [load.rect.area for load in self.loads() if load.operand == operand]
            return Loaded(len(areas), sum(areas))
        walk, held = self.units.walk, self.a if operand == "A" else self.b
        run = range(*self.units.runs[0]) if self.units.runs else range(0)
        return loaded_in(walk, held, run, along=walk.by_columns == (operand == "A"))


class Batch(NamedTuple):
    """The next work unit with its steps; their numbers continue from the batches before."""

    unit: WorkUnit
    planned: tuple[PlannedStep, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its steps."""
        return tuple(planned.step for planned in self.planned)

    @property
    def loads(self) -> tuple[Load, ...]:
        """The loads whose first readers these steps are."""
        return tuple(load for planned in self.planned for load in planned.loads)


class DrawnUnits:
    """The units, steps and loads of one device that draws C tiles while it runs.

    The course of its plan gives k, the k-chunk of a step, and depth and slots of loads.
    """

    def __init__(self, course: Course) -> None:
        self._chunks = course.units.walk.chunks
        self._c_slots = course.units.slots
        self._reuse = SlotReuse(self._chunks.extent, course.a, course.b)
        self._units = 0

    def append(self, rect: Rect) -> Batch:
        """Return the unit that computes one C tile, given the tiles that the slots hold now."""
        chunks, first, number = self._chunks, self._reuse.steps, self._units
        places = range(chunks.count)
        sweep = map(chunks.span, reversed(places) if number % 2 else places)
        slot = number % self._c_slots if self._c_slots else -1
        unit = WorkUnit(number, 0, rect, slot, first, first + chunks.count - 1)
        a, b = Span(rect.row, rect.rows), Span(rect.col, rect.cols)
        self._units += 1
        return Batch(unit, tuple(self._reuse.unit_steps(unit, sweep, a, b)))
