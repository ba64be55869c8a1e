"""Which tile lies in which slot when: the fewest loads for an order known in advance.

With the future known, the best tile to give up is the one whose next use is farthest away
(Belady's rule); it stays the best when, as here, the tile in use just before must keep its slot
so that the next can be loaded while the device still reads it. "Load either A or B", the
paper's data reuse (HDGEMM, section 3.2), is the special case of two slots and an uncut k.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class Fetch(NamedTuple):
    """One tile brought into one slot, first for `step`."""

    tile: int
    slot: int
    step: int


class Residence(NamedTuple):
    """The fetches in order of need, and for each step the index of the fetch that it reads."""

    fetches: list[Fetch]
    reads: list[int]


def keep_nearest(tiles: Sequence[int], slots: int) -> Residence:
    """Assign slots so that the fewest tiles are fetched.

    Parameters
    ----------
    tiles
        For each step the number, from 0, of the tile that it reads.
    slots
        How many tiles fit. With two or more, a fetch never takes the slot that the step before
        reads; ties go to the slot left longest ago, which is free first.
    """
    starts, runs = _runs(tiles)
    keys = _keys(runs)
    held: dict[int, tuple[int, int, int]] = {}  # tile → its fetch, its slot, its last use's key
    heap: list[int] = []  # negative keys of uses, those overtaken by a later use included
    fetched: list[tuple[int, int]] = []  # the run and the slot of each fetch
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
    """Fetch a tile anew for each owner, slots in turn: the ladder's first two strategies.

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


def _runs(tiles: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the first step and the tile of each run of steps that read the same tile."""
    every = np.asarray(tiles, np.int64)
    first = np.flatnonzero(np.diff(every, prepend=-1))
    return first.tolist(), every[first].tolist()


def _keys(runs: Sequence[int]) -> list[int]:
    """Give each use a key, the largest to the tile to give up first.

    That is the one whose tile is used again last, or never; among these the earliest. The use
    itself can be read back from the key: it is the key's remainder by the number of uses, from
    the end.
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
    """Pop the held tile whose next use is farthest; `pinned` stays."""
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
