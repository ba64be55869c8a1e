"""Matrices of a caller's MPI program: an array on every rank, dealt block-cyclically."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError, NotFiniteError
from hdgemm.mpi.distribution import Axis
from hdgemm.mpi.processes import together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from hdgemm.mpi._part import Part
    from hdgemm.mpi._strips import Triangle
    from hdgemm.mpi.communicator import Communicator

#: Numbers of a descriptor of ScaLAPACK's, and its type: a dense matrix.
_DESCRIPTOR, _DENSE = 9, 1


@dataclass(frozen=True, eq=False)
class BlockCyclicArray:
    """One rank's part of a matrix that is dealt block-cyclically to a grid, as by ScaLAPACK.

    Block (i, j), of nb×nb elements, belongs to the process in row ``i % P`` and column ``j % Q`` of
    the grid; rank r is in row ``r // Q`` and column ``r % Q``, as after ``BLACS_GRIDINIT`` with
    "Row". A rank holds its blocks one after the other.

    Parameters
    ----------
    local
        The elements that this rank holds, of any supported dtype, best column-major: rows × columns
        as `numroc` of ScaLAPACK counts them. Ranks outside the grid give any array of two
        dimensions.
    shape
        Rows and columns of the whole matrix.
    nb
        Rows and columns of a block.
    grid
        Rows and columns of the grid of processes, P×Q.

    Raises
    ------
    InputError
        When `local` has not two dimensions, or a number is negative.

    See Also
    --------
    solve, lu_factor, cholesky : Calls that take it.

    Examples
    --------
    >>> a = hdgemm.mpi.BlockCyclicArray(local, (n, n), nb=64, grid=(1, 2))
    >>> x = hdgemm.mpi.solve(a, b, comm=comm)  # x.local: this rank's part, as b's

    Notes
    -----
    The distribution is the one of Blackford et al., "ScaLAPACK Users' Guide", 1997, section 4.3.
    """

    local: NDArray[Any]
    shape: tuple[int, int]
    nb: int
    grid: tuple[int, int]

    def __post_init__(self) -> None:
        if getattr(self.local, "ndim", None) != 2:
            raise InputError("local must be an array of two dimensions")
        if min(self.shape) < 0 or min(self.nb, *self.grid) < 1:
            raise InputError(
                f"a shape has no negative number, and nb and grid have at least 1, got shape "
                f"{self.shape}, nb {self.nb} and grid {self.grid}"
            )

    @classmethod
    def empty(
        cls, shape: tuple[int, int], dtype: DTypeLike, *, nb: int, grid: tuple[int, int], rank: int
    ) -> BlockCyclicArray:
        """Return a part of undefined elements, column-major; ranks outside the grid hold none."""
        whole = cls(np.empty((0, 0), dtype, "F"), shape, nb, grid)
        if rank >= grid[0] * grid[1]:
            return whole
        rows, cols = whole.axes(rank)
        return cls(np.empty((rows.count, cols.count), dtype, "F"), shape, nb, grid)

    @classmethod
    def from_descriptor(
        cls, local: NDArray[Any], desc: ArrayLike, grid: tuple[int, int]
    ) -> BlockCyclicArray:
        """Return the matrix of ScaLAPACK's descriptor: 1, context, m, n, mb, nb, 0, 0, lld.

        `local` may have more rows than this rank holds, up to lld: the last ones are not read.

        Raises
        ------
        InputError
            When blocks are not square or the first one is not process (0, 0)'s.
        """
        numbers = [int(number) for number in np.asarray(desc).ravel()]
        if len(numbers) != _DESCRIPTOR or numbers[0] != _DENSE:
            raise InputError(f"desc must have 9 numbers, of which the first is 1, got {numbers}")
        _, _, m, n, mb, nb, first_row, first_col, _ = numbers
        if mb != nb or first_row or first_col:
            raise InputError(
                "blocks must be square, and the first one process (0, 0)'s, got MB "
                f"{mb}, NB {nb}, RSRC {first_row}, CSRC {first_col}: redistribute by pdgemr2d"
            )
        return cls(local, (m, n), nb, grid)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.local.dtype

    def axes(self, rank: int) -> tuple[Axis, Axis]:
        """Return the rows and the columns that a rank of the grid holds; see `Axis.positions`."""
        (p, q), (rows, cols) = self.grid, self.shape
        row, col = divmod(rank, q)
        return Axis(rows, self.nb, p, row), Axis(cols, self.nb, q, col)

    def check(self, rank: int, what: str) -> None:
        """Raise `InputError` where the array of a rank has not the shape of its part."""
        if rank >= self.grid[0] * self.grid[1]:
            return
        rows, cols = self.axes(rank)
        wanted, found = (rows.count, cols.count), self.local.shape
        if found[1] != wanted[1] or found[0] < wanted[0]:
            raise InputError(
                f"the local array of {what} has shape {found}, of {self} this rank holds {wanted}"
            )

    def copy_to(self, part: Part, first: int, triangle: Triangle = None) -> None:
        """Copy the matrix into the columns of a part from `first` on.

        Rows, and columns of A, lie where they have to; columns of B move along a row of the grid.
        With `triangle` "lower", only this one is copied.
        """
        local = self.local[: part.rows.count]
        if triangle is not None:
            for at, col in enumerate(part.cols.positions()[: local.shape[1]]):
                below = part.rows.below(int(col))
                part.a[below:, at] = local[below:, at]
            return
        if first == 0:
            part.a[:, : local.shape[1]] = local
            return
        moves = self._moves(part, first)
        sent = [local[:, sources].astype(part.a.dtype, copy=False) for sources, _ in moves[0]]
        for (goals, _), columns in zip(moves[1], _exchange(part, sent, moves[1]), strict=True):
            part.a[:, goals] = columns

    def like(self, part: Part, first: int) -> BlockCyclicArray:
        """Return the columns of a part from `first` on, dealt as this matrix is."""
        own = self.axes(part.grid.rank)[1]
        found = np.empty((part.rows.count, own.count), part.a.dtype, "F")
        if first == 0:
            found[:] = part.a[:, : own.count]
        else:
            to_part, from_others = self._moves(part, first)
            sent = [part.a[:, sources] for sources, _ in from_others]
            for (goals, _), columns in zip(to_part, _exchange(part, sent, to_part), strict=True):
                found[:, goals] = columns
        return BlockCyclicArray(found, self.shape, self.nb, self.grid)

    def _moves(self, part: Part, first: int) -> tuple[_Moves, _Moves]:
        """Return, for each process of a row of the grid, columns here and their number.

        First this array's columns that lie in a process's part; then the part's columns that lie in
        a process's array.
        """
        cols, q = part.cols, part.cols.processes
        own = Axis(self.shape[1], self.nb, q, cols.process).positions()
        owner = (own + first) // cols.block % q
        leaving = [(places := np.flatnonzero(owner == each), places.size) for each in range(q)]
        local = cols.positions()
        home = np.where(local >= first, (local - first) // self.nb % q, -1)
        arriving = [(places := np.flatnonzero(home == each), places.size) for each in range(q)]
        return leaving, arriving

    def __str__(self) -> str:
        (m, n), (p, q) = self.shape, self.grid
        return f"a {m}×{n} {self.dtype} matrix in blocks of {self.nb} on {p}×{q} processes"


#: Columns of one process after the other: their local places, and how many they are.
_Moves = list[tuple["NDArray[np.int64]", int]]


def _exchange(part: Part, sent: Sequence[NDArray[Any]], arriving: _Moves) -> list[NDArray[Any]]:
    """Exchange whole local columns with the processes of a row of the grid (MPI_Alltoallv)."""
    rows = part.rows.count
    message = np.concatenate([columns.ravel(order="F") for columns in sent])
    counts = [rows * count for _, count in arriving]
    found = part.row.exchange(message, [columns.size for columns in sent], counts)
    pieces = np.split(found, np.cumsum(counts)[:-1])
    return [
        piece.reshape((rows, -1), order="F") if rows else piece.reshape(0, count)
        for piece, (_, count) in zip(pieces, arriving, strict=True)
    ]


def check_finite(
    grid: Communicator, matrix: BlockCyclicArray, name: str, triangle: Triangle = None
) -> None:
    """Raise `NotFiniteError` on all ranks for an element that is NaN or Inf: `row` and `col`."""
    rows, cols = matrix.axes(grid.rank)
    local = matrix.local[: rows.count]
    with together(grid):
        for at, col in enumerate(cols.positions()):
            start = 0 if triangle is None else rows.below(int(col))
            wrong = np.flatnonzero(~np.isfinite(local[start:, at]))
            if wrong.size:
                row = int(rows.positions()[start + wrong[0]])
                raise NotFiniteError(
                    f"{name} has {local[start + wrong[0], at]} at row {row}, column {col}: it must "
                    "not contain infs or NaNs",
                    row=row,
                    col=int(col),
                )


def common_layout(matrices: Sequence[object]) -> tuple[tuple[int, int], int] | None:
    """Return grid and block size of the distributed matrices among operands; None without one."""
    layouts = {(each.grid, each.nb) for each in matrices if isinstance(each, BlockCyclicArray)}
    if len(layouts) > 1:
        raise InputError(f"a and b are dealt in different ways: grid and nb are {sorted(layouts)}")
    return layouts.pop() if layouts else None
