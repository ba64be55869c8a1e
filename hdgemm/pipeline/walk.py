"""The order of C tiles and k-chunks in closed form: wriggled in all three dimensions.

Bars are walked alternately down and up, and k is swept alternately forwards and backwards, so
that after every turn the slots hold the tiles that are needed next (HDGEMM, section 3.2). Any work
unit, and the number of elements of any run of units, follow from the extents alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import overload

from hdgemm.pipeline.tiles import Bars, Rect, Span, WorkUnit, ceil_div

#: Runs of numbers: the first of each, and the one behind its last.
Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the C tiles of a plan follow one another, and what a load of A or of B brings.

    Parameters
    ----------
    a_depth, b_depth
        The extent along k of a load of A and of B: a multiple of the k-chunk, or all of k.
    bars
        Whether a bar is a column or a row of C tiles.
    halvings, quantum
        How often the last C tile is halved, in multiples of so many rows, so that most of its
        store overlaps with multiplying.
    blocks
        C tiles, one below the other, that share a load of A and of B: the blocks of the paper's
        work unit (HDGEMM, section 3.1).
    """

    a_depth: int
    b_depth: int
    bars: Bars = "columns"
    halvings: int = 0
    quantum: int = 1
    blocks: int = 1


class Cut:
    """One dimension cut into pieces of `size`; the last is what remains."""

    __slots__ = ("count", "extent", "size")

    def __init__(self, extent: int, size: int) -> None:
        self.extent, self.size = extent, size
        self.count = ceil_div(extent, size) if size > 0 else 0

    def span(self, place: int) -> Span:
        """Return one piece."""
        start = place * self.size
        return Span(start, min(self.size, self.extent - start))

    def length(self, first: int, end: int) -> int:
        """Return the length of the pieces from `first` up to `end`, which is excluded."""
        return min(end * self.size, self.extent) - first * self.size if end > first else 0


class Walk:
    """Every C tile once, bar by bar; with `wriggled`, every second bar and sweep backwards.

    Units are numbered from 0. The parts of the last C tile, which may be halved, follow the others.
    """

    def __init__(
        self,
        extents: tuple[int, int, int],
        tile: tuple[int, int, int],
        layout: Layout,
        *,
        wriggled: bool,
    ) -> None:
        rows, cols, self.chunks = map(Cut, extents, tile)
        self.by_columns, self.wriggled = layout.bars == "columns", wriggled
        #: The dimension that changes along a bar, and the one that changes from bar to bar.
        self.along, self.across = (rows, cols) if self.by_columns else (cols, rows)
        self.whole = rows.count * cols.count
        self._layout = layout
        self.blocks = layout.blocks

    @cached_property
    def parts(self) -> list[Rect]:
        """The rectangles into which the last C tile is cut."""
        if not self.whole:
            return []
        rect, quantum, found = self._tile(self.whole - 1), self._layout.quantum, []
        for _ in range(self._layout.halvings):
            upper = ceil_div(rect.rows, 2 * quantum) * quantum
            if upper >= rect.rows:
                break
            found.append(rect._replace(rows=upper))
            rect = Rect(rect.row + upper, rect.col, rect.rows - upper, rect.cols)
        return [*found, rect]

    @property
    def units(self) -> int:
        """The number of work units."""
        return self.whole + len(self.parts) - 1 if self.whole else 0

    def bar(self, number: int) -> int:
        """Return the bar of a unit."""
        return min(number, self.whole - 1) // self.along.count

    def rect(self, number: int) -> Rect:
        """Return the C tile of a unit."""
        last = self.whole - 1
        return self.parts[number - last] if number >= last else self._tile(number)

    def _tile(self, number: int) -> Rect:
        bar, place = divmod(number, self.along.count)
        if self.backward(bar):
            place = self.along.count - 1 - place
        along, across = self.along.span(place), self.across.span(bar)
        row, col = (along, across) if self.by_columns else (across, along)
        return Rect(row.start, col.start, row.length, col.length)

    def backward(self, number: int) -> bool:
        """Say whether a bar, or a unit's sweep over k, is taken backwards."""
        return self.wriggled and number % 2 == 1

    def sweep(self, number: int) -> Iterator[Span]:
        """Yield the chunks of k in the order in which a unit takes them."""
        places = range(self.chunks.count)
        return map(self.chunks.span, reversed(places) if self.backward(number) else places)

    def area(self, first: int, end: int) -> int:
        """Return the elements of C in the units from `first` up to `end`, which is excluded."""
        whole = self._whole_area(min(end, self.whole - 1)) - self._whole_area(
            min(first, self.whole - 1)
        )
        last = self.whole - 1
        parts = self.parts[max(0, first - last) : max(0, end - last)]
        return whole + sum(rect.area for rect in parts)

    def _whole_area(self, end: int) -> int:
        """Return the elements of the first units, of which none is a part of the last tile."""
        if end <= 0:
            return 0
        bar, places = divmod(end, self.along.count)
        done = self.across.length(0, bar) * self.along.extent
        return done + self.across.span(bar).length * self.window(bar, 0, places)

    def window(self, bar: int, first: int, end: int) -> int:
        """Return the extent along a bar of its units from `first` up to `end`, in its order."""
        if self.backward(bar):
            first, end = self.along.count - end, self.along.count - first
        return self.along.length(first, end)


class Units(Sequence[WorkUnit]):
    """The work units of a walk but those in the runs `skipped`, numbered from 0, each when needed.

    `runs` are the runs of the walk's own numbers, `length` counts the units, which may exceed what
    `len` can return; `slots` are C's.
    """

    def __init__(self, walk: Walk, skipped: Runs, slots: int) -> None:
        self.walk, self.slots = walk, slots
        self.runs = runs_between(skipped, walk.units)
        self.length = sum(end - first for first, end in self.runs)

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, number: int) -> WorkUnit: ...
    @overload
    def __getitem__(self, number: slice) -> list[WorkUnit]: ...
    def __getitem__(self, number: int | slice) -> WorkUnit | list[WorkUnit]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(self.length))]
        number += self.length if number < 0 else 0
        left = number
        for first, end in self.runs if number >= 0 else ():
            if left < end - first:
                return self._unit(number, first + left)
            left -= end - first
        raise IndexError(f"there are {self.length} work units")

    def __iter__(self) -> Iterator[WorkUnit]:
        return (unit for _, unit in self.numbered())

    def numbered(self) -> Iterator[tuple[int, WorkUnit]]:
        """Yield each unit with its number in the whole walk."""
        number = 0
        for first, end in self.runs:
            for whole in range(first, end):
                yield whole, self._unit(number, whole)
                number += 1

    def _unit(self, number: int, whole: int) -> WorkUnit:
        walk = self.walk
        first, slot = number * walk.chunks.count, number % self.slots if self.slots else -1
        last = first + walk.chunks.count - 1
        return WorkUnit(number, walk.bar(whole), walk.rect(whole), slot, first, last)


def runs_between(skipped: Runs, count: int) -> Runs:
    """Return the runs of the numbers below `count` that are in none of the skipped runs."""
    edges = ((0, 0), *skipped, (count, count))
    return tuple((left[1], right[0]) for left, right in pairwise(edges) if left[1] < right[0])


def runs_of(numbers: Iterable[int]) -> Runs:
    """Return sorted numbers as runs."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return tuple(found)
