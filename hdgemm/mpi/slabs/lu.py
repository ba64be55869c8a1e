"""LU factorisations by slabs over MPI."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdgemm.dtypes import ELEMENT_TYPES
from hdgemm.fortran import elimination_pairs
from hdgemm.mpi._operands import Loader
from hdgemm.mpi._run import PIVOTINGS
from hdgemm.mpi._substitution import interchange_strip
from hdgemm.mpi.processes import together
from hdgemm.mpi.slabs._elimination import SlabElimination, StoredFactors
from hdgemm.mpi.slabs._run import Companions, Eliminated, SlabRun, open_factors, stored_operand
from hdgemm.mpi.slabs._substitution import TriangularFactor, substitute
from hdgemm.product.target import result_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.location import Location
    from hdgemm.mpi._part import Part
    from hdgemm.mpi._run import Opened, Run


@dataclass
class LuRun(SlabRun):
    """One LU by slabs; parameters as for `SlabRun`."""

    #: Finished columns, with memory for a block of them; made with the first slab.
    stored: StoredFactors | None = None

    @classmethod
    def _strip(cls, run: Run, width: int) -> int:
        return run.strip(width)

    def _load(self, part: Part, span: tuple[int, int]) -> None:
        run, (first, last) = self.opened.run, span
        a = stored_operand(self.opened.a)[:, first:last]
        Loader(a, "a", run.check_finite, corner=(0, first)).load(part)

    def _eliminate(self, part: Part, span: tuple[int, int]) -> Eliminated:
        first, last = span
        if self.stored is None:
            block, pivots = self.stream(part), self.factors.state.pivots
            self.stored = StoredFactors(self.factors.stored, block, pivots)
        found = self._applied(part, span, self.stored)
        zeros = np.flatnonzero(found.diagonal[first:last] == 0)
        own = {at: rows for at, rows in found.pivots.items() if at >= first}
        return Eliminated(own, first + int(zeros[0]) + 1 if zeros.size else 0)

    def _pairs(self, done: int) -> float:
        n = self.slabs.n
        return elimination_pairs(n, n) - elimination_pairs(n, n, done)

    def solve(self, part: Part, block: Part) -> None:
        """Replace the columns of a part, right-hand sides, by A⁻¹·B, with memory for a block."""
        n, run, lu = self.slabs.n, self.opened.run, self.factors.stored
        self.stored = None  # its memory is needed for the solution
        self._applied(part, (n, n), StoredFactors(lu, block, self.factors.state.pivots))
        with run.recorder.record("solve", 0):
            substitute(TriangularFactor(lu, block, lower=False), part)

    def finish(self, pivots: NDArray[np.int64]) -> None:
        """Apply to the rows of L the interchanges of later panels."""
        run, nb = self.opened.run, self.opened.run.variant.nb
        with run.recorder.record("write", 0):
            self.factors.replace(partial(interchange_strip, pivots, nb))

    def _applied(self, part: Part, span: tuple[int, int], stored: StoredFactors) -> SlabElimination:
        run = self.opened.run
        with run.window() as window:
            elimination = SlabElimination(
                run.variant, part, window, run.recorder, span, stored, PIVOTINGS[run.pivoting]
            )
            elimination.run()
        return elimination


class Factored(NamedTuple):
    """Factors in their file, pivots, the 1-based index of the first zero pivot, and operations."""

    lu: Any
    pivots: NDArray[np.int64]
    zero: int
    flops: float


def factor_by_slabs(opened: Opened, place: Location, *, restart: bool) -> Factored:
    """Factor A by slabs into a new file, which appears when it is complete."""
    run, flops = opened.run, 0.0
    with ExitStack() as stack:
        how = {"pivoting": run.pivoting}
        factors = open_factors(opened, place, how, stack, restart=restart)
        with together(run.world):
            beside = stack.enter_context(Companions("lu", factors, opened, place))
        if not factors.state.finished:
            work = LuRun.begun(opened, factors, stack, last=True)
            flops = work.factor()
            opened.check_unchanged()
            work.finish(factors.state.whole_pivots)
        pivots, zero = factors.state.whole_pivots, factors.state.zero
        with together(run.world):
            beside.publish({"piv": pivots})
    with together(run.world):
        lu = result_at(place)
    return Factored(lu, pivots, zero, ELEMENT_TYPES[run.dtype.name].flops * flops)
