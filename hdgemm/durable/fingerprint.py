"""Fingerprints of operands that need not read all of them, and checksums of rectangles of C.

Checksums are of the bytes as they are stored, in the machine's byte order.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.matrices.fingerprint import file_state, home_of
from hdgemm.matrices.layout import rectangles
from hdgemm.matrices.location import Location
from hdgemm.matrices.objectstore import objects_state
from hdgemm.pipeline.tiles import Rect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix, Operand

Fingerprint = dict[str, Any]

#: Number of samples, spread evenly over a matrix, and the elements of each.
_SAMPLES: Final = 64
_SAMPLE: Final = 512
#: Bytes of a matrix that is read at once for all its samples, in less time than 66 requests take.
_WHOLE: Final = 1 << 20
#: Elements per read of a whole matrix.
_BLOCK: Final = 1 << 20
#: Bytes per read of a rectangle.
_RECT_BYTES: Final = 32 << 20
#: Elements at the start of a rectangle: a change of their checksum shows that it was written to.
SAMPLE: Final = 512

_WORDS: Final[Mapping[str, str]] = {
    "shape": "its shape",
    "dtype": "its dtype",
    "trans": "its transposition",
    "conj": "its conjugation",
    "size": "its size in bytes",
    "mtime_ns": "when it was changed",
    "content": "its content",
}


def fingerprint(operand: Operand) -> Fingerprint:
    """Describe an operand: shape, dtype, and the size, mtime and sampled content of its file,
    or of all files of the folder that it is kept in.

    An operand that is in no file is read whole: it has no mtime that would show other changes.
    """
    matrix = operand.matrix
    home = home_of(matrix)
    place = matrix.opened_from[0] if matrix.opened_from is not None else None
    if isinstance(place, Location) and place.url:
        size, changed = objects_state(place)
        return sampled(operand) | {"size": size, "mtime_ns": changed}
    if matrix.content is not None:
        place_in = f"from {matrix.origin} by {matrix.steps}"
        return _described(operand) | {"content": f"{matrix.content}, {place_in}"}
    if home is None:
        content = _digest(_blocks(matrix, rectangles(matrix.shape, _BLOCK)))
        return _described(operand) | {"content": content}
    state = file_state(home)
    return sampled(operand) | {"size": state.size, "mtime_ns": state.mtime_ns}


def sampled(operand: Operand) -> Fingerprint:
    """Describe an operand by shape, dtype and samples of its content, wherever it is kept."""
    return _described(operand) | {"content": _digest(_samples(operand.matrix))}


def _described(operand: Operand) -> Fingerprint:
    return {
        "shape": list(operand.matrix.shape),
        "dtype": operand.matrix.dtype.str,
        "trans": operand.trans,
        "conj": operand.conj,
    }


def differences(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the fields of a fingerprint that have changed."""
    found = []
    for field, words in _WORDS.items():
        then, is_now = before.get(field), now.get(field)
        if then == is_now:
            continue
        if field == "mtime_ns":
            then, is_now = _utc(then), _utc(is_now)
        values = "" if field == "content" else f" was {then}, is {is_now}"
        found.append(f"{what} has changed: {words}{values}")
    return found


def changed_fields(before: Mapping[str, Any], now: Mapping[str, Any], owner: str = "") -> list[str]:
    """Describe the values of a record that have changed, by name."""
    return [
        f"{owner}{name} was {before.get(name)}, is {now.get(name)}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]


def _utc(nanoseconds: Any) -> str:
    """Write a time of change to the microsecond; object stores have none, or a text."""
    if not isinstance(nanoseconds, int):
        return str(nanoseconds)
    try:
        return f"{datetime.fromtimestamp(nanoseconds / 1e9, UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
    except (OverflowError, OSError, ValueError):  # in a damaged record
        return f"{nanoseconds} ns"


def _spread(rows: int, cols: int) -> list[Rect]:
    """Return rectangles all over a matrix, its first and its last elements among them."""
    if rows == 0 or cols == 0:
        return []
    width = min(cols, _SAMPLE)
    places = []
    for number in range(_SAMPLES):
        part = number / (_SAMPLES - 1)
        # Columns cycle several times while rows advance once: every band is sampled.
        across = (number * 13 % _SAMPLES) / (_SAMPLES - 1)
        places.append(Rect(round(part * (rows - 1)), round(across * (cols - width)), 1, width))
    return [Rect(0, 0, 1, width), *places, Rect(rows - 1, cols - width, 1, width)]


def _samples(matrix: Matrix) -> Iterator[NDArray[Any]]:
    """Yield the elements of each sample; a small matrix is read once, as a whole."""
    places = _spread(*matrix.shape)
    if not places or math.prod(matrix.shape) * matrix.dtype.itemsize > _WHOLE:
        yield from _blocks(matrix, places)
        return
    [whole] = _blocks(matrix, [Rect(0, 0, *matrix.shape)])
    for row, col, _, width in places:
        yield whole[row : row + 1, col : col + width]


def _blocks(matrix: Matrix, places: Iterable[tuple[int, int, int, int]]) -> Iterator[NDArray[Any]]:
    """Read rectangles one after the other."""
    for row, col, rows, cols in places:
        block = np.empty((rows, cols), matrix.dtype.newbyteorder("="))
        matrix.read(row, col, block)
        yield block


def _digest(blocks: Iterable[NDArray[Any]]) -> str:
    """Return the SHA-256 of contiguous blocks."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block.view(np.uint8).data)
    return digest.hexdigest()


def as_stored(tile: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a tile in a store's dtype, contiguous; the tile itself where it is so already."""
    return np.ascontiguousarray(tile, dtype.newbyteorder("="))


def checksum(tile: NDArray[Any], start: int = 0) -> int:
    """Return the CRC-32 of a contiguous tile's bytes, going on from `start`."""
    return zlib.crc32(tile.reshape(-1).view(np.uint8).data, start)


def stored_checksum(matrix: Matrix, rect: Rect) -> int:
    """Read a rectangle and return the checksum that `checksum` gave for it, in bounded memory."""
    dtype = matrix.dtype.newbyteorder("=")
    total = 0
    for row, col, rows, cols in rectangles((rect.rows, rect.cols), _RECT_BYTES // dtype.itemsize):
        block = np.empty((rows, cols), dtype)
        matrix.read(rect.row + row, rect.col + col, block)
        total = checksum(block, total)
    return total


def checksum_of_start(matrix: Matrix, rect: Rect) -> int:
    """Read the first elements of a rectangle's first row and return their checksum."""
    row = np.empty((1, min(rect.cols, SAMPLE)), matrix.dtype.newbyteorder("="))
    matrix.read(rect.row, rect.col, row)
    return checksum(row)
