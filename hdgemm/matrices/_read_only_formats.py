"""Formats that are read and not written: .npz, Parquet, Arrow, MATLAB; texts, which are refused."""

# ruff: noqa: ARG002  (a method has the parameters that every format has)

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from hdgemm.errors import InputError
from hdgemm.matrices._arrow_tables import open_table
from hdgemm.matrices._formats import Hdf5
from hdgemm.matrices._hdf5 import open_hdf5
from hdgemm.matrices._npz import open_npz
from hdgemm.matrices.location import Format, register

if TYPE_CHECKING:
    from pathlib import Path

    from hdgemm.matrices.base import Matrix
    from hdgemm.matrices.draft import Draft
    from hdgemm.matrices.location import Location, MatrixSpec


class ReadOnly(Format):
    """A format that hdgemm does not write."""

    def check_item(self, whole: str, path: Path, item: str) -> None:
        """Take the name of an array, and none."""

    def refuses_suffix(self, suffix: str) -> bool:
        """Refuse new matrices under its suffix."""
        return True

    def create(self, place: Location, spec: MatrixSpec) -> Draft[Any]:
        """Refuse."""
        raise _not_written(place)


class Npz(ReadOnly):
    """NumPy's archives, whose members are stored without compression."""

    name = "npz"
    suffixes = frozenset({".npz"})

    def open(self, place: Location, *, writable: bool = False) -> tuple[Matrix, bool]:
        """Open one member for reading."""
        if writable:
            raise _not_written(place)
        return open_npz(place.path, place.item)


class Parquet(ReadOnly):
    """Parquet files of numeric columns."""

    name = "parquet"
    suffixes = frozenset({".parquet"})
    magic = b"PAR1"

    def check_item(self, whole: str, path: Path, item: str) -> None:
        """Take no item."""
        Format.check_item(self, whole, path, item)

    def open(self, place: Location, *, writable: bool = False) -> tuple[Matrix, bool]:
        """Open the table for reading."""
        if writable:
            raise _not_written(place)
        return open_table(place.path, parquet=self.name == "parquet"), False


class Arrow(Parquet):
    """Arrow IPC files of numeric columns."""

    name = "arrow"
    suffixes = frozenset({".arrow", ".feather"})
    magic = b"ARROW1"


class Mat(Hdf5):
    """MATLAB's files of version 7.3: HDF5 files with the transpose of each matrix."""

    name = "mat"
    suffixes = frozenset({".mat"})
    magic = b""

    def check_item(self, whole: str, path: Path, item: str) -> None:
        """Take the name of a variable, and none."""

    def refuses_suffix(self, suffix: str) -> bool:
        """Refuse new matrices under its suffix."""
        return True

    def open(self, place: Location, *, writable: bool = False) -> tuple[Matrix, bool]:
        """Open one variable for reading."""
        if writable:
            raise _not_written(place)
        try:
            return open_hdf5(place.path, place.item), True
        except InputError as error:
            if "as HDF5" not in str(error):
                raise
            raise InputError(
                f"{place.path} is a MATLAB file of an older version: save it in MATLAB with "
                "save(FILE, 'A', '-v7.3')",
                path=str(place.path),
            ) from error

    def create(self, place: Location, spec: MatrixSpec) -> Draft[Any]:
        """Refuse."""
        raise _not_written(place)


class Text(ReadOnly):
    """Tables of text, which cannot be read by blocks."""

    name = "text"
    suffixes = frozenset({".csv", ".tsv"})

    def open(self, place: Location, *, writable: bool = False) -> NoReturn:
        """Refuse, with the lines that convert it."""
        path = place.path
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        skipped = ", skiprows=1" if _has_header(path, delimiter) else ""
        raise InputError(
            f"{path} is text, whose rows have no fixed places; convert it:\n"
            f"    rows = numpy.loadtxt({str(path)!r}, delimiter={delimiter!r}{skipped})\n"
            f"    numpy.save({str(path.with_suffix('.npy'))!r}, rows)",
            path=str(path),
        )


def _has_header(path: Path, delimiter: str) -> bool:
    """Say whether the first line of a text has names where numbers are to be."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            words = stream.readline(1 << 16).split(delimiter)
    except OSError as error:
        raise InputError(f"cannot open {path}: {error.strerror}", path=str(path)) from error
    try:
        return not [complex(word) for word in words]
    except ValueError:
        return True


def _not_written(place: Location) -> InputError:
    return InputError(
        f"{place} has a format that hdgemm reads and does not write: choose .npy, .h5, .zarr or raw"
    )


register(Npz())
register(Parquet())
register(Arrow())
register(Mat())
register(Text())
