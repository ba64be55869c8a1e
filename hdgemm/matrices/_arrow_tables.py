"""Tables of numeric columns as tall matrices: Parquet and Arrow IPC files by groups of rows."""

from __future__ import annotations

import os
import struct
import threading
from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from hdgemm.errors import DoesNotFitError, HdgemmError, InputError, InputTypeError, load_extra
from hdgemm.machine.limits import host_bytes
from hdgemm.matrices._rectangles import RectangleMatrix, check_unit
from hdgemm.matrices.files import check_regular
from hdgemm.matrices.layout import check_read
from hdgemm.options import Options
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

#: Bytes of the footer of a Parquet file, before its last four.
_TRAILER: Final = struct.Struct("<I4x")
#: Bytes of memory for a byte of it: 18 to 20 were measured with 10⁵ and 10⁶ row groups.
_DECODED: Final = 20


class _Groups(Protocol):
    """The groups of rows of a file."""

    @property
    def schema(self) -> Any:
        """Arrow's schema."""

    @property
    def lengths(self) -> Sequence[int]:
        """Rows of each group."""

    def read(self, group: int, names: list[str]) -> Any:
        """Return columns of one group as a table or a record batch."""

    def close(self) -> None:
        """Close the file."""


class _Parquet:
    """Row groups of a Parquet file."""

    def __init__(self, path: Path) -> None:
        parquet = load_extra("pyarrow.parquet", "Parquet files need pyarrow", "arrow")
        _check_footer(path)
        self._file = parquet.ParquetFile(path)
        self.schema = self._file.schema_arrow
        metadata = self._file.metadata
        self.lengths = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    def read(self, group: int, names: list[str]) -> Any:
        return self._file.read_row_group(group, columns=names, use_threads=False)

    def close(self) -> None:
        self._file.close()


def _check_footer(path: Path) -> None:
    """Raise `DoesNotFitError` where the footer, which describes each column of each row group, may
    take more than half of the default `host_memory`.
    """
    size = path.stat().st_size
    if size < _TRAILER.size:
        return  # no Parquet file, which pyarrow says
    with path.open("rb") as file:
        file.seek(-_TRAILER.size, os.SEEK_END)
        (nbytes,) = _TRAILER.unpack(file.read())
    need, allowed = _DECODED * nbytes, host_bytes(Options()) // 2
    if nbytes < size and need > allowed:  # a longer one is damaged
        raise DoesNotFitError(
            f"{path} describes its groups of rows in {format_size(nbytes)}, which may take "
            f"{format_size(need)} of memory; half of host_memory is {format_size(allowed)}: write "
            "it with larger groups (row_group_size of pyarrow.parquet.write_table)",
            requested=need,
            available=allowed,
            missing=need - allowed,
        )


class _Ipc:
    """Record batches of an Arrow IPC file, which is Feather's second version, too."""

    def __init__(self, path: Path) -> None:
        arrow = load_extra("pyarrow", "Arrow files need pyarrow", "arrow")
        ipc = load_extra("pyarrow.ipc", "Arrow files need pyarrow", "arrow")
        self._source = arrow.OSFile(str(path))
        self._file = ipc.open_file(self._source)
        self.schema = self._file.schema
        # Batches know their rows; without the other columns, opening reads a part of the file.
        first = ipc.open_file(self._source, options=ipc.IpcReadOptions(included_fields=[0]))
        batches = range(self._file.num_record_batches if self.schema.names else 0)
        self.lengths = [first.get_batch(i).num_rows for i in batches]

    def read(self, group: int, names: list[str]) -> Any:
        return self._file.get_batch(group).select(names)

    def close(self) -> None:
        self._source.close()


class _Table:
    """Columns of numbers of a file, as `hdgemm.matrices._rectangles.Rectangles`."""

    def __init__(self, groups: _Groups, path: Path) -> None:
        self._groups, self._path = groups, path
        self._names = list(groups.schema.names)
        self.dtype = self._checked_dtype()
        self._ends = list(accumulate(groups.lengths))
        self.shape = self._ends[-1] if self._ends else 0, len(self._names)
        self._kept: tuple[int, tuple[int, int], NDArray[Any]] | None = None

    def _checked_dtype(self) -> np.dtype[Any]:
        twice = [name for name, count in Counter(self._names).items() if count > 1]
        if twice or not self._names:
            raise InputError(
                f"{self._path} has {len(self._names)} columns, of which several are named "
                f"{twice[:3]}: columns need names of their own",
                path=str(self._path),
            )
        found = [self._column_dtype(field) for field in self._groups.schema]
        return check_read(np.result_type(*found), str(self._path))

    def _column_dtype(self, field: Any) -> np.dtype[Any]:
        try:
            dtype = np.dtype(field.type.to_pandas_dtype())
        except (NotImplementedError, TypeError):
            dtype = np.dtype(object)
        if dtype.kind not in "fiub":
            raise InputTypeError(
                f"{self._path} has a column {field.name!r} of {field.type}, which is no "
                "integer or floating-point type: drop it, or cast it to double",
                column=field.name,
            )
        return check_read(dtype, f"{self._path}, column {field.name!r},")

    def __getitem__(self, key: tuple[slice, slice]) -> NDArray[Any]:
        rows, cols = key
        out = np.empty((rows.stop - rows.start, cols.stop - cols.start), self.dtype)
        row = rows.start
        while row < rows.stop:
            group = bisect_right(self._ends, row)
            first = self._ends[group] - self._groups.lengths[group]
            last = min(rows.stop, self._ends[group])
            block = self._group(group, cols)
            out[row - rows.start : last - rows.start] = block[row - first : last - first]
            row = last
        return out

    def _group(self, group: int, cols: slice) -> NDArray[Any]:
        """Return columns of one group of rows, which is kept for the next rectangle."""
        place = cols.start, cols.stop
        if self._kept is None or self._kept[:2] != (group, place):
            self._kept = None
            self._kept = group, place, self._decoded(group, self._names[cols])
        return self._kept[2]

    def _decoded(self, group: int, names: list[str]) -> NDArray[Any]:
        table = self._groups.read(group, names)
        block = np.empty((table.num_rows, len(names)), self.dtype, "F")
        for place, name in enumerate(names):
            column = table.column(name)
            if column.null_count:
                raise InputError(
                    f"{self._path} has {column.null_count} nulls in column {name!r}, in group "
                    f"{group} of its rows: fill them in first",
                    column=name,
                    nulls=column.null_count,
                )
            block[:, place] = column.to_numpy(zero_copy_only=False)
        return block


def open_table(path: Path, *, parquet: bool) -> RectangleMatrix:
    """Open a Parquet file, or an Arrow IPC file, as a matrix with a column for each of its own.

    Raises
    ------
    InputError
        For files that are damaged, and groups of rows that are too large.
    InputTypeError
        For columns that hold no numbers.
    """
    check_regular(path)
    try:
        groups: _Groups = _Parquet(path) if parquet else _Ipc(path)
        table = _Table(groups, path)
    except HdgemmError:
        raise
    except Exception as error:
        kind = "Parquet" if parquet else "an Arrow IPC file"
        raise InputError(f"cannot open {path} as {kind}: {error}", path=str(path)) from error
    lengths = list(groups.lengths)
    longest = max(lengths, default=0)
    check_unit(
        longest * table.shape[1] * table.dtype.itemsize,
        f"{path} has groups of {longest} rows",
        "write it with smaller groups (row_group_size of pyarrow.parquet.write_table)",
    )
    even = all(length == longest for length in lengths[:-1]) and longest
    return RectangleMatrix(
        table,
        name=str(path),
        chunk=(longest, table.shape[1]) if even else None,
        source=("arrow", path),
        home=path,
        lock=threading.Lock(),
        close=groups.close,
    )
