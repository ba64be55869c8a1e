"""Regions of C: the rest of a region, the bars of a fixed split, the map of stored parts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from hdgemm.errors import InputError
from hdgemm.pipeline.tiles import Rect
from hdgemm.progress import TileGrid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def remainder(rect: Rect, taken: Sequence[Rect]) -> list[Rect]:
    """Return disjoint rectangles that make up `rect` without those taken."""
    left = [rect] if rect.area else []
    for hole in taken:
        left = [part for whole in left for part in _without(whole, hole)]
    return left


def _without(rect: Rect, hole: Rect) -> list[Rect]:
    top, bottom = max(rect.row, hole.row), min(rect.row + rect.rows, hole.row + hole.rows)
    first, last = max(rect.col, hole.col), min(rect.col + rect.cols, hole.col + hole.cols)
    if top >= bottom or first >= last:
        return [rect]
    middle = rect._replace(row=top, rows=bottom - top)
    parts = (
        rect._replace(rows=top - rect.row),
        middle._replace(cols=first - rect.col),
        middle._replace(col=last, cols=rect.col + rect.cols - last),
        rect._replace(row=bottom, rows=rect.row + rect.rows - bottom),
    )
    return [part for part in parts if part.area]


def split(
    rect: Rect, axis: Literal["row", "col"], extent: int, *, first: bool
) -> tuple[Rect, Rect]:
    """Return so many rows or columns from the beginning or the end of a rectangle, and the rest."""
    extents = f"{axis}s"
    start, rest = getattr(rect, axis), getattr(rect, extents) - extent
    return (
        rect._replace(**{axis: start if first else start + rest, extents: extent}),
        rect._replace(**{axis: start + extent if first else start, extents: rest}),
    )


def fixed_regions(
    m: int, n: int, split: Mapping[str, float] | None, names: Sequence[str]
) -> dict[str, Rect] | None:
    """Cut C into bars of whole rows by the caller's shares; None leaves the split to the pool.

    Devices that `split` does not name share what is left equally. `InputError` for a name that is
    not among the devices, and for shares that do not add up.
    """
    if split is None:
        return None
    unknown = [name for name in split if name not in names]
    if unknown:
        raise InputError(f"split names {', '.join(unknown)}; the devices are {', '.join(names)}")
    given = sum(split.values())
    rest = [name for name in names if name not in split]
    if (
        not math.isfinite(given)
        or min(split.values(), default=0.0) < 0
        or given > 1 + 1e-9
        or (not rest and given < 1 - 1e-9)
    ):
        raise InputError(f"the shares of a split must add up to 1, got {dict(split)}")
    shares = {name: split.get(name, (1 - given) / max(1, len(rest))) for name in names}
    regions, row, total = {}, 0, 0.0
    for name in names:
        total += shares[name]
        last = m if name == names[-1] else min(m, round(total * m))
        regions[name] = Rect(row, 0, last - row, n)
        row = last
    return regions


def joined_remainder(whole: Rect, done: Sequence[Rect]) -> list[Rect]:
    """Return the rest of a rectangle; parts that lie below each other are joined."""
    merged: list[Rect] = []
    for rect in sorted(remainder(whole, done), key=lambda r: (r.col, r.cols, r.row)):
        last = merged[-1] if merged else None
        if last and last[1::2] == rect[1::2] and last.row + last.rows == rect.row:
            merged[-1] = last._replace(rows=last.rows + rect.rows)
        else:
            merged.append(rect)
    return merged


class Cells:
    """The cells of a `TileGrid` of an m×n matrix: at most `most` rows and columns."""

    def __init__(self, m: int, n: int, most: tuple[int, int] = (24, 24)) -> None:
        self._extents = m, n
        self._rows = [bytearray(b"." * min(n, most[1])) for _ in range(min(m, most[0]))]

    def mark(self, device: int, part: Rect) -> None:
        """Mark the cells with their centre in a part that the device of this number has stored."""
        m, n = self._extents
        cols = _centres(part.col, part.cols, n, len(self._rows[0]) if m else 0)
        for row in _centres(part.row, part.rows, m, len(self._rows)):
            self._rows[row][cols.start : cols.stop] = bytes([ord("a") + device % 26]) * len(cols)

    def grid(self, devices: Iterable[str]) -> TileGrid:
        """Return the cells as they are now, with the names of the devices."""
        return TileGrid(tuple(devices), tuple(row.decode() for row in self._rows))


def _centres(first: int, extent: int, whole: int, count: int) -> range:
    """Return which of the `count` cells of one dimension have their centre in `extent` elements
    from `first` on.
    """
    return range(
        *(-(-(2 * edge * count - whole) // (2 * whole)) for edge in (first, first + extent))
    )
