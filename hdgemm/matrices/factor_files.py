"""Files that a factorisation stores beside its matrix: names, and the matrix they belong to.

Beside ``LU.npy`` lie ``LU.piv.npy`` (LU) or ``LU.tau.npy`` (QR), and the description
``LU.factor.json``. A matrix without the suffix .npy keeps its whole name, and a hyphen follows:
``LU.bin-piv.npy`` for ``LU.bin``. So no two matrices share a file.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.errors import InputError
from hdgemm.matrices.files import PARSING, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import BinaryIO

#: The arrays that each kind of factorisation stores beside its matrix.
ARRAYS: Final[Mapping[str, tuple[str, ...]]] = {"lu": ("piv",), "qr": ("tau",), "cholesky": ()}
_NAMES: Final = frozenset(name for names in ARRAYS.values() for name in names)
_DESCRIPTION: Final = "factor.json"
#: Bytes of the longest description that is read.
_LONGEST: Final = 1 << 20
#: Bytes of an array that are read at once.
_PIECE: Final = 1 << 20


class FactorFiles(NamedTuple):
    """The files beside one matrix; their names begin with `prefix`."""

    folder: Path
    prefix: str

    @classmethod
    def of(cls, matrix: Path) -> FactorFiles:
        """Return the names that a factorisation gives to the files beside a matrix."""
        name = matrix.name
        return cls(matrix.parent, f"{name[:-4]}." if name.endswith(".npy") else f"{name}-")

    @classmethod
    def found(cls, matrix: Path) -> FactorFiles:
        """Return the names that exist: up to version 0.2, ``LU.piv.npy`` belonged to ``LU.bin``."""
        now, earlier = cls.of(matrix), cls(matrix.parent, f"{matrix.stem}.")
        return earlier if earlier.description.exists() and not now.description.exists() else now

    @property
    def description(self) -> Path:
        """The file that names the kind of the factorisation, the matrix and the arrays."""
        return self.folder / f"{self.prefix}{_DESCRIPTION}"

    def array(self, name: str) -> Path:
        """Return the file of an array, such as ``"piv"``."""
        return self.folder / f"{self.prefix}{name}.npy"

    def text(self) -> str:
        """Return the description; raises `InputError`, `OSError` or `ValueError`."""
        with os.fdopen(open_regular(self.description), "rb") as stream:
            return stream.read(_LONGEST).decode()

    @property
    def is_foreign(self) -> bool:
        """Whether a file with the description's name is there that no factorisation wrote."""
        try:
            record = json.loads(self.text())
        except (OSError, InputError):
            return False
        except (ValueError, RecursionError):
            return True
        return not (isinstance(record, dict) and record.get("kind") in list(ARRAYS))

    def stored_by(self, kind: str) -> list[Path]:
        """Return the files that a kind of factorisation stores; none for other results."""
        if kind not in ARRAYS:
            return []
        return [*map(self.array, ARRAYS[kind]), self.description]

    def described(self) -> list[Path]:
        """Return the description and the arrays that it describes; nothing without a description.

        An array with another checksum is left out: its name was given to another matrix.
        """
        try:
            record = json.loads(self.text())
            sums = {name: record["arrays"][name] for name in _NAMES & set(record["arrays"])}
        except (OSError, InputError, ValueError, KeyError, TypeError, RecursionError):
            return []
        arrays = [self.array(name) for name in sums if _checksum(self.array(name)) == sums[name]]
        return [*arrays, self.description]


def remove_described(matrix: Path, *, keep: frozenset[Path] = frozenset()) -> None:
    """Remove the files of an earlier factorisation beside a matrix that has taken its name."""
    for path in FactorFiles.of(matrix).described():
        if path not in keep:
            path.unlink(missing_ok=True)


def matrices_beside(path: Path, names: Iterable[str]) -> list[Path]:
    """Return the .npy files beside which an array of these names would have this file."""
    ends = (f".{name}.npy" for name in sorted(names))
    return [
        path.with_name(f"{path.name.removesuffix(end)}.npy")
        for end in ends
        if path.name.endswith(end)
    ]


def _checksum(path: Path) -> int | None:
    """Return the CRC-32 of a stored array's elements; None where there is no array."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            return _checksum_of(stream)
    except (OSError, InputError, ValueError):
        return None


def _checksum_of(stream: BinaryIO) -> int:
    np.lib.format.read_magic(stream)
    with PARSING:
        np.lib.format.read_array_header_1_0(stream)
    total = 0
    while piece := stream.read(_PIECE):
        total = zlib.crc32(piece, total)
    return total


def checksum(array: np.ndarray[Any, Any]) -> int:
    """Return the same for an array in memory."""
    return zlib.crc32(np.ascontiguousarray(array).tobytes())
