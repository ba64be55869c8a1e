"""Operands of distributed calls: every rank opens them, and all prove that they see the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from socket import gethostname
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hdgemm.cluster.references import describe, differs
from hdgemm.errors import InputError, NotFiniteError
from hdgemm.mpi._redistribution import Place, scatter
from hdgemm.mpi._strips import Strips
from hdgemm.mpi.processes import together

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.mpi._part import Part
    from hdgemm.mpi._strips import Rectangle, Triangle
    from hdgemm.mpi.communicator import Communicator


def prove_same(world: Communicator, matrices: Mapping[str, StoredMatrix]) -> None:
    """Raise `InputError` on every rank where one sees another matrix than rank 0.

    Compared are shape, dtype, samples of the content and, of a file, size and time of modification.
    """
    with together(world):
        own = {name: describe(matrix.operand) for name, matrix in matrices.items()}
    everyone = world.collect((gethostname(), own))
    for rank, (host, other) in enumerate(everyone):
        for name, first in everyone[0][1].items():
            if found := differs(first, other[name]):
                advice = (
                    "give all ranks the same array, or the same function to `generated`"
                    if matrices[name].operand.matrix.home is None
                    else "mount the same storage on all machines under the same name"
                )
                raise InputError(
                    f"rank {rank} on {host} sees another {name} than rank 0 "
                    f"({'; '.join(found)}): {advice}"
                )


@dataclass
class Loader:
    """Reads strips of one matrix for `scatter`; the first error is kept, since other ranks wait.

    Parameters
    ----------
    matrix
        Opened.
    name
        In messages.
    check_finite
        NaN and Inf are errors.
    triangle
        The triangle of the matrix that is read.
    corner
        The row and the column of the whole operand at which the matrix, a view, begins.
    flipped
        The matrix is the transpose of the caller's; errors name places in the caller's.
    upper
        Whether the adjoint or the transpose of an upper triangle is read, or it is as it is stored.
    """

    matrix: StoredMatrix
    name: str
    check_finite: bool = True
    triangle: Triangle = None
    corner: tuple[int, int] = (0, 0)
    upper: Literal["adjoint", "transpose", "stored"] = "adjoint"
    flipped: bool = False
    error: Exception | None = field(default=None, init=False)

    @cached_property
    def trans(self) -> bool:
        """Whether the stored matrix is the transpose."""
        return self.matrix.operand.trans

    @property
    def stored_triangle(self) -> Triangle:
        """The triangle of the stored matrix."""
        if self.triangle is None or not self.trans:
            return self.triangle
        return "upper" if self.triangle == "lower" else "lower"

    def strips(self, part: Part) -> Strips:
        """Return the strips that the ranks read."""
        stored = self.matrix.operand.matrix
        return Strips.of(
            stored.shape,
            part.a.itemsize,
            part.grid.size,
            chunk=stored.chunk,
            triangle=self.stored_triangle,
        )

    def load(self, part: Part, first: int = 0, top: int = 0) -> None:
        """Read the matrix into the columns of a part from `first` on, and its rows from `top` on.

        Raises
        ------
        NotFiniteError
            On all ranks, with `row` and `col`.
        MatrixIOError
            On all ranks, when one of them cannot read.
        """
        stored = self.matrix.operand.matrix
        flipped = self.triangle == "upper" and self.upper != "stored"

        def read(strip: Rectangle, out: NDArray[Any]) -> None:
            if self.error is not None:
                return
            try:
                stored.read(strip.row, strip.col, out)
            except Exception as error:  # noqa: BLE001 - raised by all ranks, below
                self.error = error

        def finish(strip: Rectangle, array: NDArray[Any]) -> None:
            if self.error is not None:
                return
            try:
                self._check(strip, array)
            except NotFiniteError as error:
                self.error = error
            if flipped and self.upper == "adjoint" and array.dtype.kind == "c":
                np.conj(array, out=array)

        place = Place(part, first, self.trans != flipped, top)
        scatter(self.strips(part), place, read, finish, stored.phase)
        with together(part.grid):
            if self.error is not None:
                raise self.error

    def _check(self, strip: Rectangle, array: NDArray[Any]) -> None:
        """Raise at the first element of a strip that is not finite."""
        if not self.check_finite or np.isfinite(array).all():
            return
        wrong = ~np.isfinite(array)
        if self.triangle is not None:
            cut = np.tril if self.stored_triangle == "lower" else np.triu
            wrong = cut(wrong, strip.row - strip.col)
        if not wrong.any():
            return
        row, col = (int(place) for place in np.argwhere(wrong)[0])
        value, row, col = array[row, col], strip.row + row, strip.col + col
        row, col = (col, row) if self.trans else (row, col)
        row, col = row + self.corner[0], col + self.corner[1]
        row, col = (col, row) if self.flipped else (row, col)
        raise NotFiniteError(
            f"{self.name} has {value} at row {row}, column {col}: it must not contain infs or NaNs",
            row=row,
            col=col,
        )
