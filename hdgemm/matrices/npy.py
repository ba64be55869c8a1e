"""NumPy's .npy files: checked headers, and new files that appear when they are complete."""

from __future__ import annotations

import ast
import math
import os
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices.draft import FileDraft, real_path, reserve
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import PARSING, BlockFile, open_regular
from hdgemm.matrices.layout import as_dtype, check_read, check_written
from hdgemm.matrices.transfer import ALIGNMENT

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import DTypeLike

_MAGIC: Final = b"\x93NUMPY"
#: By format version: how the header's length is packed, and how its text is encoded.
_VERSIONS: Final = {1: ("<H", "latin1"), 2: ("<I", "latin1"), 3: ("<I", "utf8")}
#: `numpy.save` writes this for bfloat16, and for no dtype of its own.
_BFLOAT16: Final = "<V2"
#: Suffixes of files of raw elements, which may begin like any other file.
_RAW_SUFFIXES: Final = frozenset({".bin", ".raw", ".dat"})
#: No honest header of a matrix comes near this.
_LONGEST_HEADER: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """The fields of a header; `offset` is the first byte of the data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int


def read_header(path: Path, fd: int | None = None) -> NpyHeader:
    """Parse and check a file's header, or `InputError`; nothing of the file is executed or
    unpickled. `fd` is the descriptor of a file that is open already, and stays open.
    """
    try:
        opened = open_regular(path) if fd is None else fd
        with os.fdopen(opened, "rb", closefd=fd is None) as stream:
            start = stream.read(12)
            text, offset = _header_text(path, start, stream)
            found = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    header = _parse(path, text, offset)
    expected = offset + math.prod(header.shape) * header.dtype.itemsize
    if found < expected:
        raise InputError(
            f"{path} is truncated: its header promises {expected} bytes "
            f"({'×'.join(map(str, header.shape))} {header.dtype}), the file has {found}",
            path=str(path),
            expected=expected,
            found=found,
        )
    return header


def parse_stream(path: Path, stream: Any) -> NpyHeader:
    """Parse and check the header of an array within another file, or `InputError`."""
    text, offset = _header_text(path, stream.read(12), stream)
    return _parse(path, text, offset)


def _other_kind(path: Path, start: bytes) -> str:
    """Say what a file is that begins so, and what to do with it."""
    save = "and save it with numpy.save"
    if not start:
        return "it is empty"
    if start.startswith(b"PK\x03\x04"):
        return f"it is a ZIP archive, as torch.save and Excel write: load the matrix there, {save}"
    if start.startswith(b"\x80") and start[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}:
        return f"it is a pickle, which hdgemm never loads: load it where it was made, {save}"
    if re.fullmatch(rb"[\t\n\r -~]+", start) and path.suffix.lower() not in _RAW_SUFFIXES:
        return f"it is text: load it with numpy.loadtxt, {save}"
    raw = f"; of raw elements write {path.name}::ROWSxCOLS:DTYPE"
    return (
        f"it begins with {start[:6]!r}, not {_MAGIC!r}"
        f"{raw if path.suffix.lower() not in {'.npy', '.npz'} else ''}"
    )


def _header_text(path: Path, start: bytes, stream: Any) -> tuple[str, int]:
    if start[:6] != _MAGIC:
        raise InputError(f"{path} is not a .npy file: {_other_kind(path, start)}", path=str(path))
    version = start[6] if len(start) > 6 else 1
    if version not in _VERSIONS:
        raise InputError(f"{path} has .npy version {version}; versions 1 to 3 can be read")
    packing, encoding = _VERSIONS[version]
    begin = 8 + struct.calcsize(packing)
    if len(start) < begin:
        raise InputError(
            f"{path} is truncated: its header takes at least {begin} bytes, the file has"
            f" {len(start)}",
            path=str(path),
            expected=begin,
            found=len(start),
        )
    (length,) = struct.unpack(packing, start[8:begin])
    if length > _LONGEST_HEADER:
        raise InputError(f"{path} has a header of {length} bytes; {_LONGEST_HEADER} is the most")
    stream.seek(begin)
    raw = stream.read(length)
    if len(raw) < length:
        raise InputError(
            f"{path} is truncated within its header: {begin + len(raw)} of {begin + length} bytes",
            path=str(path),
            expected=begin + length,
            found=begin + len(raw),
        )
    try:
        return raw.decode(encoding), begin + length
    except UnicodeDecodeError as error:
        raise InputError(f"{path} has a header that is no text") from error


def _parse(path: Path, text: str, offset: int) -> NpyHeader:
    try:
        # Python 2 wrote its long integers with an L.
        with PARSING:
            fields = ast.literal_eval(re.sub(r"(\d)L\b", r"\1", text).strip())
        descr, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
        sound = (
            len(fields) == 3
            and type(fortran) is bool
            and type(shape) is tuple
            and {*map(type, shape)} <= {int}
            and min(shape, default=0) >= 0
        )
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise InputError(f"{path} has a .npy header that cannot be read: {text[:80]!r}") from error
    if not sound:
        raise InputError(f"{path} has a .npy header that makes no sense: {text[:80]!r}")
    return NpyHeader(shape, _dtype(path, descr), fortran, offset)


def _dtype(path: Path, descr: Any) -> np.dtype[Any]:
    if not isinstance(descr, str):
        raise InputTypeError(f"{path} holds records, not numbers: save one field of it by itself")
    if descr == _BFLOAT16:
        return as_dtype("bfloat16")
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{path} has an unknown dtype {descr!r}") from error
    if dtype.hasobject:
        raise InputTypeError(
            f"{path} holds pickled Python objects, which are never loaded: "
            "save it as an array of numbers",
            dtype=descr,
        )
    return check_read(dtype, str(path))


def open_npy(path: Path, *, writable: bool = False) -> tuple[FileMatrix, bool]:
    """Open a matrix of format version 1 to 3; return it row-major, and whether it is the file's
    transpose. A vector is a matrix of one column.
    """
    # One open file gives header and elements, though another one may get its name.
    fd = open_regular(path, os.O_RDWR if writable else os.O_RDONLY)
    try:
        header = read_header(path, fd)
    except BaseException:
        os.close(fd)
        raise
    file = BlockFile(path, writable=writable, fd=fd)
    if len(header.shape) not in (1, 2):
        file.close()
        raise InputError(
            f"{path} must hold a matrix (2-D) or a vector, it has shape {header.shape}"
        )
    flipped = header.fortran or len(header.shape) == 1
    rows, cols = header.shape if len(header.shape) == 2 else (*header.shape, 1)
    shape = (cols, rows) if flipped else (rows, cols)
    return FileMatrix(file, shape, header.dtype, header.offset), flipped


def create_npy(
    path: Path,
    shape: tuple[int, int],
    dtype: DTypeLike,
    order: str = "C",
    part: Path | None = None,
    *,
    sparse: bool = False,
) -> FileDraft:
    """Begin a new .npy file, with its space reserved, without a name or under the temporary name
    `part`.

    Its data starts at byte 4096, where direct I/O needs no detour; `numpy.load` reads it like any.
    `shape` is as `numpy.load` will report it. For `sparse` see `reserve`, whose errors it raises.
    """
    stored = check_written(dtype, str(path))
    header = npy_header(shape, stored, order)
    rows, cols = shape if order == "C" else shape[::-1]

    path = real_path(path)  # a link keeps its name, its target is replaced
    file = reserve(path, header, ALIGNMENT + rows * cols * stored.itemsize, part, sparse=sparse)
    matrix = FileMatrix(file, (rows, cols), stored, ALIGNMENT)
    return FileDraft(path, file.path, matrix, trans=order == "F")


def npy_header(shape: tuple[int, int], dtype: np.dtype[Any], order: str) -> bytes:
    """Return the header of a .npy file whose data starts at byte 4096."""
    text = repr({"descr": dtype.str, "fortran_order": order == "F", "shape": tuple(shape)})
    packed = _MAGIC + bytes((1, 0)) + struct.pack("<H", ALIGNMENT - 10)
    return packed + text.ljust(ALIGNMENT - 11).encode("latin1") + b"\n"
