"""Where an element of A or B lies in a slot: in panels of a kernel's width, or as stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdgemm.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from hdgemm.pipeline.devices.opencl.shape import Shape
    from hdgemm.pipeline.devices.protocol import Block, Tile
    from hdgemm.pipeline.plan import Operand


@dataclass(frozen=True, slots=True)
class Panels:
    """A block of A or B within its tile's panels; counts are elements.

    Parameters
    ----------
    width
        Neighbours along m (A) or n (B) in a panel.
    first, across, extent
        The block's first neighbour, how many it has, and how many the tile has.
    steps
        The block's extent along k.
    start
        From the buffer's start to the tile's panel 0 at the block's first step.
    stride
        From one panel to the next.
    """

    width: int
    first: int
    across: int
    extent: int
    steps: int
    start: int
    stride: int

    @property
    def count(self) -> int:
        """Panels that the block touches."""
        return -(-(self.first + self.across) // self.width) - self.first // self.width


def k_along_rows(tile: Tile) -> bool:
    """Say whether a tile's stored rows run along k."""
    return (tile.operand == "B") != tile.trans


def panel_width(shape: Shape, operand: Operand, dtype: np.dtype[Any]) -> int:
    """Return the width of an operand's panels."""
    return shape.block_m() if operand == "A" else shape.block_n(dtype)


def panels(block: Block, width: int) -> Panels:
    """Find a block of a packed tile."""
    tile = block.tile
    origin = element_origin(tile)
    if k_along_rows(tile):
        first, across, extent = block.col, block.cols, tile.cols
        k0, steps, depth = block.row, block.rows, tile.rows
    else:
        first, across, extent = block.row, block.rows, tile.rows
        k0, steps, depth = block.col, block.cols, tile.cols
    return Panels(width, first, across, extent, steps, origin + k0 * width, depth * width)


def aligned_start(part: Panels) -> int:
    """Return where the kernel finds the block's first panel.

    Raises
    ------
    DeviceError
        When the block does not start with a panel: its offset must be a multiple of the
        device's granularity.
    """
    whole, rest = divmod(part.first, part.width)
    if rest:
        raise DeviceError(
            f"a block starts at {part.first}, which is no multiple of the panels' width "
            f"{part.width}",
            offset=part.first, granularity=part.width,
        )  # fmt: skip
    return part.start + whole * part.stride


def element_origin(tile: Tile) -> int:
    """Return a tile's origin in elements."""
    whole, rest = divmod(tile.origin, tile.dtype.itemsize)
    if rest:
        raise DeviceError(
            f"a tile starts at byte {tile.origin}, between two elements of {tile.dtype}",
            origin=tile.origin,
        )
    return whole


def packed_elements(rows: int, cols: int, width: int) -> int:
    """Return the elements that a tile takes in panels, whichever way it is stored."""
    return max(-(-rows // width) * width * cols, -(-cols // width) * width * rows)


def pieces(rows: int, cols: int, most: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut a rectangle into (row, col, rows, cols) of at most `most` elements, whole rows first."""
    width = min(cols, most)
    height = max(1, most // width)
    for row in range(0, rows, height):
        for col in range(0, cols, width):
            yield row, col, min(height, rows - row), min(width, cols - col)
