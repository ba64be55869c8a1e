"""LU and solutions by slabs over MPI."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdgemm.dtypes import ELEMENT_TYPES
from hdgemm.durable.place import ResultPlace
from hdgemm.fortran import SingularMatrixError, elimination_pairs
from hdgemm.matrices.location import Location
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.mpi._operands import Loader
from hdgemm.mpi._results import new_target
from hdgemm.mpi._run import PIVOTINGS
from hdgemm.mpi._substitution import interchange_strip
from hdgemm.mpi.processes import together
from hdgemm.mpi.slabs._elimination import SlabElimination, StoredFactors, back_substitute
from hdgemm.mpi.slabs._run import Companions, Eliminated, SlabRun, refuse, stored_operand
from hdgemm.mpi.slabs.checkpoint import DurableFactors, SlabCall
from hdgemm.product.target import result_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
            self.stored = self._stored(part)
        found = self._applied(part, span, self.stored)
        zeros = np.flatnonzero(found.diagonal[first:last] == 0)
        own = {at: rows for at, rows in found.pivots.items() if at >= first}
        return Eliminated(own, first + int(zeros[0]) + 1 if zeros.size else 0)

    def _pairs(self, done: int) -> float:
        n = self.slabs.n
        return elimination_pairs(n, n) - elimination_pairs(n, n, done)

    def solve(self, part: Part) -> None:
        """Replace the columns of a part, right-hand sides, by A⁻¹·B."""
        n, run = self.slabs.n, self.opened.run
        stored = self._stored(part)
        self._applied(part, (n, n), stored)
        with run.recorder.record("solve", 0):
            back_substitute(stored, part)

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

    def _stored(self, part: Part) -> StoredFactors:
        return StoredFactors(self.factors.stored, self.stream(part), self.factors.state.pivots)


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
        factors = DurableFactors.open(run.world, _call(opened, place, restart=restart), stack)
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


def solve_by_slabs(opened: Opened, place: Location, *, restart: bool) -> tuple[Any, float]:
    """Store X in a new file, by factors in a file beside it; return it, and the operations.

    The file of the factors is removed when X has its name.
    """
    run, n, b = opened.run, opened.run.variant.n, stored_operand(opened.columns)
    with ExitStack() as stack:
        where = factors_beside(place)
        factors = DurableFactors.open(run.world, _call(opened, where, restart=restart), stack)
        work = LuRun.begun(opened, factors, stack)
        flops = work.factor(partial(_refuse_zero, factors))
        width = work.slabs.width
        with new_target(run.world, place, (n, run.columns), run.dtype) as target:
            x = StoredMatrix(target.operand, writable=True)
            for first in range(0, run.columns, width):
                last = min(first + width, run.columns)
                part = work.memory(last - first)
                with run.recorder.record("read", first):
                    Loader(b[:, first:last], "b", run.check_finite, corner=(0, first)).load(part)
                work.solve(part)
                with run.recorder.record("write", first):
                    replace(target, operand=x[:, first:last].operand).store(part)
            opened.check_unchanged()
            target.publish()
        found = target.result()
        with together(run.world):
            if factors.checkpoint is not None:
                factors.checkpoint.discard()
    return found, ELEMENT_TYPES[run.dtype.name].flops * flops


def factors_beside(place: Location) -> Location:
    """Return the place of the factors that lead to a solution."""
    return Location(ResultPlace.aside(place, (1, 1), np.dtype("f8")).work(".lu.npy"))


def _call(opened: Opened, place: Location, *, restart: bool) -> SlabCall:
    run = opened.run
    a, how = stored_operand(opened.a), {"pivoting": run.pivoting}
    return SlabCall(run.kind, a, place, run.dtype, run.variant, how, restart=restart)


def _refuse_zero(factors: DurableFactors, zero: int) -> None:
    """Raise on all ranks at a zero pivot, and forget the run."""
    text = f"a is singular: pivot {zero} is exactly zero"
    refuse(factors, SingularMatrixError(text, order=zero) if zero else None)
