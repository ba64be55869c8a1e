"""The base class of matrices that are read and written by rectangles, row-major.

A column-major matrix is its row-major transpose with a flag (`Operand.trans`), so that
implementations know rows only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.matrices.transfer import Transfer

#: Bytes that `Transposed` reads at a time.
_BLOCK: Final = 1 << 20


class Matrix:
    """Rows × columns of one dtype: in RAM, in a file, in device memory or in another library.

    Subclasses set `name`, `shape` and `dtype` and implement `read` and `write`.
    """

    #: The name in error messages: a path, or ``"array"``.
    name: str
    #: Stored rows and columns.
    shape: tuple[int, int]
    #: As stored, byte order included.
    dtype: np.dtype[Any]
    #: The matrix itself where it lies in RAM, in its stored orientation.
    array: NDArray[Any] | None = None
    #: Rows and columns of a chunk, for formats that are read and written by chunks.
    chunk: tuple[int, int] | None = None
    #: A chunk can only be decoded or encoded as a whole.
    encoded: bool = False
    #: The identity of a dataset or array within its library: equal values name the same store.
    source: Hashable = None
    #: Smallest row and column of an element in the whole store; not ``(0, 0)`` in a part.
    origin: tuple[int, int] = (0, 0)
    #: Distance of neighbouring rows, and of neighbouring columns, in the whole store.
    steps: tuple[int, int] = (1, 1)
    #: The file, or the folder of files, that holds all elements.
    home: Path | None = None
    #: The files that hold elements, where several do.
    files: tuple[Path, ...] = ()
    #: What a user says that the elements are, for matrices that no file holds: equal texts name
    #: equal elements.
    content: str | None = None
    #: The location, or the library's array, that the matrix was opened from, and whether the
    #: matrix is its transpose; None for arrays in RAM and on devices.
    opened_from: tuple[Any, bool] | None = None

    @property
    def chunk_origin(self) -> tuple[int, int]:
        """Row and column of element ``[0, 0]`` within its chunk."""
        if self.chunk is None:
            return 0, 0
        (row, col), (high, wide) = self.origin, self.chunk
        return row % high, col % wide

    @property
    def decoded_bytes(self) -> int:
        """Bytes of an encoded chunk when it is decoded; 0 for other formats."""
        return math.prod(self.chunk or (0,)) * self.dtype.itemsize if self.encoded else 0

    @property
    def span(self) -> tuple[int, int]:
        """Rows and columns of the store from the first element to the last one."""
        (rows, cols), (down, across) = self.shape, self.steps
        if not rows or not cols:
            return 0, 0
        return (rows - 1) * abs(down) + 1, (cols - 1) * abs(across) + 1

    def phase(self, row: int, col: int) -> int:  # noqa: ARG002 - overridden
        """Return this element's file offset modulo 4096, 0 where it has no file offset.

        Memory that starts at the same phase can take direct (O_DIRECT) reads without a copy.
        """
        return 0

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` (2-D, of a native dtype that the stored one can be cast to) from the
        rectangle that begins at ``[row, col]``; several threads may read at once.

        Raises
        ------
        MatrixIOError
            With path, offset and length: a read that failed or came back short.
        """
        raise NotImplementedError

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store `tile` at ``[row, col]``; disjoint rectangles may be written at once."""
        raise NotImplementedError

    def begin_read(self, row: int, col: int, out: NDArray[Any]) -> Transfer | None:
        """Begin to read as `read` does; None where it is done at the return."""
        self.read(row, col, out)
        return None

    def begin_write(self, row: int, col: int, tile: NDArray[Any]) -> Transfer | None:
        """Begin to write as `write` does; None where it is done at the return."""
        self.write(row, col, tile)
        return None

    def add_to(
        self, row: int, col: int, factor: np.generic, out: NDArray[Any], scratch: NDArray[np.uint8]
    ) -> None:
        """Add `factor` times the rectangle at ``[row, col]`` to `out`, which has its dtype.

        `scratch` holds at least one row of `out`.
        """
        rows = max(1, scratch.nbytes // (out.shape[1] * out.itemsize))
        for first in range(0, len(out), rows):
            part = out[first : first + rows]
            read = np.ndarray(part.shape, out.dtype, scratch)
            self.read(row + first, col, read)
            # As in BLAS, NaN and Inf raise no floating-point warnings.
            with np.errstate(all="ignore"):
                if factor != 1:
                    read *= factor
                part += read

    def flush(self) -> None:
        """Return when everything written is durable."""

    def close(self) -> None:
        """Close the files that were opened for this matrix."""

    def part(self, row: int, col: int, shape: tuple[int, int]) -> Matrix:
        """Return a rectangle as a matrix of its own; no data is copied, and closing it leaves
        this matrix open.
        """
        return _Part(self, row, col, shape)

    def strided(self, rows: range, cols: range) -> Matrix | None:  # noqa: ARG002 - overridden
        """Return rows and columns at constant steps, where they have fixed places as the whole
        matrix has; None where they must be picked.
        """
        return None


class Wrapper(Matrix):
    """A matrix that forwards all to another, `stored`; subclasses override what differs."""

    def __init__(self, matrix: Matrix) -> None:
        self.stored = matrix
        for name in Matrix.__annotations__:
            setattr(self, name, getattr(matrix, name))

    def phase(self, row: int, col: int) -> int:
        """Return the matrix's own phase."""
        return self.stored.phase(row, col)

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Read from the matrix."""
        self.stored.read(row, col, out)

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Write to the matrix."""
        self.stored.write(row, col, tile)

    def flush(self) -> None:
        """Return when everything written is durable."""
        self.stored.flush()


class _Part(Wrapper):
    """A rectangle of a chunked or opaque matrix."""

    def __init__(self, whole: Matrix, row: int, col: int, shape: tuple[int, int]) -> None:
        super().__init__(whole)
        self._row, self._col = row, col
        self.shape = shape
        self.origin = whole.origin[0] + row, whole.origin[1] + col

    def phase(self, row: int, col: int) -> int:
        """Return the phase of the element in the whole."""
        return self.stored.phase(self._row + row, self._col + col)

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]`` of the part."""
        self.stored.read(self._row + row, self._col + col, out)

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store `tile` at ``[row, col]`` of the part."""
        self.stored.write(self._row + row, self._col + col, tile)


class Transposed(Wrapper):
    """The transpose of a matrix, for readers that take no `trans` flag; in bounded memory."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__(matrix)
        self.shape = matrix.shape[1], matrix.shape[0]
        self.array = None if matrix.array is None else matrix.array.T
        self.chunk = None
        self.source = None

    def phase(self, row: int, col: int) -> int:
        """Return the phase of the stored element."""
        return self.stored.phase(col, row)

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the transpose's rectangle at ``[row, col]``."""
        rows, cols = out.shape
        height = min(cols, max(1, _BLOCK // max(1, rows * out.itemsize)))
        block = np.empty((height, rows), out.dtype)
        for first in range(0, cols, height or 1):
            stored = block[: min(height, cols - first)]
            self.stored.read(col + first, row, stored)
            out[:, first : first + height] = stored.T

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store the transpose of `tile`."""
        self.stored.write(col, row, np.ascontiguousarray(tile.T))


class Converted(Wrapper):
    """A matrix in another precision; elements beyond its range are infinite."""

    def __init__(self, matrix: Matrix, dtype: np.dtype[Any]) -> None:
        super().__init__(matrix)
        self.dtype = dtype
        self.array = self.source = self.opened_from = None

    def phase(self, row: int, col: int) -> int:  # noqa: ARG002 - elements are converted
        """Return 0: no element can be read without a copy."""
        return 0

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Read and convert."""
        with np.errstate(over="ignore"):
            self.stored.read(row, col, out)

    def close(self) -> None:
        """Close the matrix."""
        self.stored.close()

    def part(self, row: int, col: int, shape: tuple[int, int]) -> Matrix:
        """Return a rectangle in the same precision."""
        return Converted(self.stored.part(row, col, shape), self.dtype)


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix and its role in the product: op(X) is the stored matrix, transposed when `trans`,
    conjugated when `conj`.
    """

    matrix: Matrix
    trans: bool = False
    conj: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of op(X)."""
        rows, cols = self.matrix.shape
        return (cols, rows) if self.trans else (rows, cols)

    def transposed(self) -> Operand:
        """Return the same matrix with op(X) transposed."""
        return replace(self, trans=not self.trans)
