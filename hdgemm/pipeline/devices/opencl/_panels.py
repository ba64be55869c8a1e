"""Layout of tiles in slots: panels of the kernel's width, or row-major as stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.opencl._memory import DeviceBuffer, StagingBuffer
from hdgemm.pipeline.devices.opencl._programs import Rows, Source

if TYPE_CHECKING:
    import numpy as np

    from hdgemm.pipeline.devices.opencl.kernel_shapes import KernelShape
    from hdgemm.pipeline.devices.protocol import Block, Tile
    from hdgemm.pipeline.plan import Operand

#: Extent along k from which a thin tile has narrow panels.
_LONG: Final = 4096


@dataclass(frozen=True, slots=True)
class Panels:
    """A block of A or B within the panels of its tile; all counts are elements.

    A panel holds `width` neighbouring rows of A or columns of B; panels are `stride` apart. The
    block has `across` neighbours from `first` on, and `steps` along k; `start` is the offset in the
    buffer of the tile's panel 0 at the block's first k step.
    """

    width: int
    first: int
    across: int
    steps: int
    start: int
    stride: int

    @classmethod
    def of(cls, block: Block, width: int) -> Panels:
        """Locate a block of a packed tile."""
        tile, origin = block.tile, element_origin(block.tile)
        if rows_are_steps(tile):
            first, across = block.col, block.cols
            k0, steps, depth = block.row, block.rows, tile.rows
        else:
            first, across = block.row, block.rows
            k0, steps, depth = block.col, block.cols, tile.cols
        return cls(width, first, across, steps, origin + k0 * width, depth * width)

    @property
    def count(self) -> int:
        """Panels that the block touches."""
        return -(-(self.first + self.across) // self.width) - self.first // self.width

    def aligned_start(self) -> int:
        """Return the offset of the block's first panel, with which it must start."""
        panel, rest = divmod(self.first, self.width)
        if rest:
            raise DeviceError(
                f"a block starts at {self.first}, which is no multiple of the panels' width "
                f"{self.width}",
                offset=self.first,
                granularity=self.width,
            )
        return self.start + panel * self.stride


def rows_are_steps(tile: Tile) -> bool:
    """Return whether each stored row of a tile is one k step: of B, or of A transposed."""
    return (tile.operand == "B") != tile.trans


def panel_width(shape: KernelShape, tile: Tile) -> int:
    """Return the width of a tile's panels: the kernel's own, or less for a long, thin tile.

    Three rows in panels of eight would take almost three times their memory and traffic. Narrow
    panels need kernels of their own, so only long tiles on a CPU have them.
    """
    full = kernel_width(shape, tile.operand, tile.dtype)
    across, depth = (tile.cols, tile.rows) if rows_are_steps(tile) else (tile.rows, tile.cols)
    narrow = 1 << max(0, across - 1).bit_length()
    thin = shape.threads == 1 and depth >= _LONG and 2 * narrow <= full
    return narrow if thin else full


def kernel_width(shape: KernelShape, operand: Operand, dtype: np.dtype[Any]) -> int:
    """Return the width of the panels that a kernel reads."""
    return shape.block_m() if operand == "A" else shape.block_n(dtype)


def packed_elements(rows: int, cols: int, width: int) -> int:
    """Return the elements of a tile in panels, with either of its extents along k."""
    return max(-(-rows // width) * width * cols, -(-cols // width) * width * rows)


def element_origin(tile: Tile) -> int:
    """Return the offset of a tile's first element in its buffer, in elements."""
    origin, rest = divmod(tile.origin, tile.dtype.itemsize)
    if rest:
        raise DeviceError(
            f"a tile starts at byte {tile.origin}, between two elements of {tile.dtype}",
            origin=tile.origin,
        )
    return origin


def rows_of(block: Block) -> Rows:
    """Return the driver's memory of a tile, and where the rows of a block of it lie."""
    tile, buffer = block.tile, block.tile.buffer
    if not isinstance(buffer, DeviceBuffer):
        raise DeviceError(f"an OpenCL device uses tiles in its own slots, not in a {type(buffer)}")
    skip = buffer.skip // tile.dtype.itemsize if isinstance(buffer, StagingBuffer) else 0
    start = skip + element_origin(tile) + block.row * tile.ld + block.col
    return Rows(buffer.memory, start, tile.ld)


def source_of(block: Block, shape: KernelShape) -> Source:
    """Return A or B as the multiply kernel reads it."""
    tile, (memory, start, ld) = block.tile, rows_of(block)
    if shape.packed:
        panels = Panels.of(block, kernel_width(shape, tile.operand, tile.dtype))
        return Source(memory, panels.aligned_start(), (panels.stride,))
    return Source(memory, start, (1, ld) if tile.trans else (ld, 1))
