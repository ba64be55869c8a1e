"""LU and solutions by slabs over MPI: a durable step for each slab, resumed by the same command."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from hdgemm.dtypes import ELEMENT_TYPES
from hdgemm.durable.place import ResultPlace
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.fortran import SingularMatrixError, elimination_pairs
from hdgemm.linalg.storage import OpenOutput
from hdgemm.linalg.stored_factors import reserve_beside, save_factors
from hdgemm.matrices.companions import CompanionFiles
from hdgemm.matrices.location import Location
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.mpi._block_cyclic import BlockCyclicArray
from hdgemm.mpi._operands import Loader
from hdgemm.mpi._part import Part
from hdgemm.mpi._results import new_target
from hdgemm.mpi._run import PIVOTINGS
from hdgemm.mpi._substitution import interchange_strip
from hdgemm.mpi.processes import together
from hdgemm.mpi.slabs._elimination import (
    SlabElimination,
    StoredFactors,
    back_substitute,
    stream_part,
)
from hdgemm.mpi.slabs.checkpoint import DurableFactors, SlabCall
from hdgemm.mpi.slabs.plan import Slabs, slab_bytes, stream_columns, strip_bytes
from hdgemm.product.target import result_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from numpy.typing import NDArray

    from hdgemm.mpi._run import Opened


@dataclass
class SlabRun:
    """One LU by slabs: the file of the factors, and memory for a slab and for blocks that stream.

    Parameters
    ----------
    opened
        The run, with A in storage.
    factors
        The file and its journal.
    slabs
        The slabs: the earlier run's, if there is one.
    """

    opened: Opened
    factors: DurableFactors
    slabs: Slabs

    @classmethod
    def begun(
        cls, opened: Opened, factors: DurableFactors, stack: ExitStack, *, last: bool
    ) -> SlabRun:
        """Record the plan, or take the earlier run's; `last`: a pass will overwrite the file."""
        run, state = opened.run, factors.state
        slabs = opened.slabs or Slabs(run.variant.n, run.variant.n)
        plan = {"width": slabs.width, "strip": run.strip(slabs.width)}
        if state.plan:
            slabs, plan = Slabs(slabs.n, state.plan["width"]), state.plan
            with together(run.world):
                need = slab_bytes(run.variant, slabs.width, run.dtype.itemsize)
                if need > opened.limit:
                    what = f"each rank for the slabs of {slabs.width} columns of the earlier run"
                    raise DoesNotFitError.within(what, need, opened.limit)
        run.variant = replace(run.variant, strip=plan["strip"])
        widest = strip_bytes(slabs.n, slabs.width, run.world.size, run.dtype.itemsize)
        factors.begin(plan, widest if last else 0, stack)
        return cls(opened, factors, slabs)

    def factor(self, check: Callable[[int], None] = lambda _zero: None) -> float:
        """Factor the slabs that are missing; return the operations.

        `check` is called with the 1-based index of the first zero pivot, 0 without one.
        """
        run, factors, (slabs, state) = (
            self.opened.run,
            self.factors,
            (self.slabs, self.factors.state),
        )
        check(state.zero)
        whole = self.memory(slabs.width)
        stored = self._stored(whole)
        for number, (first, last) in list(enumerate(slabs.spans))[state.slabs :]:
            part = _narrowed(whole, last - first)
            with run.recorder.record("read", first):
                a = stored_operand(self.opened.a)[:, first:last]
                Loader(a, "a", run.check_finite, corner=(0, first)).load(part)
            found = self._eliminate(part, (first, last), stored)
            zeros = np.flatnonzero(found.diagonal[first:last] == 0)
            zero = factors.state.zero or (first + int(zeros[0]) + 1 if zeros.size else 0)
            own = {at: rows for at, rows in found.pivots.items() if at >= first}
            with run.recorder.record("write", first):
                factors.store(part, number, first, own, zero)
            check(zero)
        done = slabs.spans[state.slabs - 1][1] if state.slabs else 0
        n = slabs.n
        return elimination_pairs(n, n) - elimination_pairs(n, n, done)

    def solve(self, part: Part) -> None:
        """Replace the columns of a part, right-hand sides, by A⁻¹·B."""
        n, run = self.slabs.n, self.opened.run
        stored = self._stored(part)
        self._eliminate(part, (n, n), stored)
        with run.recorder.record("solve", 0):
            back_substitute(stored, part)

    def finish(self, pivots: NDArray[np.int64]) -> None:
        """Apply to the rows of L the interchanges of later panels."""
        run, nb = self.opened.run, self.opened.run.variant.nb
        with run.recorder.record("write", 0):
            self.factors.replace(partial(interchange_strip, pivots, nb))

    def _eliminate(
        self, part: Part, span: tuple[int, int], stored: StoredFactors
    ) -> SlabElimination:
        run = self.opened.run
        with run.window() as window:
            elimination = SlabElimination(
                run.variant, part, window, run.recorder, span, stored, PIVOTINGS[run.pivoting]
            )
            elimination.run()
        return elimination

    def memory(self, columns: int) -> Part:
        """Return memory for so many columns."""
        run = self.opened.run
        return Part.allocate(run.variant, run.world, columns, run.dtype)

    def _stored(self, part: Part) -> StoredFactors:
        columns = stream_columns(self.opened.run.variant, part.a.itemsize)
        return StoredFactors(self.factors.lu, stream_part(part, columns), self.factors.state.pivots)


def _narrowed(part: Part, columns: int) -> Part:
    """Return a part of so many of its columns."""
    cols = replace(part.cols, extent=columns)
    return replace(part, a=part.a[:, : cols.count], cols=cols)


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
            beside = stack.enter_context(_Companions(factors, opened, place))
        if not factors.state.finished:
            work = SlabRun.begun(opened, factors, stack, last=True)
            flops = work.factor()
            opened.check_unchanged()
            work.finish(factors.state.whole_pivots)
        pivots, zero = factors.state.whole_pivots, factors.state.zero
        with together(run.world):
            beside.publish(pivots)
    with together(run.world):
        lu = result_at(place)
    return Factored(lu, pivots, zero, ELEMENT_TYPES[run.dtype.name].flops * flops)


class _Companions:
    """Pivots beside the factors, on rank 0; a context manager. Other ranks do nothing.

    Disk space for them is taken at once, before the factorisation.
    """

    def __init__(self, factors: DurableFactors, opened: Opened, place: Location) -> None:
        self._journal, self._stack = factors.checkpoint, ExitStack()
        if self._journal is None:
            return
        with ExitStack() as stack:
            companions = stack.enter_context(CompanionFiles())
            companions.beside = place.path.resolve()
            self._target = OpenOutput(factors.lu, None, place, new=True, companions=companions)
            reserve_beside(self._target, "lu", opened.a, np.dtype(np.int64).itemsize)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def publish(self, pivots: NDArray[np.int64]) -> None:
        """Give the factors their name, and then the pivots; forget the finished run."""
        if self._journal is not None:
            save_factors(self._target, "lu", {"piv": pivots})
            self._journal.finish()
            self._stack.close()
            self._journal.discard()


def solve_by_slabs(opened: Opened, place: Location, *, restart: bool) -> tuple[Any, float]:
    """Store X in a new file, by factors in a file beside it; return it, and the operations.

    The file of the factors is removed when X has its name.
    """
    run, n, b = opened.run, opened.run.variant.n, stored_operand(opened.columns)
    with ExitStack() as stack:
        where = factors_beside(place)
        factors = DurableFactors.open(run.world, _call(opened, where, restart=restart), stack)
        work = SlabRun.begun(opened, factors, stack, last=False)
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


def stored_operand(matrix: StoredMatrix | BlockCyclicArray) -> StoredMatrix:
    """Return a matrix in storage; others are never computed with by slabs."""
    if isinstance(matrix, BlockCyclicArray):
        raise InputError(f"{matrix} is in memory: slabs are read from storage")
    return matrix


def _call(opened: Opened, place: Location, *, restart: bool) -> SlabCall:
    run = opened.run
    a, variant = stored_operand(opened.a), run.variant
    return SlabCall(run.kind, a, place, run.dtype, variant.grid, variant.nb, run.pivoting, restart)


def _refuse_zero(factors: DurableFactors, zero: int) -> None:
    """Raise on all ranks at a zero pivot, and forget the run: to go on would fail again."""
    with together(factors.world):
        if zero and factors.checkpoint is not None:
            factors.checkpoint.discard()
    with together(factors.world):
        if zero:
            raise SingularMatrixError(f"a is singular: pivot {zero} is exactly zero", order=zero)
