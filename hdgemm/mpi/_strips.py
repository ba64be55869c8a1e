"""Strips of a stored matrix, as ranks read and write it: few, large and mostly contiguous.

A rectangle of whole stored rows is one contiguous piece of a file. Blocks of NB columns would be
pieces of NB elements, which no disk reads at its speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Triangle: TypeAlias = Literal["lower", "upper"] | None

#: Bytes of a strip: two ranks read and deal 512 MB in 0.42 s, with 64 MiB in 0.54 s, since copies
#: find more of a strip in the caches, and less is read before the first one is dealt.
STRIP_BYTES: Final = 16 << 20


class Rectangle(NamedTuple):
    """A rectangle of a stored matrix, by stored rows and columns."""

    row: int
    col: int
    rows: int
    cols: int


class Strips(NamedTuple):
    """The strips of one stored matrix, dealt to ranks in turn.

    Parameters
    ----------
    shape
        Stored rows and columns.
    height, width
        Of a strip.
    triangle
        The triangle of the stored matrix that is covered; None for all of it.
    chunked
        Strips are whole chunks of the stored matrix.
    """

    shape: tuple[int, int]
    height: int
    width: int
    triangle: Triangle = None
    chunked: bool = False

    @classmethod
    def of(
        cls,
        shape: tuple[int, int],
        itemsize: int,
        ranks: int,
        *,
        chunk: tuple[int, int] | None = None,
        triangle: Triangle = None,
        whole: bool = False,
        nbytes: int | None = None,
    ) -> Strips:
        """Choose strips of at most `nbytes`, so that each rank has one where there are enough rows.

        A strip has at least one row, or one row of chunks, and is cut between columns only where
        that is larger; never with `whole`.
        """
        rows, cols = shape
        high, wide = chunk or (1, 1)
        elements = max(1, (nbytes or STRIP_BYTES) // itemsize)
        height = min(elements // max(1, cols), -(-rows // ranks))
        height = max(high, height // high * high)
        width = cols
        if height * cols > elements and not whole:
            width = max(wide, elements // height // wide * wide)
        extents = min(height, max(1, rows)), max(1, min(width, cols))
        return cls(shape, *extents, triangle, chunk is not None)

    def rectangles(self, spans: Sequence[tuple[int, int]] | None = None) -> Iterator[Rectangle]:
        """Yield the strips of these intervals of rows, or of all; of P ranks, rank r has strips
        r, r + P, r + 2P and so on.
        """
        rows, cols = self.shape
        for first, last in [(0, rows)] if spans is None else spans:
            for row in range(first, last, self.height):
                high = min(self.height, last - row)
                start, stop = 0, cols
                if self.triangle == "lower":
                    stop = min(cols, row + high)
                elif self.triangle == "upper":
                    start = min(row, cols)
                for col in range(start, stop, self.width):
                    yield Rectangle(row, col, high, min(self.width, stop - col))

    @property
    def elements(self) -> int:
        """Elements of the largest strip."""
        return self.height * self.width
