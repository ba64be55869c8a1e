"""The order of C tiles and k-chunks: wriggled in all three dimensions (HDGEMM, section 3.2).

Bars are walked alternately down and up, and k is swept alternately forwards and backwards, so
that after every turn the slots hold the tiles that are needed next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from hdgemm.pipeline.plan import Rect

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A bar is a column of C tiles, walked along m, or a row of them, walked along n.
Bars = Literal["columns", "rows"]


class Span(NamedTuple):
    """Part of one dimension: its first index and its length."""

    start: int
    length: int


class CTile(NamedTuple):
    """One C tile and the number of its bar."""

    bar: int
    rect: Rect


def cut(extent: int, size: int) -> list[Span]:
    """Cut a dimension into pieces of `size`; the last is what remains."""
    return [Span(start, min(size, extent - start)) for start in range(0, extent, size)]


def walk(rows: Sequence[Span], cols: Sequence[Span], bars: Bars, *, wriggled: bool) -> list[CTile]:
    """List every tile once, bar by bar; every second bar backwards where `wriggled`."""
    outer, inner = (cols, rows) if bars == "columns" else (rows, cols)
    tiles = []
    for bar, across in enumerate(outer):
        along = reversed(inner) if wriggled and bar % 2 else inner
        for span in along:
            row, col = (span, across) if bars == "columns" else (across, span)
            tiles.append(CTile(bar, Rect(row.start, col.start, row.length, col.length)))
    return tiles


def taper(tiles: Sequence[CTile], halvings: int, quantum: int = 1) -> list[CTile]:
    """Halve the last tile several times, so that most of its store overlaps with multiplying.

    Each halving splits the rows that are left, in multiples of `quantum`.
    """
    head, (bar, rect) = list(tiles[:-1]), tiles[-1]
    for _ in range(halvings):
        upper = -(-rect.rows // (2 * quantum)) * quantum
        if upper >= rect.rows:
            break
        head.append(CTile(bar, Rect(rect.row, rect.col, upper, rect.cols)))
        rect = Rect(rect.row + upper, rect.col, rect.rows - upper, rect.cols)
    return [*head, CTile(bar, rect)]


def sweep(chunks: Sequence[Span], unit: int, *, wriggled: bool) -> Sequence[Span]:
    """Return the chunks of k in the order in which this unit takes them."""
    return chunks[::-1] if wriggled and unit % 2 else chunks
