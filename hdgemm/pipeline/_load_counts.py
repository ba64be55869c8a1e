"""How many tiles of A and of B a plan loads, and their elements: closed formulas over its units.

k is swept to and fro, and so are bars: a tile that was read `d` different tiles ago is found in one
of `s` slots that are used again by age (LRU) exactly where d < s. In such an order that loads the
fewest tiles (Belady), since the tile that was read longest ago is the one needed last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hdgemm.pipeline.tiles import ceil_div
from hdgemm.pipeline.walk import Cut

if TYPE_CHECKING:
    from hdgemm.pipeline.walk import Walk


class Loaded(NamedTuple):
    """Tiles that are loaded, and their elements."""

    tiles: int
    elements: int

    def plus(self, other: Loaded, times: int = 1) -> Loaded:
        """Add others, so many times."""
        return Loaded(self.tiles + times * other.tiles, self.elements + times * other.elements)


NOTHING: Final = Loaded(0, 0)


class Held(NamedTuple):
    """The extent along k of a load of A or of B, and the slots that hold them; 0 in place."""

    depth: int
    slots: int


def loaded_in(walk: Walk, held: Held, units: range, *, along: bool) -> Loaded:
    """Return what one operand's loads bring for a run of units that begins with empty slots.

    `along` says that the operand's tiles change along a bar; the other operand's change from bar to
    bar.
    """
    if not held.slots or not units:
        return NOTHING
    return _Counter(walk, held, along=along).loaded(units.start, units.stop)


class _Counter:
    """The terms of one call to `loaded_in`."""

    def __init__(self, walk: Walk, held: Held, *, along: bool) -> None:
        self._walk, self._along, self._slots = walk, along, held.slots
        self._deep = Cut(walk.chunks.extent, held.depth)

    def loaded(self, first: int, end: int) -> Loaded:
        """Return the loads of the units from `first` up to `end`."""
        whole = self._walk.whole
        found = self._whole(first, min(end, whole)) if first < whole else NOTHING
        for number in range(max(first, whole), end):  # parts of the last tile
            found = found.plus(self._part(number, fresh=number == first))
        return found

    def _part(self, number: int, *, fresh: bool) -> Loaded:
        """Return what a part of the last tile loads behind another part, or as the first unit."""
        walk = self._walk
        bar, place = divmod(walk.whole - 1, walk.along.count)
        extent = walk.window(bar, place, place + 1) if self._along else walk.across.span(bar).length
        found = Loaded(self._deep.count, extent * self._deep.extent)
        return found if fresh else found.plus(self._held(number, self._slots, extent), -1)

    def _held(self, number: int, tiles: int, extent: int) -> Loaded:
        """Return the first tiles of a unit's sweep, as many as are held."""
        count = max(0, min(tiles, self._deep.count))
        if self._walk.backward(number):
            deep = self._deep.length(self._deep.count - count, self._deep.count)
        else:
            deep = self._deep.length(0, count)
        return Loaded(count, extent * deep)

    def _whole(self, first: int, end: int) -> Loaded:
        """Sum over bars; all but the first two and the last two repeat with period 2."""
        per_bar = self._walk.along.count
        low, high = first // per_bar, (end - 1) // per_bar
        inner = range(low + 2, high - 1)
        found = NOTHING
        for bar in (*range(low, min(low + 2, high + 1)), *range(max(low + 2, high - 1), high + 1)):
            found = found.plus(self._bar(bar, first, end))
        for bar in inner[:2]:
            found = found.plus(self._bar(bar, first, end), len(range(bar, inner.stop, 2)))
        return found

    def _bar(self, bar: int, first: int, end: int) -> Loaded:
        """Return what one bar's units from `first` up to `end` load."""
        walk = self._walk
        start = bar * walk.along.count
        low, high = max(first - start, 0), min(end - start, walk.along.count)
        across, deep = walk.across.span(bar).length, self._deep
        if not walk.wriggled:
            return self._anew(low, high, across)
        if self._along:
            extent = walk.window(bar, low, high)
            held = self._turned(bar, min(high, start - first)) if start > first else NOTHING
        else:
            extent = (high - low) * across
            held = self._stays(range(start + low + 1, start + high), across)
        return Loaded((high - low) * deep.count, extent * deep.extent).plus(held, -1)

    def _turned(self, bar: int, places: int) -> Loaded:
        """Return the tiles that the first units of a bar find in slots since the bar before."""
        walk, start = self._walk, bar * self._walk.along.count
        panels, rest = divmod(self._slots, self._deep.count)
        panels = min(panels, places)
        held = Loaded(panels * self._deep.count, walk.window(bar, 0, panels) * self._deep.extent)
        if panels == places:
            return held
        extent = walk.window(bar, panels, panels + 1)
        return held.plus(self._held(start + panels, rest, extent))

    def _stays(self, units: range, extent: int) -> Loaded:
        """Return the tiles that units find in slots since the unit before in the same bar."""
        found = NOTHING
        for number in units[:2]:
            held = self._held(number, self._slots, extent)
            found = found.plus(held, len(range(number, units.stop, 2)))
        return found

    def _anew(self, low: int, high: int, across: int) -> Loaded:
        """Return the loads of the ladder's first strategies in one bar's units.

        Every work unit loads its panels; its blocks, one below the other, share them.
        """
        cut, blocks = self._walk.along, self._walk.blocks
        before, behind = low // blocks, ceil_div(high, blocks)
        panels = Cut(cut.extent, cut.size * blocks)
        extent = panels.length(before, behind) if self._along else (behind - before) * across
        return Loaded((behind - before) * self._deep.count, extent * self._deep.extent)
