"""Which tile lies in which slot when: the fewest loads for an order known in advance.

With the future known, the best tile to give up is the one whose next use is farthest away
(Belady's rule); it stays the best when, as here, the tile in use just before must keep its slot
so that the next can be loaded while the device still reads it. "Load either A or B", the
paper's data reuse (HDGEMM, section 3.2), is the special case of two slots and an uncut k.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

_NEVER: Final = 1 << 62


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
        For each step the number of the tile that it reads.
    slots
        How many tiles fit. With two or more, a fetch never takes the slot that the step before
        reads; ties go to the slot left longest ago, which is free first.
    """
    runs = _runs(tiles)
    following = _next_uses(runs)
    fetches: list[Fetch] = []
    reads = [0] * len(tiles)
    held: dict[int, tuple[int, int]] = {}  # tile → its fetch and its next use
    heap: list[tuple[int, int, int]] = []  # (-next use, last use, tile), stale entries included
    before = -1
    for run, (tile, step) in enumerate(runs):
        if tile in held:
            fetch = held[tile][0]
        else:
            if len(held) < slots:
                slot = len(held)
            else:
                slot = fetches[held.pop(_farthest(heap, held, before))[0]].slot
            fetch = len(fetches)
            fetches.append(Fetch(tile, slot, step))
        held[tile] = (fetch, following[run])
        heappush(heap, (-following[run], run, tile))
        until = runs[run + 1][1] if run + 1 < len(runs) else len(tiles)
        reads[step:until] = [fetch] * (until - step)
        before = tile if slots > 1 else -1
    return Residence(fetches, reads)


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


def _runs(tiles: Sequence[int]) -> list[tuple[int, int]]:
    """Return (tile, first step) of each run of steps that read the same tile."""
    runs = []
    last = None
    for step, tile in enumerate(tiles):
        if tile != last:
            runs.append((tile, step))
            last = tile
    return runs


def _next_uses(runs: Sequence[tuple[int, int]]) -> list[int]:
    following = [_NEVER] * len(runs)
    seen: dict[int, int] = {}
    for run in range(len(runs) - 1, -1, -1):
        tile = runs[run][0]
        following[run] = seen.get(tile, _NEVER)
        seen[tile] = run
    return following


def _farthest(
    heap: list[tuple[int, int, int]], held: dict[int, tuple[int, int]], pinned: int
) -> int:
    """Pop the held tile whose next use is farthest; `pinned` stays."""
    spared: tuple[int, int, int] | None = None
    while True:
        entry = heappop(heap)
        tile = entry[2]
        if tile not in held or held[tile][1] != -entry[0]:
            continue
        if tile == pinned:
            spared = entry
            continue
        if spared is not None:
            heappush(heap, spared)
        return tile
