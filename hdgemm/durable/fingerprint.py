"""What tells one matrix from another without reading all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.pipeline.plan import Rect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hdgemm.matrices.base import Matrix, Operand

Fingerprint = dict[str, Any]

#: Places that are sampled in a file, spread evenly, and the elements read at each.
_SAMPLES: Final = 64
_SAMPLE: Final = 512
#: Elements that are read at a time where everything is.
_BLOCK: Final = 1 << 20

_WORDS: Final[Mapping[str, str]] = {
    "shape": "its shape", "dtype": "its dtype", "trans": "its transposition",
    "conj": "its conjugation", "size": "its size in bytes", "mtime_ns": "when it was changed",
    "content": "its content",
}  # fmt: skip


def fingerprint(operand: Operand) -> Fingerprint:
    """Describe an operand: shape, dtype, and the size, mtime and sampled content of its file,
    or of all files of the folder that it is kept in.

    What is in no file has no mtime to tell of changes between the samples: it is read whole.
    """
    matrix = operand.matrix
    found: Fingerprint = {
        "shape": list(matrix.shape),
        "dtype": matrix.dtype.str,
        "trans": operand.trans,
        "conj": operand.conj,
    }
    home = home_of(matrix)
    if home is None:
        return found | {"content": _digest(matrix, _everything(*matrix.shape))}
    files = [home] if home.is_file() else sorted(path for path in home.rglob("*") if path.is_file())
    stats = [path.stat() for path in files]
    return found | {
        "size": sum(status.st_size for status in stats),
        "mtime_ns": max((status.st_mtime_ns for status in stats), default=0),
        "content": _digest(matrix, _spread(*matrix.shape)),
    }


def differences(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say in words what of a fingerprint has changed."""
    return [
        f"{what} has changed: {words}"
        + ("" if field == "content" else f" was {before.get(field)}, is {now.get(field)}")
        for field, words in _WORDS.items()
        if before.get(field) != now.get(field)
    ]


def file_of(matrix: Matrix) -> Path | None:
    """Return the one regular file that a matrix lies in; None where there is none."""
    path = getattr(matrix, "path", None)
    return Path(path) if path is not None and Path(path).is_file() else None


def home_of(matrix: Matrix) -> Path | None:
    """Return the file, or the folder of files, that has all of a matrix; None where none has."""
    home = file_of(matrix) or getattr(matrix, "home", None)
    return Path(home) if home is not None and Path(home).exists() else None


def _spread(rows: int, cols: int) -> list[Rect]:
    """Places all over a matrix, its first and its last elements among them."""
    if rows == 0 or cols == 0:
        return []
    width = min(cols, _SAMPLE)
    places = []
    for number in range(_SAMPLES):
        part = number / (_SAMPLES - 1)
        # Columns go round several times while rows go once, so that no band stays unseen.
        across = (number * 13 % _SAMPLES) / (_SAMPLES - 1)
        places.append(Rect(round(part * (rows - 1)), round(across * (cols - width)), 1, width))
    return [Rect(0, 0, 1, width), *places, Rect(rows - 1, cols - width, 1, width)]


def _everything(rows: int, cols: int) -> list[Rect]:
    height = max(1, _BLOCK // max(1, cols))
    return [Rect(row, 0, min(height, rows - row), cols) for row in range(0, rows, height)]


def _digest(matrix: Matrix, rects: Iterable[Rect]) -> str:
    digest = hashlib.sha256()
    for rect in rects:
        block = np.empty((rect.rows, rect.cols), matrix.dtype.newbyteorder("="))
        matrix.read(rect.row, rect.col, block)
        digest.update(block.view(np.uint8).data)
    return digest.hexdigest()
