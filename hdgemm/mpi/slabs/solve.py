"""Solutions of systems that are larger than the memory of all ranks.

The factors lie in storage, as the caller's or in a file beside X. Right-hand sides are solved for
in groups of a slab's columns, which are in memory.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.dtypes import ELEMENT_TYPES
from hdgemm.durable.place import ResultPlace
from hdgemm.fortran import SingularMatrixError
from hdgemm.matrices.location import Location
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.mpi._operands import Loader
from hdgemm.mpi._part import Part
from hdgemm.mpi._results import new_target
from hdgemm.mpi._run import refuse_zero
from hdgemm.mpi._substitution import interchange_rows
from hdgemm.mpi.processes import together
from hdgemm.mpi.slabs._run import open_factors, refuse, stored_operand
from hdgemm.mpi.slabs._streamed import stream_part
from hdgemm.mpi.slabs._substitution import TriangularFactor, substitute, substitute_adjoint
from hdgemm.mpi.slabs.cholesky import CholeskyRun
from hdgemm.mpi.slabs.lu import LuRun
from hdgemm.mpi.slabs.plan import stream_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from hdgemm.mpi._run import Opened, Run
    from hdgemm.mpi.slabs.checkpoint import DurableFactors

    #: Overwrites right-hand sides by X, with memory for a block of the factor's columns.
    Substitution = Callable[[Part, Part], None]


def solve_by_slabs(opened: Opened, place: Location, *, restart: bool) -> tuple[Any, float]:
    """Store X in a new file, by LU factors in a file beside it; return it, and the operations.

    The file of the factors is removed when X has its name.
    """
    with ExitStack() as stack:
        how = {"pivoting": opened.run.pivoting}
        factors = open_factors(opened, factors_beside(place), how, stack, restart=restart)
        work = LuRun.begun(opened, factors, stack)
        flops = work.factor(partial(_refuse_zero, factors))
        found = _solved(opened, place, work.slabs.width, work.solve)
        _discard(factors)
    return found, ELEMENT_TYPES[opened.run.dtype.name].flops * flops


def solve_positive_by_slabs(
    opened: Opened, place: Location, *, lower: bool, restart: bool
) -> tuple[Any, float]:
    """Do as `solve_by_slabs` by Cholesky; `lower` names the triangle of A that is read."""
    with ExitStack() as stack:
        how, beside = {"lower": lower}, factors_beside(place)
        factors = open_factors(opened, beside, how, stack, restart=restart)
        work = CholeskyRun.of_triangle(opened, factors, stack, lower=lower)
        flops, width = work.factor(), work.slabs.width
        work.block = None  # its memory is needed for the solution
        found = _solved(
            opened, place, width, partial(_by_cholesky, opened.run, factors.stored, True)
        )
        _discard(factors)
    return found, ELEMENT_TYPES[opened.run.dtype.name].flops * flops


def cho_solve_by_slabs(opened: Opened, place: Location, *, lower: bool) -> Any:
    """Store X in a new file, by a Cholesky factor in storage."""
    solve = partial(_by_cholesky, opened.run, stored_operand(opened.a), lower)
    return _solved(opened, place, _width(opened), solve)


def lu_solve_by_slabs(
    opened: Opened, place: Location, pivots: Mapping[int, NDArray[np.int64]]
) -> Any:
    """Store X in a new file, by LU factors in storage, and interchanges by panel."""
    solve = partial(_by_lu, opened.run, stored_operand(opened.a), pivots)
    return _solved(opened, place, _width(opened), solve)


def factors_beside(place: Location) -> Location:
    """Return the place of the factors that lead to a solution."""
    return Location(ResultPlace.aside(place, (1, 1), np.dtype("f8")).work(".lu.npy"))


def _discard(factors: DurableFactors) -> None:
    """Remove the file of the factors, and its journal."""
    with together(factors.world):
        if factors.checkpoint is not None:
            factors.checkpoint.discard()


def _width(opened: Opened) -> int:
    """Return the columns of B that are solved for at a time."""
    return opened.run.columns if opened.slabs is None else opened.slabs.width


def _solved(opened: Opened, place: Location, width: int, solve: Substitution) -> Any:
    """Store X in a new file, by groups of columns."""
    run, b = opened.run, stored_operand(opened.columns)
    width = max(1, min(width, run.columns))
    with new_target(run.world, place, (run.variant.n, run.columns), run.dtype) as target:
        x = StoredMatrix(target.operand, writable=True)
        whole = Part.allocate(run.variant, run.world, width, run.dtype)
        block = stream_part(whole, stream_columns(run.variant, run.dtype.itemsize))
        for first in range(0, run.columns, width):
            last = min(first + width, run.columns)
            cols = replace(whole.cols, extent=last - first)
            part = replace(whole, a=whole.a[:, : cols.count], cols=cols)
            with run.recorder.record("read", first):
                Loader(b[:, first:last], "b", run.check_finite, corner=(0, first)).load(part)
            solve(part, block)
            with run.recorder.record("write", first):
                replace(target, operand=x[:, first:last].operand).store(part)
        opened.check_unchanged()
        target.publish()
    return target.result()


def _by_cholesky(run: Run, c: StoredMatrix, lower: bool, part: Part, block: Part) -> None:
    """Solve with L·L^H, or with U^H·U.

    Of a row-major U, the columns of U^T lie together: U^T·(U^T)^H is the conjugate of A.
    """
    flipped = not lower and c.order == "C"
    if flipped:
        np.conj(part.a, out=part.a)
    triangle, lower = (c.T, True) if flipped else (c, lower)
    factor = TriangularFactor(
        triangle, block, lower=lower, check_finite=run.check_finite, flipped=flipped
    )
    first, second = substitute, substitute_adjoint
    if not lower:
        first, second = second, first
    with run.recorder.record("solve", 0):
        first(factor, part)
        _refuse_zeros(run, factor)
        second(TriangularFactor(triangle, block, lower=lower), part)  # all elements were checked
    if flipped:
        np.conj(part.a, out=part.a)


def _by_lu(
    run: Run,
    lu: StoredMatrix,
    pivots: Mapping[int, NDArray[np.int64]],
    part: Part,
    block: Part,
) -> None:
    """Solve with factors whose rows all interchanges were applied to."""
    below, above = (
        TriangularFactor(lu, block, lower=each, unit=each, check_finite=run.check_finite)
        for each in (True, False)
    )
    with run.recorder.record("solve", 0):
        interchange_rows(part, part.a, pivots)
        substitute(below, part)
        substitute(above, part)
        _refuse_zeros(run, above)


def _refuse_zeros(run: Run, factor: TriangularFactor) -> None:
    """Raise on all ranks for the first zero on the diagonal of a factor."""
    n = run.variant.n
    first = -run.world.largest(-float(factor.zero or n + 1))
    refuse_zero(run, int(first) if first <= n else 0)


def _refuse_zero(factors: DurableFactors, zero: int) -> None:
    """Raise on all ranks at a zero pivot, and forget the run."""
    refuse(factors, SingularMatrixError.of_pivot(zero) if zero else None)
