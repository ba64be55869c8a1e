"""References to stored matrices: small values from which a worker opens the same elements.

A reference to a matrix that is read has what the client sees there. Another machine may see
another file under the same name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from socket import gethostname
from typing import TYPE_CHECKING, Any, Final

from hdgemm.durable.fingerprint import differences, fingerprint, sampled
from hdgemm.errors import InputError
from hdgemm.matrices.base import Matrix, Operand
from hdgemm.matrices.filelocks import lock_for_writing
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile
from hdgemm.matrices.fingerprint import home_of
from hdgemm.matrices.layout import as_dtype
from hdgemm.matrices.location import Location, format_at
from hdgemm.matrices.objectstore import open_unpublished
from hdgemm.matrices.stores import open_location

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack
    from pathlib import Path

    import numpy as np

    from hdgemm.durable.fingerprint import Fingerprint

#: File systems keep times of modification to two seconds at least.
_TIME_UNIT: Final = 2_000_000_000


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

    @property
    def home(self) -> Path:
        """The file."""
        return self.path

    def open(self, *, writable: bool = False) -> Matrix:
        """Open the file."""
        file = BlockFile(self.path, writable=writable)
        try:
            return FileMatrix(file, self.shape, as_dtype(self.dtype), self.offset, self.pitch)
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

    @property
    def home(self) -> Path:
        """The file or folder; a name that does not exist for an object store."""
        return self.location.path

    def open(self, *, writable: bool = False) -> Matrix:
        """Open the location."""
        if self.unpublished:
            return open_unpublished(self.location, self.shape, self.unpublished)
        matrix, _ = open_location(self.location, writable=writable)
        return matrix.part(*self.origin, self.shape)


@dataclass(frozen=True, slots=True)
class Reference:
    """An operand that a worker can open: the stored matrix and its role in the product."""

    stored: FileReference | StoreReference
    trans: bool = False
    conj: bool = False
    #: What the client sees there, see `describe`; empty for C, which is proven by a mark.
    seen: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, operand: Operand, what: str) -> Reference:
        """Refer to an opened operand; `what` names it in messages.

        Raise `InputError` when it lies in this process's memory or was passed as an object of a
        library.
        """
        return cls(_stored(operand.matrix, what), operand.trans, operand.conj)

    @classmethod
    def to_input(cls, operand: Operand, what: str, c: Matrix | None) -> Reference:
        """Refer to an operand that is read, with its description; else as `of`.

        The time of modification of a file that also holds `c`, which is written, says nothing.
        """
        seen = describe(operand)
        if c is not None and _in_one_file(operand.matrix, c):
            del seen["mtime_ns"], seen["size"]
        return replace(cls.of(operand, what), seen=seen)

    def __str__(self) -> str:
        return str(self.stored)

    def check(self, operand: Operand) -> None:
        """Compare the operand that this machine has opened with what the client sees.

        Raises
        ------
        InputError
            When it is another one.
        """
        now = {name: value for name, value in describe(operand).items() if name in self.seen}
        if found := differs(self.seen, now):
            raise InputError(
                f"{self} is another matrix on {gethostname()} than for the client "
                f"({'; '.join(found)}): mount the same storage there under the same name; a copy "
                "needs the time of modification, too (cp -p)",
                path=str(self),
            )

    def identity(self) -> tuple[int, int] | None:
        """Return device and inode of the file or folder as this machine sees it now; None where
        there is none.
        """
        try:
            status = self.stored.home.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def open(self, stack: ExitStack, *, writable: bool = False) -> Operand:
        """Open the operand, as it was here; `stack` closes it."""
        matrix = self.stored.open(writable=writable)
        stack.callback(matrix.close)
        if writable and isinstance(matrix, FileMatrix):
            lock_for_writing(matrix)
        return Operand(matrix, self.trans, self.conj)


def describe(operand: Operand) -> Fingerprint:
    """Describe an operand by shape, dtype, samples of its content, and the size and time of
    modification of the file or files that it lies in.
    """
    if not isinstance(operand.matrix, FileMatrix):
        return fingerprint(operand)
    status = operand.matrix.file.status()  # of the file that was opened, whatever has its name now
    return sampled(operand) | {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def differs(seen: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how a description differs from what another machine has `seen`."""
    now = dict(now)
    if "mtime_ns" in now and abs(now["mtime_ns"] - seen.get("mtime_ns", 0)) < _TIME_UNIT:
        now["mtime_ns"] = seen["mtime_ns"]
    return [each.removeprefix("it has changed: ") for each in differences("it", seen, now)]


def _in_one_file(x: Matrix, y: Matrix) -> bool:
    mine, other = home_of(x), home_of(y)
    return mine is not None and other is not None and mine.samefile(other)


def _stored(matrix: Matrix, what: str) -> FileReference | StoreReference:
    if isinstance(matrix, FileMatrix):
        return FileReference(
            matrix.path, matrix.shape, _text_of(matrix.dtype), matrix.offset, matrix.pitch
        )
    location = matrix.opened_from[0] if matrix.opened_from is not None else None
    if location is None and matrix.home is not None:  # the draft of a Zarr array
        location = Location(matrix.home, format_at(matrix.home).name)
    if not isinstance(location, Location):
        raise InputError(
            f"{what} ({matrix.name}) lies in this process: workers on other machines cannot read "
            "it. Store it in a file system or object store that all workers reach, and pass its "
            "path or location"
        )
    return StoreReference(location, matrix.origin, matrix.shape)


def _text_of(dtype: np.dtype[Any]) -> str:
    """Return the text from which `as_dtype` makes a dtype; bfloat16 has no text of its own."""
    return dtype.name if dtype.kind == "V" else dtype.str
