"""Random matrices of any size on disk, in bounded memory."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.matrices.npy import create_npy
from hdgemm.matrices.transfer import Bounce, aligned_bytes, disk_pool

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hdgemm.matrices.files import BlockFile

#: Elements of one generator. Another number would give other matrices for the same seed.
_BLOCK: Final = 1 << 18
#: Bytes that one thread makes and stores at a time.
_PIECE_BYTES: Final = 4 << 20


def random_matrix(
    path: str | os.PathLike[str], m: int, n: int, seed: int, dtype: DTypeLike = np.float64
) -> None:
    """Write an m×n matrix of independent standard normal numbers as a C-ordered .npy file.

    Real and imaginary parts of complex elements are standard normal each. The content depends on
    `seed` (zero or more), the shape and the dtype alone: blocks of 2**18 elements, in row-major
    order, come each from an SFC64 generator seeded with ``(seed, block)``. Each thread of the disk
    pool holds `_PIECE_BYTES`. A file of this name is replaced when the new one is complete.

    Raises `InputError` for a negative extent or seed, and as `create_npy`.
    """
    if min(m, n, seed) < 0:
        raise InputError(f"extents and seed must not be negative, got {m}×{n}, seed {seed}")
    name, item, _ = os.fsdecode(path).partition("::")
    place = Path(name)
    if item or place.suffix.lower() not in {"", ".npy"}:
        new = place.parent / f"{place.stem or 'A'}.npy"
        raise InputError(f"random matrices are .npy files: write {new}")
    with create_npy(place, (m, n), np.dtype(dtype).newbyteorder("=")) as draft:
        matrix = draft.matrix
        per_piece = _PIECE_BYTES // (_BLOCK * matrix.dtype.itemsize) * _BLOCK
        disk_pool().run(
            [
                partial(
                    _fill,
                    matrix.file,
                    matrix.offset,
                    matrix.dtype,
                    seed,
                    range(first, min(first + per_piece, m * n), _BLOCK),
                )
                for first in range(0, m * n, per_piece)
            ]
        )
        draft.publish()


def _fill(
    file: BlockFile, origin: int, dtype: np.dtype[Any], seed: int, blocks: range, _bounce: Bounce
) -> None:
    """Make the elements from ``blocks.start`` up to ``blocks.stop`` and store them."""
    numbers = aligned_bytes(len(blocks) * _BLOCK * dtype.itemsize).view(dtype)
    numbers = numbers[: blocks.stop - blocks.start]
    real = np.dtype(dtype.type(0).real)
    for first in blocks:
        block = numbers[first - blocks.start :][:_BLOCK]
        generator = np.random.Generator(np.random.SFC64((seed, first // _BLOCK)))
        generator.standard_normal(dtype=real.type, out=block.view(real))
    file.write(origin + blocks.start * dtype.itemsize, numbers.view(np.uint8))
