"""Slots and loads of the tiles of A and B: Belady's rule for a known order, LRU for a drawn one.

In a plan the order is known, and the fewest loads result from evicting the tile whose next use is
farthest away (Belady). That holds too when, as here, the tile of the step before keeps its slot,
so that the next tile can be loaded while the device reads it. "Load either A or B", the paper's
data reuse (HDGEMM, section 3.2), is the special case of two slots and an uncut k.

Where several devices draw C tiles from a pool, the order is not known, and the least recently
used tile is evicted. While a device walks its bar and sweeps k to and fro, that is the tile whose
next use is farthest away, so that no more is loaded than in a plan.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hdgemm.pipeline.dynamic_schedule import Batch
from hdgemm.pipeline.plan import Load, Rect, Step, WorkUnit
from hdgemm.planning.order import cut, sweep

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.plan import Plan


class Fetch(NamedTuple):
    """One load of a tile into a slot; `step` is its first reader."""

    tile: int
    slot: int
    step: int


class Residence(NamedTuple):
    """The loads in order of need, and for each step the index of the load that it reads."""

    fetches: list[Fetch]
    reads: list[int]


def keep_nearest(tiles: Sequence[int] | NDArray[np.int64], slots: int) -> Residence:
    """Assign slots by Belady's rule, so that the fewest tiles are loaded.

    `tiles` are the numbers, from 0, of the tile that each step reads. With two slots or more, a
    load never takes the slot that the step before reads; among equals it takes the least recently
    used slot, which is free first.
    """
    starts, runs = _runs(tiles)
    keys = _keys(runs)
    held: dict[int, tuple[int, int, int]] = {}  # tile → its load, its slot, its last use's key
    heap: list[int] = []  # negative keys of all uses, outdated ones included
    fetched: list[tuple[int, int]] = []  # the run and the slot of each load
    read = [0] * len(runs)
    # A tile that may not be evicted by the next run is not in the heap until then.
    late = 1 if slots > 1 else 0
    for run, tile in enumerate(runs):
        if tile in held:
            fetch, slot, _ = held[tile]
        else:
            slot = len(held)
            if slot == slots:
                slot = held.pop(_farthest(heap, held, runs))[1]
            fetch = len(fetched)
            fetched.append((run, slot))
        held[tile] = (fetch, slot, keys[run])
        if run >= late:
            heappush(heap, -keys[run - late])
        read[run] = fetch
    fetches = [Fetch(runs[run], slot, starts[run]) for run, slot in fetched]
    lengths = np.diff([*starts, len(tiles)])
    return Residence(fetches, np.repeat(read, lengths).tolist())


def fetch_always(tiles: Sequence[int], owners: Sequence[Hashable], slots: int) -> Residence:
    """Load a tile once for each owner, into slots in turn: the ladder's first two strategies.

    The owner of a step is the paper's work unit to which it belongs.
    """
    fetches: list[Fetch] = []
    reads: list[int] = []
    last: tuple[int, Hashable] | None = None
    for step, (tile, owner) in enumerate(zip(tiles, owners, strict=True)):
        if (tile, owner) != last:
            fetches.append(Fetch(tile, len(fetches) % slots, step))
            last = (tile, owner)
        reads.append(len(fetches) - 1)
    return Residence(fetches, reads)


def _runs(tiles: Sequence[int] | NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Return the first step and the tile of each run of steps that read the same tile."""
    every = np.asarray(tiles, np.int64)
    first = np.flatnonzero(np.diff(every, prepend=-1))
    return first.tolist(), every[first].tolist()


def _keys(runs: Sequence[int]) -> list[int]:
    """Return a key for each use; the tile with the largest key is evicted first.

    It is the tile that is used again last, or never; among equals the one used earliest. The
    remainder of a key by the number of uses gives the use itself, counted from the end.
    """
    count = len(runs)
    keys = [0] * count
    seen: dict[int, int] = {}
    for run in range(count - 1, -1, -1):
        tile = runs[run]
        keys[run] = seen.get(tile, count) * count + count - 1 - run
        seen[tile] = run
    return keys


def _farthest(heap: list[int], held: dict[int, tuple[int, int, int]], runs: Sequence[int]) -> int:
    """Return the held tile whose next use is farthest, by the keys in the heap."""
    while True:
        key = -heappop(heap)
        tile = runs[len(runs) - 1 - key % len(runs)]
        if tile in held and held[tile][2] == key:
            return tile


class _LeastRecentlyUsed:
    """The slots of A or B: an LRU cache of tiles; no slots for an operand that is used in place."""

    def __init__(self, operand: Literal["A", "B"], plan: Plan) -> None:
        self._operand, self._k = operand, plan.problem.k
        self._slots = plan.slots(operand).count
        first = next((load.rect for load in plan.loads if load.operand == operand), None)
        #: The extent of a load along k.
        self._depth = plan.tile[2]
        if first is not None:
            self._depth = first.cols if operand == "A" else first.rows
        #: Load and slot of each tile that is held, the least recently used first.
        self._held: dict[Rect, tuple[int, int]] = {}

    def read(self, c: Rect, k0: int, step: int, loaded: int, loads: list[Load]) -> int:
        """Return the number of the load that a step reads, -1 for an operand in place.

        A new load is appended to `loads`, which follow `loaded` earlier ones. With two slots or
        more the tile of the step before keeps its slot, so that this one can be loaded while that
        step multiplies.
        """
        if not self._slots:
            return -1
        start = k0 - k0 % self._depth
        length = min(self._depth, self._k - start)
        in_a = self._operand == "A"
        rect = Rect(c.row, start, c.rows, length) if in_a else Rect(start, c.col, length, c.cols)
        held = self._held.pop(rect, None)
        if held is None:
            slot = len(self._held)
            if slot == self._slots:
                _, slot = self._held.pop(next(iter(self._held)))
            held = loaded + len(loads), slot
            loads.append(Load(self._operand, rect, slot, step))
        self._held[rect] = held
        return held[0]


class DrawnUnits:
    """The units, steps and loads of one device that draws C tiles while it runs.

    Its plan gives the slots, the paths, k, the k-chunk of a step and the depth of loads.
    """

    def __init__(self, plan: Plan) -> None:
        self._chunks = cut(plan.problem.k, plan.tile[2])
        self._c_slots = plan.c_slots.count
        self._a, self._b = _LeastRecentlyUsed("A", plan), _LeastRecentlyUsed("B", plan)
        self._units = self._steps = self._loaded = 0

    def append(self, rect: Rect) -> Batch:
        """Return the unit that computes one C tile, given the tiles that the slots hold now."""
        steps: list[Step] = []
        loads: list[Load] = []
        for number, chunk in enumerate(
            sweep(self._chunks, self._units, wriggled=True), start=self._steps
        ):
            a, b = (
                cache.read(rect, chunk.start, number, self._loaded, loads)
                for cache in (self._a, self._b)
            )
            steps.append(Step(number, self._units, chunk.start, chunk.length, a, b))
        slot = self._units % self._c_slots if self._c_slots else -1
        unit = WorkUnit(self._units, 0, rect, slot, self._steps, self._steps + len(steps) - 1)
        self._units += 1
        self._steps += len(steps)
        self._loaded += len(loads)
        return Batch(unit, tuple(steps), tuple(loads))
