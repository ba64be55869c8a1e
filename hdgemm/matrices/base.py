"""The protocol of a stored matrix: read and written by rectangles, row-major.

A column-major store is the same thing as its row-major transpose, so implementations know rows
only; `hdgemm.matrices.operands` turns what a caller passes into a `Matrix` and a `trans` flag.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Matrix(Protocol):
    """Rows × columns of one dtype, somewhere: in RAM, in a file, behind another library."""

    @property
    def name(self) -> str:
        """What an error calls it: a path, or ``"array"``."""

    @property
    def shape(self) -> tuple[int, int]:
        """Stored rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """As stored, byte order included."""

    @property
    def array(self) -> NDArray[Any] | None:
        """The matrix itself where it lies in RAM, in its stored orientation; else None."""

    @property
    def chunk(self) -> tuple[int, int] | None:
        """Rows and columns of a chunk, for formats that are read and written by chunks."""

    def phase(self, row: int, col: int) -> int:
        """Bytes past a 4096-byte boundary at which this element lies on disk; 0 where it does not.

        Memory that starts at the same phase can take direct (O_DIRECT) reads without a copy.
        """

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` (2-D, any native dtype that the stored one casts to, unit stride in rows)
        from the rectangle whose first element is ``[row, col]``; several threads may read at once.

        Raises
        ------
        MatrixIOError
            With path, offset and length: a read that failed or came back short.
        """

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Store `tile` at ``[row, col]``; disjoint rectangles may be written at once."""

    def flush(self) -> None:
        """Return when everything written is durable."""

    def close(self) -> None:
        """Give up files and threads."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix and how the product sees it: op(X) is the stored matrix, transposed when `trans`,
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
