"""Stored matrices and their views, as `hdgemm.open` and `hdgemm.create` return them."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices.base import Operand
from hdgemm.matrices.transfer import aligned_bytes

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from hdgemm.matrices.base import Matrix


class StoredMatrix:
    """A matrix in a file, a store or an array, or a rectangular view of one.

    Views and transposes copy no data; they stay usable until the matrix that they come from is
    closed. Every public call takes them as operands and as `out`. Made by `hdgemm.open` and
    `hdgemm.create`.
    """

    ndim = 2
    # Without it, `for` would fall back to calling `__getitem__` with 0, 1, 2, ...
    __iter__ = None

    def __init__(self, operand: Operand, *, writable: bool, parent: StoredMatrix | None = None):
        self._operand = operand
        self._parent = parent
        self._closed = False
        self.writable = writable

    @property
    def operand(self) -> Operand:
        """The matrix as the library's calls take it; closing that one leaves this one open."""
        matrix = self._open_matrix
        return Operand(matrix.part(0, 0, matrix.shape), self._operand.trans)

    @property
    def _open_matrix(self) -> Matrix:
        if self.closed:
            raise InputError(f"{self._operand.matrix.name} is closed: open it again")
        return self._operand.matrix

    @property
    def closed(self) -> bool:
        """Whether the matrix, or the one that this is a view of, was closed."""
        return self._closed if self._parent is None else self._parent.closed

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._operand.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """As stored, byte order included."""
        return self._operand.matrix.dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, as they are without compression."""
        return self.size * self.dtype.itemsize

    @property
    def chunks(self) -> tuple[int, int] | None:
        """Rows and columns of a chunk of HDF5 and Zarr matrices, None for other formats."""
        chunk = self._operand.matrix.chunk
        return chunk[::-1] if chunk is not None and self._operand.trans else chunk

    @property
    def order(self) -> str:
        """``"C"`` where rows are stored one after the other, ``"F"`` where columns are."""
        return "F" if self._operand.trans else "C"

    @property
    def T(self) -> StoredMatrix:  # noqa: N802 - NumPy's name
        """The transpose, as a view."""
        return self._view(self._operand.matrix, trans=not self._operand.trans)

    def __getitem__(self, key: Any) -> StoredMatrix:
        """Return the view ``[r0:r1, c0:c1]``, a matrix of its own; nothing is read."""
        (row, rows), (col, cols) = self._rectangle(key)
        matrix, trans = self._open_matrix, self._operand.trans
        if trans:
            return self._view(matrix.part(col, row, (cols, rows)), trans=True)
        return self._view(matrix.part(row, col, (rows, cols)), trans=False)

    def __setitem__(self, key: Any, value: ArrayLike | StoredMatrix) -> None:
        """Store an array, or one number everywhere, in the rectangle ``[r0:r1, c0:c1]``."""
        self[key].write(value)

    def read(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read all elements into `out`, or into a new array in this matrix's own order.

        Parameters
        ----------
        out
            Of this matrix's shape and of a dtype that the elements can be cast to.

        Raises
        ------
        InputError
            For an `out` of another shape.
        InputTypeError
            For an `out` whose dtype cannot hold the elements.
        """
        operand = self.operand
        if out is None:
            out = _empty(operand)
        if out.shape != self.shape:
            raise InputError(f"out has shape {out.shape}, the matrix {self.shape}")
        _check_cast(self.dtype, out.dtype, "out")
        operand.matrix.read(0, 0, out.T if operand.trans else out)
        return out

    def write(self, value: ArrayLike | StoredMatrix) -> None:
        """Overwrite all elements with `value`, which is broadcast as NumPy does.

        Raises
        ------
        InputError
            When the matrix was opened for reading only, or `value` has another shape.
        InputTypeError
            When the matrix cannot hold the values.
        """
        operand = self.operand
        if not self.writable:
            raise InputError(
                f"{operand.matrix.name} was opened for reading only: open it with mode='r+'"
            )
        array = np.asarray(value)
        _check_cast(array.dtype, self.dtype, operand.matrix.name)
        try:
            tile = np.broadcast_to(array, self.shape)
        except ValueError as error:
            raise InputError(
                f"an array of shape {array.shape} cannot be stored in the rectangle {self.shape}"
            ) from error
        if tile.size:
            operand.matrix.write(0, 0, tile.T if operand.trans else tile)

    def flush(self) -> None:
        """Return when everything written is durable."""
        self.operand.matrix.flush()

    def close(self) -> None:
        """Close the files; the views of this matrix cannot be used any more.

        Closing a view does nothing, and so does closing twice.
        """
        if self._parent is None and not self._closed:
            self._closed = True
            try:
                if self.writable:
                    self._operand.matrix.flush()
            finally:
                self._operand.matrix.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        # A copy would hold the same descriptors: it would close them, or find other files in them.
        raise InputTypeError(
            f"{self._operand.matrix.name} is opened and cannot be copied or pickled: pass its "
            "location, and open it again there"
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Read all elements, as `numpy.asarray` asks for them.

        Raises
        ------
        InputError
            For ``copy=False``, unless the elements lie in memory as an array of this dtype.
        """
        operand = self.operand
        wanted = np.dtype(self.dtype if dtype is None else dtype)
        array = operand.matrix.array
        if array is not None and not copy and array.dtype == wanted:
            return array.T if operand.trans else array
        if copy is False:
            raise InputError(f"{operand.matrix.name} must be read to become an array: copy=False")
        return self.read().astype(wanted, copy=False)

    def __repr__(self) -> str:
        matrix = self._operand.matrix
        rows, cols = self.shape
        row, col = matrix.origin[::-1] if self._operand.trans else matrix.origin
        place = f"[{row}:{row + rows}, {col}:{col + cols}] of " if self._parent else ""
        mode = "closed" if self.closed else "r+" if self.writable else "r"
        return (
            f"<StoredMatrix {place}{matrix.name!r}: {rows}×{cols} {self.dtype}, "
            f"order {self.order}, mode {mode}>"
        )

    def _view(self, matrix: Matrix, *, trans: bool) -> StoredMatrix:
        return StoredMatrix(Operand(matrix, trans), writable=self.writable, parent=self)

    def _rectangle(self, key: Any) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return first index and extent of the rows and of the columns that a key names."""
        keys = key if isinstance(key, tuple) else (key,)
        if not 1 <= len(keys) <= 2:
            raise InputError(f"a view takes rows and columns, [r0:r1, c0:c1], got {key!r}")
        rows, cols = (*keys, slice(None)) if len(keys) == 1 else keys
        return _span(rows, self.shape[0]), _span(cols, self.shape[1])


def _span(key: Any, extent: int) -> tuple[int, int]:
    """Return the first index and the length of one slice."""
    try:
        if isinstance(key, slice) and (key.step is None or index(key.step) == 1):
            start, stop, _ = key.indices(extent)
            return start, max(0, stop - start)
    except TypeError as error:
        raise InputTypeError(f"the bounds of a slice must be integers, got {key}") from error
    raise InputError(
        f"a view is a rectangle of slices with step 1, such as M[0:1000, 50:], got {key!r}; "
        "read it with numpy.asarray for any other indexing"
    )


def _empty(operand: Operand) -> NDArray[Any]:
    """Return memory for all elements, at the phase of the file, so that reads need no bounce."""
    matrix, dtype = operand.matrix, operand.matrix.dtype.newbyteorder("=")
    phase = matrix.phase(0, 0)
    memory = aligned_bytes(
        matrix.shape[0] * matrix.shape[1] * dtype.itemsize,
        phase if phase % dtype.itemsize == 0 else 0,
    )
    stored: NDArray[Any] = memory.view(dtype).reshape(matrix.shape)
    return stored.T if operand.trans else stored


def _check_cast(found: np.dtype[Any], wanted: np.dtype[Any], what: str) -> None:
    if not np.can_cast(found, wanted, "same_kind"):
        raise InputTypeError(f"{what} has dtype {wanted}, which cannot hold elements of {found}")
