"""Members of .npz archives that are stored without compression, read at their file offsets."""

from __future__ import annotations

import struct
import zipfile
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile, check_regular
from hdgemm.matrices.npy import NpyHeader, parse_stream

if TYPE_CHECKING:
    from pathlib import Path

#: Bytes of a member's local header before its name, and where the lengths of name and extra are.
_LOCAL: Final = 30
_LENGTHS: Final = slice(26, 30)


def open_npz(path: Path, item: str) -> tuple[FileMatrix, bool]:
    """Open one array of an archive; return it row-major, and whether it is the file's transpose.

    `item` is its name, ``""`` where the archive has only one array.

    Raises
    ------
    InputError
        When there is no such array, it is compressed, or the archive is damaged.
    """
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            info = _member(archive, path, item)
            with archive.open(info) as stream:
                header = parse_stream(path, stream)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {path} as .npz: {error}", path=str(path)) from error
    return _opened(path, info, header)


def _member(archive: zipfile.ZipFile, path: Path, item: str) -> zipfile.ZipInfo:
    arrays = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    names = ", ".join(sorted(arrays)) or "none"
    if not item and len(arrays) != 1:
        raise InputError(f"{path} has several arrays ({names}): name one, like '{path}::NAME'")
    info = arrays.get(item) if item else next(iter(arrays.values()))
    if info is None:
        raise InputError(f"{path} has no array {item!r}; there are: {names}", path=str(path))
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise InputError(
            f"{path}::{item} is compressed and cannot be read by parts: save it with numpy.savez, "
            "or as .npy",
            path=str(path),
        )
    return info


def _opened(path: Path, info: zipfile.ZipInfo, header: NpyHeader) -> tuple[FileMatrix, bool]:
    with path.open("rb") as stream:
        stream.seek(info.header_offset)
        local = stream.read(_LOCAL)
    if len(local) < _LOCAL:
        raise InputError(f"{path} is truncated", path=str(path))
    offset = info.header_offset + _LOCAL + sum(struct.unpack("<HH", local[_LENGTHS]))
    if len(header.shape) not in (1, 2):
        raise InputError(f"{path} must hold a matrix (2-D) or a vector, it has {header.shape}")
    rows, cols = header.shape if len(header.shape) == 2 else (*header.shape, 1)
    flipped = header.fortran or len(header.shape) == 1
    shape = (cols, rows) if flipped else (rows, cols)
    if header.offset + rows * cols * header.dtype.itemsize > info.file_size:
        raise InputError(
            f"{path} is truncated: {info.filename} has {info.file_size} bytes", path=str(path)
        )
    file = BlockFile(path, writable=False)
    return FileMatrix(file, shape, header.dtype, offset + header.offset), flipped
