"""Blocks of tiles as arguments of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.opencl.memory import DeviceBuffer, StagingBuffer
from hdgemm.pipeline.devices.opencl.panels import Panels, element_origin, kernel_width
from hdgemm.pipeline.devices.opencl.programs import Source

if TYPE_CHECKING:
    import pyopencl as cl

    from hdgemm.pipeline.devices.opencl.kernel_shapes import KernelShape
    from hdgemm.pipeline.devices.protocol import Block, Tile


def memory_of(tile: Tile) -> cl.Buffer:
    """Return the driver's memory of a tile."""
    if not isinstance(tile.buffer, DeviceBuffer):
        raise DeviceError(
            f"an OpenCL device multiplies tiles in its own slots, not in a {type(tile.buffer)}"
        )
    return tile.buffer.memory


def bias_of(tile: Tile) -> int:
    """Return the elements from the start of the driver's memory to the tile."""
    skip = tile.buffer.skip if isinstance(tile.buffer, StagingBuffer) else 0
    return int(skip) // tile.dtype.itemsize + element_origin(tile)


def offset_of(block: Block) -> int:
    """Return the elements from the start of a row-major tile to a block of it."""
    return block.row * block.tile.ld + block.col


def checked_k(a: Block, b: Block, c: Block) -> int:
    """Check that the blocks of a product fit together, and return its k."""
    m, k = (a.cols, a.rows) if a.tile.trans else (a.rows, a.cols)
    k_b, n = (b.cols, b.rows) if b.tile.trans else (b.rows, b.cols)
    dtypes = {block.tile.dtype for block in (a, b, c)}
    if (m, n) != (c.rows, c.cols) or k != k_b or len(dtypes) != 1:
        raise DeviceError(
            f"blocks of a product do not fit: A {m}×{k}, B {k_b}×{n}, C {c.rows}×{c.cols} "
            f"of {', '.join(sorted(dtype.name for dtype in dtypes))}",
            m=m, n=n, k=k,
        )  # fmt: skip
    return k


def source_of(block: Block, shape: KernelShape) -> Source:
    """Return A or B as the multiply kernel reads it."""
    tile = block.tile
    if shape.packed:
        panels = Panels.of(block, kernel_width(shape, tile.operand, tile.dtype))
        return Source(memory_of(tile), panels.aligned_start(), (panels.stride,))
    strides = (1, tile.ld) if tile.trans else (tile.ld, 1)
    return Source(memory_of(tile), element_origin(tile) + offset_of(block), strides)
