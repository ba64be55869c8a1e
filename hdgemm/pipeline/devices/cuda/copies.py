"""A copy of a rectangle as the driver's copy calls: one where it can be, a row each where not."""

from __future__ import annotations

from typing import Final, NamedTuple

#: `cudaDevAttrMaxPitch` of every GPU so far, in bytes.
MAX_PITCH: Final = 2**31 - 1


class Rows(NamedTuple):
    """Rows of `width` bytes that begin `pitch` bytes apart, the first at `address`."""

    address: int
    pitch: int


class CopyCall(NamedTuple):
    """One call: `rows` rows of `width` bytes; a plain copy where `rows` is 1."""

    target: Rows
    source: Rows
    width: int
    rows: int


def copy_calls(target: Rows, source: Rows, width: int, rows: int) -> list[CopyCall]:
    """Cut a copy of `rows` rows of `width` bytes into the fewest driver calls.

    One plain copy where both sides are dense; one two-dimensional copy where both pitches are
    ones that the driver takes (at least the width, at most `MAX_PITCH`); else a plain copy for
    each row, which also serves rows stored upwards (negative pitch).
    """
    if rows == 0 or width == 0:
        return []
    if rows == 1 or target.pitch == source.pitch == width:
        return [CopyCall(target, source, width * rows, 1)]
    if all(width <= pitch <= MAX_PITCH for pitch in (target.pitch, source.pitch)):
        return [CopyCall(target, source, width, rows)]
    return [
        CopyCall(
            Rows(target.address + row * target.pitch, width),
            Rows(source.address + row * source.pitch, width),
            width,
            1,
        )
        for row in range(rows)
    ]
