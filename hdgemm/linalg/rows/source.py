"""The rows of a tall matrix as a pass reads them: centred, scaled and weighted in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.linalg.planning.rows import RowShape
from hdgemm.linalg.planning.slab import Columns
from hdgemm.linalg.rows.reducer import RowBlock
from hdgemm.linalg.slabs.slab import Slab, check_finite_slab
from hdgemm.matrices.read_ahead import array_in
from hdgemm.matrices.transfer import ALIGNMENT
from hdgemm.pipeline.devices.page_buffer import PageBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.matrices.stored import StoredMatrix

#: Bytes of the rows that are transformed at once: they stay in a core's cache.
_STRIP_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class TallRows:
    """The rows of A (m×n), of B (m×p) beside it, and their transformation in memory.

    No copy of A is written. A block of rows becomes ``w·[1 | (A - shift) / scale]``, w the square
    root of a row's weight, and B's becomes w·B.

    Parameters
    ----------
    a
        A matrix that is opened; of a wide one its transpose.
    dtype
        Of the blocks in memory.
    b
        A matrix with as many rows; None for none.
    ones
        Put a column of ones before A. The R of [1 | A] has √m·mean(A) in its first row, and the R
        of the centred A below it.
    shift, scale
        n numbers each; None for zeros, and for ones.
    weights
        m numbers that are not negative; None for ones.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    transposed
        A is the transpose of the operand: errors tell positions in the operand.
    intermediate
        A is an unfinished result of this process, which no other process can open.
    """

    a: StoredMatrix
    dtype: np.dtype[Any]
    b: StoredMatrix | None = None
    ones: bool = False
    shift: NDArray[Any] | None = None
    scale: NDArray[Any] | None = None
    weights: NDArray[Any] | None = None
    check_finite: bool = True
    transposed: bool = False
    intermediate: bool = False

    @property
    def shape(self) -> RowShape:
        """The extents of the blocks, the column of ones included."""
        (m, n), p = self.a.shape, 0 if self.b is None else self.b.shape[1]
        orders = "" if self.array is None else _orders(self.array)
        columns, made = self.a.order == "F", int(self.ones)
        chunk = max(
            each.operand.matrix.decoded_bytes for each in (self.a, self.b) if each is not None
        )
        return RowShape(m, n + made, p, self.dtype.name, made, orders, columns, chunk)

    @property
    def transforms(self) -> bool:
        """Whether blocks differ from the rows that are stored."""
        given = self.shift, self.scale, self.weights
        return self.ones or any(each is not None for each in given)

    @property
    def array(self) -> NDArray[Any] | None:
        """A, where it is an array whose rows are the blocks; None where they must be copied."""
        operand = self.a.operand
        array = operand.matrix.array
        if array is None or array.dtype != self.dtype or self.transforms or self.b is not None:
            return None
        array = array.T if operand.trans else array
        return array if _orders(array) and array.flags.aligned else None

    def buffer(self, rows: int) -> NDArray[np.uint8]:
        """Return memory for a block of so many rows, unmapped with its last view.

        The C library would keep freed blocks for the threads of each pass.
        """
        return PageBuffer(rows * self.shape.row_bytes + ALIGNMENT).array

    def read(
        self,
        place: tuple[int, int],
        buffer: NDArray[np.uint8],
        recorder: Recorder,
        step: tuple[int, int],
        *,
        column_major: bool = True,
    ) -> RowBlock:
        """Read and transform the rows from ``place[0]`` up to ``place[1]``.

        Parameters
        ----------
        buffer
            Memory that the method `buffer` returned.
        recorder, step
            Records the reads, for a core and a block.
        column_major
            The block is column-major; it has the order of the stored A otherwise.
        """
        first, last = place
        _, n, p, *_ = self.shape
        order = "F" if column_major else self.a.order
        whole = self._lay_out(first, last, buffer, order)
        behind = buffer[(last - first) * n * self.dtype.itemsize + ALIGNMENT :]
        beside = np.ndarray((last - first, p), self.dtype, behind.data, order="F")
        parts = [("a", self.a, whole[:, int(self.ones) :])]
        if self.b is not None:
            parts.append(("b", self.b, beside))
        core, number = step
        for name, source, array in parts:
            with recorder.operation("load1", core, nbytes=array.nbytes, block=number):
                source[first:last, :].read(array)
            if self.check_finite:
                transposed = self.transposed and name == "a"
                check_finite_rows(first, array, name, transposed=transposed)
        if self.transforms:
            self._transform(first, whole, beside)
        return RowBlock(first, whole, beside)

    def _lay_out(
        self, first: int, last: int, buffer: NDArray[np.uint8], order: str
    ) -> NDArray[Any]:
        """Return the array of a block of [1 | A]; reads need no copy where its order is A's."""
        part = self.a[first:last, :]
        if order == part.order and not self.ones:
            return array_in(buffer, part, self.dtype)
        shape = last - first, self.shape.n
        return np.ndarray(shape, self.dtype, buffer.data, order="F" if order == "F" else "C")

    def _transform(self, first: int, a: NDArray[Any], b: NDArray[Any]) -> None:
        """Transform rows in memory, by strips of rows or of columns."""
        if self.ones:
            a[:, 0] = 1
        for rows, cols in _strips(a[:, int(self.ones) :]):
            part = a[rows, int(self.ones) :][:, cols]
            if self.shift is not None:
                part -= self.shift[cols]
            if self.scale is not None:
                part /= self.scale[cols]
        if self.weights is not None:
            roots = np.sqrt(self.weights[first : first + len(a)]).astype(a.real.dtype)
            for block in (a, b):
                for rows, cols in _strips(block):
                    block[rows, cols] *= roots[rows, np.newaxis]


def _orders(array: NDArray[Any]) -> str:
    """Return ``"C"`` and ``"F"`` for the orders that an array has."""
    return "C" * array.flags.c_contiguous + "F" * array.flags.f_contiguous


def tall_view(a: StoredMatrix) -> tuple[StoredMatrix, bool]:
    """Return the matrix, or the transpose of a wide one, and whether it is the transpose."""
    m, n = a.shape
    return (a.T, True) if m < n else (a, False)


def estimated_mean(a: StoredMatrix, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the mean of the first rows of a matrix: a shift with which centred sums lose nothing.

    The mean of all rows differs from it by the spread of the columns, whatever the mean itself is.
    Columns without a finite mean get 0.
    """
    if not all(a.shape):
        return np.zeros(a.shape[1], dtype)
    line = max(1, a.shape[1] * dtype.itemsize)
    rows = a[: max(1, _STRIP_BYTES // line), :].read()
    with np.errstate(all="ignore"):
        mean: NDArray[Any] = rows.mean(axis=0, dtype=np.result_type(dtype, np.float64)).astype(
            dtype
        )
    mean[~np.isfinite(mean)] = 0
    return mean


def check_finite_rows(
    first: int, array: NDArray[Any], name: str = "a", *, transposed: bool = False
) -> None:
    """Raise `InputError` with the position of the first NaN or Inf of rows of a matrix.

    Parameters
    ----------
    first
        The index of the first row.
    name
        The matrix, for the error.
    transposed
        It is the transpose of that matrix.
    """
    rows, cols = array.shape
    if array.flags.f_contiguous:
        slab = Slab(0, Columns(0, cols, first), array)
        check_finite_slab(slab, transposed=transposed, name=name)
    else:
        slab = Slab(0, Columns(first, first + rows, 0), array.T)
        check_finite_slab(slab, transposed=not transposed, name=name)


def _strips(array: NDArray[Any]) -> Iterator[tuple[slice, slice]]:
    """Yield the parts of a block that stay in the cache: rows, or columns where it has few."""
    rows, cols = array.shape
    by_columns = array.strides[0] < array.strides[1] if rows and cols else False
    line = (rows if by_columns else cols) * array.itemsize
    step = max(1, _STRIP_BYTES // max(1, line))
    everything = slice(0, None)
    for start in range(0, cols if by_columns else rows, step):
        some = slice(start, start + step)
        yield (everything, some) if by_columns else (some, everything)
