"""References to stored matrices: small values from which a worker opens the same elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hdgemm.errors import InputError
from hdgemm.matrices.base import Matrix, Operand
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile
from hdgemm.matrices.location import Location
from hdgemm.matrices.stores import create_matrix, open_location

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileReference:
    """A row-major matrix at fixed places of a file; see `FileMatrix`."""

    path: Path
    shape: tuple[int, int]
    dtype: str
    offset: int
    pitch: int

    def __str__(self) -> str:
        return str(self.path)

    def open(self, *, writable: bool = False) -> Matrix:
        """Open the file."""
        file = BlockFile(self.path, writable=writable)
        try:
            return FileMatrix(file, self.shape, np.dtype(self.dtype), self.offset, self.pitch)
        except InputError:
            file.close()
            raise


@dataclass(frozen=True, slots=True)
class StoreReference:
    """A rectangle of a matrix at a location, in stored rows and columns.

    `unpublished` is the dtype of an array in an object store whose metadata is not written yet;
    ``""`` for a matrix that readers find.
    """

    location: Location
    origin: tuple[int, int]
    shape: tuple[int, int]
    unpublished: str = ""

    def __str__(self) -> str:
        return str(self.location)

    def open(self, *, writable: bool = False) -> Matrix:
        """Open the location."""
        if self.unpublished:
            matrix: Matrix = create_matrix(self.location, self.shape, self.unpublished).matrix
            return matrix
        matrix, _ = open_location(self.location, writable=writable)
        return matrix.part(*self.origin, self.shape)


@dataclass(frozen=True, slots=True)
class Reference:
    """An operand that a worker can open: the stored matrix and its role in the product."""

    stored: FileReference | StoreReference
    trans: bool = False
    conj: bool = False

    @classmethod
    def of(cls, operand: Operand, what: str) -> Reference:
        """Refer to an opened operand; `what` names it in messages.

        Raise `InputError` when it lies in this process's memory or was passed as an object of a
        library.
        """
        return cls(_stored(operand.matrix, what), operand.trans, operand.conj)

    def __str__(self) -> str:
        return str(self.stored)

    def open(self, stack: ExitStack, *, writable: bool = False) -> Operand:
        """Open the operand, as it was here; `stack` closes it."""
        matrix = self.stored.open(writable=writable)
        stack.callback(matrix.close)
        return Operand(matrix, self.trans, self.conj)


def _stored(matrix: Matrix, what: str) -> FileReference | StoreReference:
    if isinstance(matrix, FileMatrix):
        return FileReference(
            matrix.path, matrix.shape, matrix.dtype.str, matrix.offset, matrix.pitch
        )
    location = matrix.opened_from[0] if matrix.opened_from is not None else None
    if location is None and matrix.home is not None:  # the draft of a Zarr array
        location = Location(matrix.home, "zarr")
    if not isinstance(location, Location):
        raise InputError(
            f"{what} ({matrix.name}) lies in this process: workers on other machines cannot read "
            "it. Store it in a file system or object store that all workers reach, and pass its "
            "path or location"
        )
    return StoreReference(location, matrix.origin, matrix.shape)
