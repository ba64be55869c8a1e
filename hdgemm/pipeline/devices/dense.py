"""Place of a block in a tile that is kept dense and row-major."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Block


def first_byte(block: Block) -> int:
    """Return the offset of the block's first element in the tile's buffer."""
    tile = block.tile
    return tile.origin + (block.row * tile.ld + block.col) * tile.dtype.itemsize


def view(block: Block) -> NDArray[Any]:
    """Return a block of a tile in a `HostBuffer` as an array."""
    tile = block.tile
    return np.ndarray(
        (block.rows, block.cols),
        tile.dtype,
        tile.buffer.array,
        first_byte(block),
        (tile.ld * tile.dtype.itemsize, tile.dtype.itemsize),
    )
