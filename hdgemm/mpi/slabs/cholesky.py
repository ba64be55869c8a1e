"""Cholesky factorisations by slabs over MPI.

L is computed by slabs of its columns. For an upper triangle the transpose of A is factored, which
is its conjugate: the columns of its L are rows of U.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from hdgemm.dtypes import ELEMENT_TYPES
from hdgemm.fortran import cholesky_pairs
from hdgemm.mpi._operands import Loader
from hdgemm.mpi.processes import together
from hdgemm.mpi.slabs._cholesky_elimination import SlabCholesky, StoredTriangle
from hdgemm.mpi.slabs._run import (
    Companions,
    Eliminated,
    SlabRun,
    open_factors,
    refuse,
    stored_operand,
)
from hdgemm.product.target import result_at
from hdgemm.tasks.kernels import not_positive_definite

if TYPE_CHECKING:
    from hdgemm.matrices.location import Location
    from hdgemm.mpi._part import Part
    from hdgemm.mpi._run import Opened, Run
    from hdgemm.mpi._strips import Triangle
    from hdgemm.mpi.slabs.checkpoint import DurableFactors


class CholeskyRun(SlabRun):
    """One Cholesky factorisation by slabs; parameters as for `SlabRun`."""

    #: Memory for a block of finished columns; made with the first slab.
    block: Part | None = None
    #: The upper triangle of A is read.
    upper = False

    @classmethod
    def of_triangle(
        cls, opened: Opened, factors: DurableFactors, stack: ExitStack, *, lower: bool
    ) -> Self:
        """Do as `begun` for a matrix of which one triangle is stored."""
        run = cls.begun(opened, factors, stack)
        run.upper = not lower
        return run

    @classmethod
    def _strip(cls, run: Run, width: int) -> int:
        return max(run.variant.nb, width // (32 * run.variant.grid[1]))

    def _load(self, part: Part, span: tuple[int, int]) -> None:
        """Read the columns from their diagonal on; the rest of the slab is zero."""
        run, (first, last), upper = self.opened.run, span, self.upper
        part.a[:] = 0  # updates compute with elements above the diagonal, too
        a = stored_operand(self.opened.a)
        view = a[first:last, first:] if upper else a[first:, first:last]
        triangle: Triangle = "upper" if upper else "lower"
        # The transpose of A has a factor whose columns are the rows of U.
        how: Literal["adjoint", "transpose"] = "transpose" if self.factors.flipped else "adjoint"
        loader = Loader(view, "a", run.check_finite, triangle, (first, first), how)
        loader.load(part, top=first)

    def _eliminate(self, part: Part, span: tuple[int, int]) -> Eliminated:
        run, first = self.opened.run, span[0]
        if self.block is None:
            self.block = self.stream(part)
        stored = StoredTriangle(self.factors.factor, self.block, first)
        with run.window() as window:
            elimination = SlabCholesky(run.variant, part, window, run.recorder, span, stored)
            elimination.run()
        order = elimination.order
        refuse(self.factors, not_positive_definite(order) if order else None)
        for at, col in enumerate(part.cols.positions()):
            part.a[: part.rows.below(first + int(col)), at] = 0
        return Eliminated({})

    def _pairs(self, done: int) -> float:
        n = self.slabs.n
        return cholesky_pairs(n, n) - cholesky_pairs(n, done)


class Factored(NamedTuple):
    """The factor in its file, and operations."""

    factor: Any
    flops: float


def cholesky_by_slabs(opened: Opened, place: Location, *, lower: bool, restart: bool) -> Factored:
    """Factor A by slabs into a new file, which appears when it is complete."""
    run, flops = opened.run, 0.0
    with ExitStack() as stack:
        how = {"lower": lower}
        factors = open_factors(opened, place, how, stack, restart=restart, flipped=not lower)
        with together(run.world):
            beside = stack.enter_context(Companions("cholesky", factors, opened, place))
        if not factors.state.finished:
            work = CholeskyRun.of_triangle(opened, factors, stack, lower=lower)
            flops = work.factor()
            opened.check_unchanged()
        with together(run.world):
            beside.publish({}, lower=lower)
    with together(run.world):
        found = result_at(place)
    return Factored(found, ELEMENT_TYPES[run.dtype.name].flops * flops)
