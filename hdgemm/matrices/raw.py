"""Matrices in files without a header, whose layout the caller knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hdgemm.matrices.draft import Draft, reserve
from hdgemm.matrices.dtypes import check_dtype
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile

if TYPE_CHECKING:
    from pathlib import Path

    from hdgemm.matrices.location import RawLayout


def open_raw(path: Path, layout: RawLayout, *, writable: bool = False) -> tuple[FileMatrix, bool]:
    """Open an existing file; return it row-major, and whether it is the file's transpose.

    Raises
    ------
    InputError
        When it is missing or too short for the layout.
    """
    dtype = np.dtype(layout.dtype)
    check_dtype(dtype, str(path))
    flipped = layout.order == "F"
    rows, cols = layout.shape[::-1] if flipped else layout.shape
    file = BlockFile(path, writable=writable)
    try:
        return FileMatrix(file, (rows, cols), dtype, layout.offset), flipped
    except BaseException:
        file.close()
        raise


def create_raw(path: Path, layout: RawLayout, part: Path | None = None) -> Draft[FileMatrix]:
    """Begin a new file of this layout, with its space reserved; bytes before the data are zero.

    `part` is the name it has until it is published, None for any.

    Raises
    ------
    MatrixIOError
        When the disk is too full (`requested` and `available` in bytes) or refuses.
    """
    dtype = np.dtype(layout.dtype)
    check_dtype(dtype, str(path))
    path = path.resolve()
    rows, cols = layout.shape
    part = reserve(path, b"", max(1, layout.offset + rows * cols * dtype.itemsize), part)
    matrix, flipped = open_raw(part, layout, writable=True)
    return Draft(path, part, matrix, trans=flipped)
