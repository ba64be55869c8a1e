"""Stored matrices and their views, as `hdgemm.open` and `hdgemm.create` return them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, overload

import numpy as np

from hdgemm.errors import DoesNotFitError, HdgemmError, InputError, InputTypeError
from hdgemm.machine.limits import host_bytes
from hdgemm.matrices._indexing import select
from hdgemm.matrices._strided import Strided
from hdgemm.matrices.array_protocols import ArrayProtocols
from hdgemm.matrices.base import Operand
from hdgemm.matrices.read_ahead import BLOCK_BYTES, STREAM_BUFFERS, ReadAhead
from hdgemm.matrices.transfer import aligned_bytes
from hdgemm.options import Options, parse_size
from hdgemm.tables import Table
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import EllipsisType, TracebackType
    from typing import SupportsIndex, TypeAlias

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from hdgemm.matrices.base import Matrix

    #: An index that keeps its axis.
    Span: TypeAlias = slice | EllipsisType

#: Matrices of so many bytes are read without asking for the memory that is free.
_SMALL: Final = 16 << 20


class StoredMatrix(ArrayProtocols):
    """A matrix in a file, a store or an array, or a rectangular view of one.

    Views and transposes copy no data; they stay usable until the matrix that they come from is
    closed. Every public call takes them as operands and as `out`. Made by `open` and `create`.

    See Also
    --------
    open, create, generated : Return it.

    Examples
    --------
    >>> with hdgemm.open("A.npy") as a:
    ...     corner = a[:2, :2].read()
    ...     c = a.T @ np.ones(300)
    ...     largest = max(block.max() for rows, block in a.blocks())
    """

    ndim = 2

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

    @overload
    def __getitem__(
        self, key: Span | tuple[()] | tuple[Span] | tuple[Span, Span]
    ) -> StoredMatrix: ...
    @overload
    def __getitem__(
        self,
        key: SupportsIndex
        | tuple[SupportsIndex]
        | tuple[SupportsIndex, Span]
        | tuple[Span, SupportsIndex],
    ) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, key: Any) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        """Return the view ``[r0:r1, c0:c1]``, a matrix of its own; nothing is read.

        Steps are allowed, ``[::2, ::-1]``. An integer reads the row or column that it names as an
        array of one dimension, two integers read one element.
        """
        selected = select(key, self.shape)
        view = self._selected(selected.rows, selected.cols)
        if not selected.dropped:
            return view
        return np.asarray(view).reshape(selected.shape)[()]

    def __setitem__(self, key: Any, value: ArrayLike | StoredMatrix) -> None:
        """Store an array, or one number everywhere, in the rectangle ``[r0:r1, c0:c1]``, the row
        ``[i]`` or the column ``[:, j]``.
        """
        selected = select(key, self.shape)
        view = self._selected(selected.rows, selected.cols)
        array = _elements(value)
        view.write(array[:, np.newaxis] if 1 in selected.dropped and array.ndim == 1 else array)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Yield each row as an array; rows are read by blocks."""
        for _, block in self.blocks():
            yield from block

    def blocks(
        self, rows: int | None = None, *, memory: float | str | None = None
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield blocks of whole rows in turn, each a new array, while the next one is read.

        Parameters
        ----------
        rows
            Rows of a block; None for as many as `memory` allows. In a chunked matrix blocks then
            end where chunks end.
        memory
            Bytes of the blocks that are in memory at once, of which there are three, and of reads;
            or a text such as ``"1GB"``. None: 96 MiB, less where `host_memory` is less.

        Yields
        ------
        rows : slice
            The rows of the block.
        block : array
            Their elements.

        Raises
        ------
        InputError
            For `rows` less than 1.

        Examples
        --------
        >>> total = sum(block.sum() for _, block in hdgemm.open("A.npy").blocks())
        """
        height = self._block_rows(memory) if rows is None else rows
        if height < 1:
            raise InputError(f"blocks must have at least 1 row, got {height}")

        def read(first: int, _buffer: int) -> tuple[slice, NDArray[Any]]:
            last = min(first + height, self.shape[0])
            part = self._selected(range(first, last), range(self.shape[1]))
            return slice(first, last), part.read()

        with ReadAhead() as reads:
            yield from reads.blocks(range(0, self.shape[0], height), read)

    def _block_rows(self, memory: float | str | None) -> int:
        bound = (STREAM_BUFFERS + 1) * BLOCK_BYTES
        allowed = min(bound, host_bytes(Options())) if memory is None else parse_size(memory)
        row_bytes = max(1, self.shape[1] * self.dtype.itemsize)
        # The caller's block, two that are read, and as much for the buffers of reads.
        height = max(1, allowed // (STREAM_BUFFERS + 2) // row_bytes)
        high = self.chunks[0] if self.chunks is not None else 1
        return height // high * high or height

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
        array = _elements(value)
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
        matrix = self._operand.matrix
        if matrix.home is None and matrix.opened_from is None:
            raise InputTypeError(
                f"{matrix.name} cannot be copied or pickled: pass the function or the array that "
                "it was made from, and make it again there"
            )
        raise InputTypeError(
            f"{matrix.name} is opened and cannot be copied or pickled: pass its location, and open "
            "it again there"
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Read all elements, as `numpy.asarray` asks for them.

        Raises
        ------
        InputError
            For ``copy=False``, unless the elements lie in memory as an array of this dtype.
        DoesNotFitError
            When they have more bytes than the default `host_memory`.
        """
        operand = self.operand
        wanted = np.dtype(self.dtype if dtype is None else dtype)
        array = operand.matrix.array
        if array is not None and not copy and array.dtype == wanted:
            return array.T if operand.trans else array
        if copy is False:
            raise InputError(f"{operand.matrix.name} must be read to become an array: copy=False")
        self._check_fits()
        return self.read().astype(wanted, copy=False)

    def __repr__(self) -> str:
        matrix = self._operand.matrix
        rows, cols = self.shape
        axes = [
            _place(*each) for each in zip(matrix.origin, matrix.span, matrix.steps, strict=True)
        ]
        place = ", ".join(axes[::-1] if self._operand.trans else axes)
        place = f"[{place}] of " if self._parent else ""
        mode = "closed" if self.closed else "r+" if self.writable else "r"
        return (
            f"<StoredMatrix {place}{matrix.name!r}: {rows}×{cols} {self.dtype}, "
            f"order {self.order}, mode {mode}>"
        )

    def _repr_html_(self) -> str:
        """Return a table of facts, for a notebook."""
        chunks = "×".join(map(str, self.chunks)) if self.chunks else "none"
        rows = [
            ("shape", "×".join(map(str, self.shape))),
            ("dtype", str(self.dtype)),
            ("bytes", format_size(self.nbytes)),
            ("order", self.order),
            ("chunks", chunks),
            ("mode", "closed" if self.closed else "r+" if self.writable else "r"),
        ]
        return Table(("stored matrix", self._operand.matrix.name), rows, text=True).html()

    def _view(self, matrix: Matrix, *, trans: bool) -> StoredMatrix:
        return StoredMatrix(Operand(matrix, trans), writable=self.writable, parent=self)

    def _selected(self, rows: range, cols: range) -> StoredMatrix:
        """Return the view of some rows and columns."""
        matrix, trans = self._open_matrix, self._operand.trans
        down, across = (cols, rows) if trans else (rows, cols)
        if down.step == across.step == 1:
            shape = len(down), len(across)
            return self._view(matrix.part(down.start, across.start, shape), trans=trans)
        strided = matrix.strided(down, across) or Strided(matrix, down, across)
        return self._view(strided, trans=trans)

    def _check_fits(self) -> None:
        """Raise `DoesNotFitError` where all elements would take more than `host_memory`."""
        limits = Options()
        if self.nbytes <= _SMALL and limits.host_bytes is None:
            return
        allowed = host_bytes(limits)
        if self._operand.matrix.array is None and self.nbytes > allowed:
            raise DoesNotFitError(
                f"{self._operand.matrix.name} has {format_size(self.nbytes)} as an array, and "
                f"host_memory is {format_size(allowed)}: multiply or factor it out of core "
                "(hdgemm.matmul, hdgemm.linalg), read parts of it (M[r0:r1], M.blocks()), or read "
                "all of it by M.read()",
                requested=self.nbytes,
                available=allowed,
                missing=self.nbytes - allowed,
            )


def _place(first: int, extent: int, step: int) -> str:
    """Return the slice of a store that a view has in one axis."""
    last = first + extent
    return f"{first}:{last}" if step == 1 else f"{first}:{last}:{step}"


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


def _elements(value: ArrayLike | StoredMatrix) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except HdgemmError:
        raise
    except ValueError as error:
        raise InputError(
            f"a matrix takes a number or an array, this {type(value).__name__} is neither: its "
            "rows have different lengths"
        ) from error


def _check_cast(found: np.dtype[Any], wanted: np.dtype[Any], what: str) -> None:
    if not np.can_cast(found, wanted, "same_kind"):
        raise InputTypeError(f"{what} has dtype {wanted}, which cannot hold elements of {found}")
