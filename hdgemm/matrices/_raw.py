"""Matrices in files without a header, in a layout that the location states."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices.draft import FileDraft, real_path, reserve
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile
from hdgemm.matrices.layout import as_dtype, check_read, check_written

if TYPE_CHECKING:
    from pathlib import Path

_LAYOUT: Final = re.compile(
    r"(?P<rows>\d+)[x×](?P<cols>\d+):(?P<dtype>[<>=]?\w+)(:(?P<order>[CF]))?(:(?P<offset>\d+))?"
)


@dataclass(frozen=True, slots=True)
class RawLayout:
    """The layout of a matrix in a file without a header: `dtype` as `numpy.dtype` reads it, byte
    order included; `order` ``"C"`` or ``"F"``, column by column; `offset` bytes before the first
    element, None where the file is the matrix alone.
    """

    shape: tuple[int, int]
    dtype: str = "float64"
    order: str = "C"
    offset: int | None = None


def parse_layout(text: str, location: str) -> RawLayout | None:
    """Read ``ROWSxCOLS:DTYPE[:F][:BYTES]``; None for any other text, `InputError` for an unknown
    dtype.
    """
    if (match := _LAYOUT.fullmatch(text)) is None:
        return None
    try:
        dtype = as_dtype(match["dtype"])
    except InputTypeError:
        raise
    except TypeError as error:
        raise InputError(f"{location} has an unknown dtype {match['dtype']!r}") from error
    check_read(dtype, location)
    shape = (int(match["rows"]), int(match["cols"]))
    offset = None if match["offset"] is None else int(match["offset"])
    return RawLayout(shape, match["dtype"], match["order"] or "C", offset)


def open_raw(path: Path, layout: RawLayout, *, writable: bool = False) -> tuple[FileMatrix, bool]:
    """Open an existing file; return it row-major, and whether it is the file's transpose.

    `InputError` for a file that is longer than a matrix without an offset.
    """
    check_read(as_dtype(layout.dtype), str(path))
    matrix = _matrix(BlockFile(path, writable=writable), layout)
    found = matrix.file.size()
    if layout.offset is None and found > max(1, matrix.end):
        matrix.close()
        rows, cols = layout.shape
        raise InputError(
            f"{path} has {found} bytes, a {rows}×{cols} {layout.dtype} matrix has {matrix.end}: "
            "correct the layout, or append :0 to read the beginning of the file alone",
            path=str(path),
            expected=matrix.end,
            found=found,
        )
    return matrix, layout.order == "F"


def _matrix(file: BlockFile, layout: RawLayout) -> FileMatrix:
    rows, cols = layout.shape[::-1] if layout.order == "F" else layout.shape
    return FileMatrix(file, (rows, cols), as_dtype(layout.dtype), layout.offset or 0)


def create_raw(
    path: Path, layout: RawLayout, part: Path | None = None, *, sparse: bool = False
) -> FileDraft:
    """Begin a new file of this layout, with its space reserved; bytes before the data are zero.

    `part` is the name it has until it is published, None for any; for `sparse` and errors see
    `reserve`.
    """
    dtype = check_written(layout.dtype, str(path))
    path = real_path(path)
    rows, cols = layout.shape
    nbytes = max(1, (layout.offset or 0) + rows * cols * dtype.itemsize)
    file = reserve(path, b"", nbytes, part, sparse=sparse)
    return FileDraft(path, file.path, _matrix(file, layout), trans=layout.order == "F")
