"""LU factors for the duration of one call: in scratch files beside A, or in arrays."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg.factored_solve import by_lu, open_lu
from hdgemm.linalg.lu import factor
from hdgemm.linalg.operands import open_matrix
from hdgemm.linalg.run import folder_of
from hdgemm.linalg.slab_journal import Command
from hdgemm.matrices.stores import create_scratch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.linalg.checkpoint import SlabCheckpoint
    from hdgemm.linalg.run import OpenRun, Run
    from hdgemm.linalg.slab_plan import SlabPlan
    from hdgemm.linalg.solution import ColumnSolver
    from hdgemm.matrices.draft import Draft
    from hdgemm.matrices.stored import StoredMatrix

#: Order of the diagonal blocks in which a diagonal is read.
_BLOCK: Final = 64


class Factors(NamedTuple):
    """LU factors, their pivots, and the 1-based index of the first zero pivot, 0 without one."""

    lu: StoredMatrix
    pivots: NDArray[np.int64]
    zero: int

    def solver(self, code: str) -> ColumnSolver:
        """Return what solves with A (code N), its transpose (T) or conjugate transpose (C).

        Raises
        ------
        SingularMatrixError
            When a pivot is exactly zero.
        """
        if self.zero:
            raise SingularMatrixError(
                f"a is singular: pivot {self.zero} is exactly zero", order=self.zero
            )
        return by_lu(self.lu, self.pivots, code)


@contextmanager
def lu_factors(
    a: Any,
    run: Run | OpenRun,
    *,
    overwrite_a: bool = False,
    check_finite: bool = True,
    checkpoint: SlabCheckpoint | None = None,
    name: str = "lu",
    plan: SlabPlan | None = None,
) -> Iterator[Factors]:
    """Yield the LU factors of a matrix, which end with the context, or those that are given.

    Parameters
    ----------
    checkpoint
        The durable run that needs them: the factors are kept until it has ended.
    name
        Tells factors of one run from each other.
    plan
        Of factors that stay in memory; None for a scratch file, where A is in a file.
    """
    if isinstance(a, tuple):
        yield _given(a)
        return
    with (
        open_matrix(a) as source,
        nullcontext()
        if plan is not None
        else scratch_file(
            source, overwrite_a=overwrite_a, checkpoint=checkpoint, name=name
        ) as place,
    ):
        lu, pivots, zero = factor(
            a, place, run, overwrite_a=overwrite_a, check_finite=check_finite,
            command=Command("lu_factor", {}, checkpoint is not None), plan=plan,
        )  # fmt: skip
        with open_matrix(lu) as matrix:
            yield Factors(matrix, pivots, zero)


def _given(lu_and_piv: tuple[Any, ...]) -> Factors:
    matrix, pivots = open_lu(lu_and_piv)
    zeros = np.flatnonzero(diagonal(matrix) == 0)
    return Factors(matrix, pivots, int(zeros[0]) + 1 if zeros.size else 0)


def diagonal(matrix: StoredMatrix) -> NDArray[Any]:
    """Read the diagonal of a square matrix, by small blocks."""
    n = matrix.shape[0]
    found: NDArray[Any] = np.empty(n, matrix.dtype.newbyteorder("="))
    for first in range(0, n, _BLOCK):
        part = slice(first, first + _BLOCK)
        found[part] = np.diagonal(matrix[part, part].read())
    return found


@contextmanager
def scratch_file(
    source: StoredMatrix,
    *,
    overwrite_a: bool,
    checkpoint: SlabCheckpoint | None = None,
    name: str = "lu",
    order: str = "F",
    sparse: bool = False,
) -> Iterator[Draft[Any] | Path | None]:
    """Yield a file for factors: beside A or, for a durable run, beside its output.

    None says that they go into memory, or in place of A.
    """
    folder = folder_of(source)
    if overwrite_a and folder is not None:
        yield None
    elif checkpoint is not None:
        yield checkpoint.destination.work(f".{name}.npy")
    elif folder is None:
        yield None
    else:
        dtype = source.dtype.newbyteorder("=")
        with create_scratch(folder, source.shape, dtype, order, sparse=sparse) as draft:
            yield draft
