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

from dataclasses import dataclass
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

    Parameters
    ----------
    tiles
        For each step the number, from 0, of the tile that it reads.
    slots
        How many tiles fit. With two or more, a load never takes the slot that the step before
        reads; among equals it takes the least recently used slot, which is free first.
    """
    starts, runs = _runs(tiles)
    keys = _keys(runs)
    held: dict[int, tuple[int, int, int]] = {}  # tile → its load, its slot, its last use's key
    heap: list[int] = []  # negative keys of all uses, outdated ones included
    fetched: list[tuple[int, int]] = []  # the run and the slot of each load
    read = [0] * len(runs)
    before = -1
    for run, tile in enumerate(runs):
        if tile in held:
            fetch, slot, _ = held[tile]
        else:
            slot = len(held)
            if slot == slots:
                slot = held.pop(_farthest(heap, held, runs, before))[1]
            fetch = len(fetched)
            fetched.append((run, slot))
        held[tile] = (fetch, slot, keys[run])
        heappush(heap, -keys[run])
        read[run] = fetch
        before = tile if slots > 1 else -1
    fetches = [Fetch(runs[run], slot, starts[run]) for run, slot in fetched]
    lengths = np.diff([*starts, len(tiles)])
    return Residence(fetches, np.repeat(read, lengths).tolist())


def fetch_always(tiles: Sequence[int], owners: Sequence[Hashable], slots: int) -> Residence:
    """Load a tile once for each owner, into slots in turn: the ladder's first two strategies.

    Parameters
    ----------
    owners
        For each step the work unit of the paper to which it belongs.
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


def _farthest(
    heap: list[int], held: dict[int, tuple[int, int, int]], runs: Sequence[int], pinned: int
) -> int:
    """Return the held tile whose next use is farthest, `pinned` excepted."""
    count, spared = len(runs), 0
    while True:
        key = -heappop(heap)
        tile = runs[count - 1 - key % count]
        if tile not in held or held[tile][2] != key:
            continue
        if tile == pinned:
            spared = key
            continue
        if spared:
            heappush(heap, -spared)
        return tile


@dataclass(slots=True)
class _Held:
    """A tile in a slot: the number of its load, its slot, the step that used it last."""

    load: int
    slot: int
    used: int


class _LeastRecentlyUsed:
    """The slots of A or B: an LRU cache of tiles.

    Parameters
    ----------
    slots
        How many there are; 0 for an operand that is used in place.
    depth
        The extent of a load along k.
    """

    def __init__(self, operand: Literal["A", "B"], slots: int, depth: int) -> None:
        self.operand = operand
        self.slots = slots
        self.depth = depth
        self._held: dict[Rect, _Held] = {}

    def read(self, rect: Rect, step: int, number: int) -> tuple[int, Load | None]:
        """Return the number of the load that a step reads, and the load where it is a new one.

        A new load gets `number`. With two slots or more the tile of the step before keeps its
        slot, so that this one can be loaded while that step multiplies.
        """
        held = self._held.get(rect)
        if held is not None:
            held.used = step
            return held.load, None
        if len(self._held) < self.slots:
            slot = len(self._held)
        else:
            oldest = min(self._held, key=lambda tile: self._held[tile].used)
            slot = self._held.pop(oldest).slot
        self._held[rect] = _Held(number, slot, step)
        return number, Load(self.operand, rect, slot, step)


class DrawnUnits:
    """The units, steps and loads of one device that draws C tiles while it runs.

    Parameters
    ----------
    plan
        Gives the slots, the paths, k, the k-chunk of a step and the depth of loads.
    """

    def __init__(self, plan: Plan) -> None:
        self._k = plan.problem.k
        self._chunks = cut(self._k, plan.tile[2])
        self._c_slots = plan.c_slots.count
        loads = {load.operand: load.rect for load in reversed(plan.loads)}
        a_depth = loads["A"].cols if "A" in loads else plan.tile[2]
        b_depth = loads["B"].rows if "B" in loads else plan.tile[2]
        self._a = _LeastRecentlyUsed("A", plan.a_slots.count, a_depth)
        self._b = _LeastRecentlyUsed("B", plan.b_slots.count, b_depth)
        self._units = self._steps = 0
        self._loads: list[Load] = []
        self._loaded = 0

    def append(self, rect: Rect) -> Batch:
        """Return the unit that computes one C tile, given the tiles that the slots hold now."""
        first, self._loads = self._steps, []
        steps: list[Step] = []
        for chunk in sweep(self._chunks, self._units, wriggled=True):
            start, length = self._span(chunk.start, self._a.depth)
            a = self._read(self._a, Rect(rect.row, start, rect.rows, length))
            start, length = self._span(chunk.start, self._b.depth)
            b = self._read(self._b, Rect(start, rect.col, length, rect.cols))
            steps.append(Step(self._steps, self._units, chunk.start, chunk.length, a, b))
            self._steps += 1
        slot = self._units % self._c_slots if self._c_slots else -1
        unit = WorkUnit(self._units, 0, rect, slot, first, self._steps - 1)
        self._units += 1
        return Batch(unit, tuple(steps), tuple(self._loads))

    def _span(self, k0: int, depth: int) -> tuple[int, int]:
        """Return start and length along k of the load that contains index `k0`."""
        start = k0 - k0 % depth
        return start, min(depth, self._k - start)

    def _read(self, cache: _LeastRecentlyUsed, rect: Rect) -> int:
        """Return the number of the load that this step reads, -1 for an operand in place."""
        if not cache.slots:
            return -1
        number, load = cache.read(rect, self._steps, self._loaded)
        if load is not None:
            self._loads.append(load)
            self._loaded += 1
        return number
