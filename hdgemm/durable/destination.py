"""Where a durable run's C grows: a draft that outlives the process, or the existing C itself."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdgemm.durable.fingerprint import file_of
from hdgemm.durable.journal import sync_folder
from hdgemm.errors import InputError
from hdgemm.matrices.draft import Draft
from hdgemm.matrices.npy import create_npy, open_npy
from hdgemm.matrices.operands import Operand, open_operand

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


@dataclass(frozen=True)
class Destination:
    """C's place.

    Parameters
    ----------
    path
        The file that C has when it is finished.
    shape, dtype
        As C's reader will see it.
    in_place
        The opened C where it is written straight into; None where it is made aside.
    updates
        The old C is read where the new one is written, so that no tile can be computed twice.
    replaces
        The old C is the file that the new one will replace.
    """

    path: Path
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    in_place: Operand | None = None
    updates: bool = False
    replaces: bool = False

    @classmethod
    def aside(
        cls, path: Path, shape: tuple[int, int], dtype: np.dtype[Any], old: Operand | None
    ) -> Destination:
        """Take the name of a C that is made aside; `old` is the C that is read."""
        there = None if old is None else file_of(old.matrix)
        replaces = there is not None and path.exists() and path.samefile(there)
        return cls(path, shape, dtype, replaces=replaces)

    @classmethod
    def of_existing(cls, c: Operand, *, updates: bool) -> Destination:
        """Take an opened C.

        Raises
        ------
        InputError
            When it lies in no file: then nothing survives that could be resumed.
        """
        path = file_of(c.matrix)
        if path is None:
            raise InputError(
                "checkpoint needs a C on disk: give out as the path of a file, or as a memmap"
            )
        return cls(path, c.shape, c.matrix.dtype, c, updates)

    def target(self) -> dict[str, Any]:
        """Describe which elements of which file C is, in plain values."""
        found: dict[str, Any] = {
            "name": self.path.name, "shape": list(self.shape), "dtype": self.dtype.str,
            "updates": self.updates, "replaces": self.replaces,
        }  # fmt: skip
        if self.in_place is not None:
            matrix = self.in_place.matrix
            places = {name: getattr(matrix, name, 0) for name in ("offset", "pitch")}
            found |= {"in_place": True, "trans": self.in_place.trans, **places}
        return found

    def journal(self) -> Path:
        """Return the name of its journal beside it."""
        return self.path.with_name(f".{self.path.name}.hdgemm-journal")

    def part(self, journal: Path) -> Path:
        """Return the name of the draft that goes with a journal."""
        mark = zlib.crc32(journal.name.encode())
        return self.path.with_name(f".{self.path.name}.{mark:08x}.part")

    def create(self, journal: Path) -> Draft[Any]:
        """Begin C aside under a name that a later run will find, its space durably reserved."""
        draft: Draft[Any] = create_npy(self.path, self.shape, self.dtype)
        part = self.part(journal)
        draft.part.replace(part)
        draft.part = part
        draft.matrix.flush()
        sync_folder(part.parent)
        return draft

    def reopen(self, journal: Path) -> Draft[Any] | None:
        """Open the draft that an earlier run left; None when it is not there."""
        part = self.part(journal)
        if not part.exists():
            return None
        matrix, flipped = open_npy(part, writable=True)
        return Draft(self.path, part, matrix, trans=flipped)

    def finished(self) -> Operand | None:
        """Open C under its own name; None when it is not there."""
        return open_operand(self.path, what="c") if self.path.is_file() else None
