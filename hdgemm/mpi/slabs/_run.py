"""Factorisations by slabs over MPI: a durable step for each slab, resumed by the same command."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from hdgemm.errors import DoesNotFitError, HdgemmError, InputError
from hdgemm.linalg.storage import OpenOutput
from hdgemm.linalg.stored_factors import reserve_beside, save_factors
from hdgemm.matrices.companions import CompanionFiles
from hdgemm.mpi._block_cyclic import BlockCyclicArray
from hdgemm.mpi._part import Part
from hdgemm.mpi.processes import together
from hdgemm.mpi.slabs._streamed import stream_part
from hdgemm.mpi.slabs.checkpoint import DurableFactors, SlabCall
from hdgemm.mpi.slabs.plan import Slabs, slab_bytes, stream_columns, strip_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from numpy.typing import NDArray

    from hdgemm.matrices.location import Location
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.mpi._run import Opened, Run


class Eliminated(NamedTuple):
    """What is recorded of a slab: interchanges by panel, 1-based index of the first zero pivot."""

    pivots: Mapping[int, NDArray[np.int64]]
    zero: int = 0


@dataclass
class SlabRun:
    """One factorisation by slabs: the file of the factor, and memory for slabs and their streams.

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
        cls, opened: Opened, factors: DurableFactors, stack: ExitStack, *, last: bool = False
    ) -> Self:
        """Record the plan, or take the earlier run's; `last`: a pass will overwrite the file."""
        run, state = opened.run, factors.state
        slabs, plan = _slabs(opened, factors), state.plan
        if not plan:
            plan = {"width": slabs.width, "strip": cls._strip(run, slabs.width)}
        else:
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
        """Factor the slabs that are missing; return the pairs of operations.

        `check` is called with the 1-based index of the first zero pivot, 0 without one.
        """
        run, factors, slabs = self.opened.run, self.factors, self.slabs
        done = slabs.spans[factors.state.slabs - 1][1] if factors.state.slabs else 0
        check(factors.state.zero)
        whole = self.memory(slabs.width)
        for number, (first, last) in list(enumerate(slabs.spans))[factors.state.slabs :]:
            cols = replace(whole.cols, extent=last - first)
            part = replace(whole, a=whole.a[:, : cols.count], cols=cols)
            with run.recorder.record("read", first):
                self._load(part, (first, last))
            found = self._eliminate(part, (first, last))
            zero = factors.state.zero or found.zero
            with run.recorder.record("write", first):
                factors.store(part, number, first, found.pivots, zero)
            check(zero)
        return self._pairs(done)

    @classmethod
    def _strip(cls, run: Run, width: int) -> int:
        """Return the columns that a device updates at a time, of a slab of so many."""
        raise NotImplementedError

    def _load(self, part: Part, span: tuple[int, int]) -> None:
        """Read the columns of A that a slab has."""
        raise NotImplementedError

    def _eliminate(self, part: Part, span: tuple[int, int]) -> Eliminated:
        """Update a slab by the columns left of it, and factor it."""
        raise NotImplementedError

    def _pairs(self, done: int) -> float:
        """Return the pairs of operations for all columns after the first `done` ones."""
        raise NotImplementedError

    def memory(self, columns: int) -> Part:
        """Return memory for so many columns."""
        run = self.opened.run
        return Part.allocate(run.variant, run.world, columns, run.dtype)

    def stream(self, part: Part) -> Part:
        """Return memory beside a part for a block of stored columns."""
        return stream_part(part, stream_columns(self.opened.run.variant, part.a.itemsize))


class Companions:
    """Files beside the factor, on rank 0; a context manager. Other ranks do nothing.

    Disk space for them is taken at once, before the factorisation.

    Parameters
    ----------
    kind
        Of the factorisation.
    """

    def __init__(self, kind: str, factors: DurableFactors, opened: Opened, place: Location) -> None:
        self._kind, self._journal, self._stack = kind, factors.checkpoint, ExitStack()
        if self._journal is None:
            return
        with ExitStack() as stack:
            companions = stack.enter_context(CompanionFiles())
            companions.beside = place.path.resolve()
            self._target = OpenOutput(factors.stored, None, place, new=True, companions=companions)
            reserve_beside(self._target, kind, opened.a, np.dtype(np.int64).itemsize)
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

    def publish(self, arrays: Mapping[str, NDArray[Any]], **facts: Any) -> None:
        """Give the factor its name, and then the files beside it; forget the finished run."""
        if self._journal is not None:
            save_factors(self._target, self._kind, arrays, **facts)
            self._journal.finish()
            self._stack.close()
            self._journal.discard()


def open_factors(
    opened: Opened,
    place: Location,
    how: Mapping[str, object],
    stack: ExitStack,
    *,
    restart: bool,
    flipped: bool = False,
) -> DurableFactors:
    """Open the file of the factors and its journal; the report counts slabs of an earlier run.

    `how` are the arguments that an earlier run must share, `flipped` as in `SlabCall`.
    """
    run, a = opened.run, stored_operand(opened.a)
    call = SlabCall(run.kind, a, place, run.dtype, run.variant, how, flipped, restart)
    factors = DurableFactors.open(run.world, call, stack)
    run.slabs, run.kept_slabs = len(_slabs(opened, factors).spans), factors.state.slabs
    return factors


def _slabs(opened: Opened, factors: DurableFactors) -> Slabs:
    """Return the slabs of the earlier run, or those that fit."""
    n, earlier = opened.run.variant.n, factors.state.plan
    return Slabs(n, earlier["width"]) if earlier else opened.slabs or Slabs(n, n)


def refuse(factors: DurableFactors, error: HdgemmError | None) -> None:
    """Raise an error that all ranks have, and forget the run first: to go on would fail again."""
    with together(factors.world):
        if error is not None and factors.checkpoint is not None:
            factors.checkpoint.discard()
    with together(factors.world):
        if error is not None:
            raise error


def stored_operand(matrix: StoredMatrix | BlockCyclicArray) -> StoredMatrix:
    """Return a matrix in storage; others are never computed with by slabs."""
    if isinstance(matrix, BlockCyclicArray):
        raise InputError(f"{matrix} is in memory: slabs are read from storage")
    return matrix
