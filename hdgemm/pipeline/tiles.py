"""Rectangles of A, B and C, and what a plan does with them: loads, work units and steps."""

from __future__ import annotations

from typing import Literal, NamedTuple

#: A bar is a column of C tiles, walked along m, or a row of them, walked along n.
Bars = Literal["columns", "rows"]


class Rect(NamedTuple):
    """A rectangle of A, B or C in op-space: its first row and column, and its extents."""

    row: int
    col: int
    rows: int
    cols: int

    @property
    def area(self) -> int:
        """Elements in it."""
        return self.rows * self.cols

    def covers(self, other: Rect) -> bool:
        """Say whether `other` lies wholly inside."""
        rows = self.row <= other.row and other.row + other.rows <= self.row + self.rows
        return rows and self.col <= other.col and other.col + other.cols <= self.col + self.cols


class Span(NamedTuple):
    """Part of one dimension: its first index and its length."""

    start: int
    length: int


class Load(NamedTuple):
    """One tile of A or B brought into one slot, for `step` (its first reader) and later ones."""

    operand: Literal["A", "B"]
    rect: Rect
    slot: int
    step: int


class WorkUnit(NamedTuple):
    """One tile of C with its whole sweep over k: steps `first` to `last`, both included."""

    number: int
    bar: int
    rect: Rect
    slot: int
    first: int
    last: int


class Step(NamedTuple):
    """C tile += A[:, k0:k0+kb] · B[k0:k0+kb, :]; `a`, `b` index loads, -1 for a resident one."""

    number: int
    unit: int
    k0: int
    kb: int
    a: int
    b: int


def ceil_div(value: int, divisor: int) -> int:
    """Return how many pieces of `divisor` cover `value`."""
    return -(-value // divisor)
