"""One distributed computation: processes, distribution, devices, memory and the factorisation."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict

import numpy as np

from hdgemm.call.operands import check_square, open_columns, open_square
from hdgemm.errors import DoesNotFitError, InputError, InputTypeError
from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg.planning.solve import SINGLE
from hdgemm.matrices.fingerprint import unchanged
from hdgemm.matrices.planned import PlannedMatrix
from hdgemm.mpi._block_cyclic import BlockCyclicArray, check_finite, common_layout
from hdgemm.mpi._cholesky_elimination import CholeskyElimination
from hdgemm.mpi._elimination import Elimination
from hdgemm.mpi._operands import Loader, prove_same
from hdgemm.mpi._panel import factor_panel
from hdgemm.mpi._part import Part
from hdgemm.mpi._redistribution import BUFFERS
from hdgemm.mpi._timeline import STORED_PHASES, PhaseRecorder, seconds_by_phase
from hdgemm.mpi._tournament import factor_by_tournament
from hdgemm.mpi.communicator import Communicator, Mpi, world as all_processes
from hdgemm.mpi.devices import open_devices
from hdgemm.mpi.machine import check, memory_of_each, needed_bytes
from hdgemm.mpi.processes import end_all, ending_all, threads_of, together
from hdgemm.mpi.report import Report
from hdgemm.mpi.slabs.plan import BySlabs, Slabs, fitting, strip_bytes
from hdgemm.mpi.variant import Variant, parse_grid, squarest
from hdgemm.pipeline.devices.host_blas import blas_threads
from hdgemm.product.arguments import result_dtype
from hdgemm.product.target import is_location
from hdgemm.run.session import check_options
from hdgemm.tasks.kernels import not_positive_definite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.mpi._elimination import PanelFactorisation
    from hdgemm.mpi._strips import Triangle
    from hdgemm.mpi._window import Window
    from hdgemm.mpi.devices import Devices
    from hdgemm.options import Options

#: Columns of right-hand sides that are solved for at a time.
GROUP: Final = 256
#: Rows and columns of a block where none are given.
BLOCK: Final = 192
#: How the pivots of a panel are chosen.
PIVOTINGS: Final[Mapping[str, PanelFactorisation]] = {
    "partial": factor_panel,
    "tournament": factor_by_tournament,
}


def check_pivoting(pivoting: str) -> None:
    """Raise `InputError` for another text than the names of `PIVOTINGS`."""
    if pivoting not in PIVOTINGS:
        raise InputError(f"pivoting must be 'partial' or 'tournament', got {pivoting!r}")


def check_assumed(assume_a: str) -> None:
    """Raise `InputError` for another text than "gen" or "pos"."""
    if assume_a not in ("gen", "pos"):
        raise InputError(f"over MPI, assume_a must be 'gen' or 'pos', got {assume_a!r}")


def refuse_zero(run: Run, zero: int) -> None:
    """Raise `SingularMatrixError` on all ranks for the 1-based index of a zero pivot; 0: none."""
    with together(run.world):
        if zero:
            raise SingularMatrixError.of_pivot(zero)


class MpiKeywords(TypedDict, total=False):
    """Keywords of every distributed call."""

    comm: Any
    grid: tuple[int, int] | str | None
    nb: int | None
    options: Options | None
    report: Callable[[Report], None] | None


@dataclass(frozen=True, slots=True)
class MpiCall:
    """One distributed call as its keywords describe it."""

    comm: Any = None
    grid: tuple[int, int] | str | None = None
    nb: int | None = None
    options: Options | None = None
    report: Callable[[Report], None] | None = None

    @classmethod
    def begin(
        cls, function: str, a: Any, out: Any, keywords: MpiKeywords, refine: str | None = None
    ) -> Self:
        """Describe a call; the arguments on which its first messages depend must be the same."""
        call = cls(**keywords)
        where = "distributed" if isinstance(a, BlockCyclicArray) else "whole"
        target = None if out is None else "given"
        with together(call.world):
            call.world.compare({"function": function, "a": where, "out": target, "refine": refine})
        return call

    @property
    def world(self) -> Communicator:
        """The processes of the call: the caller's, or those that mpiexec started."""
        if self.comm is None:
            return all_processes()
        if isinstance(self.comm, Communicator):
            return self.comm
        if not hasattr(self.comm, "Alltoallv"):
            raise InputTypeError(
                f"comm must be a communicator of mpi4py, got {type(self.comm).__name__}"
            )
        return Mpi(self.comm) if self.comm.size > 1 else Communicator()

    def variant(self, n: int, size: int, layout: tuple[tuple[int, int], int] | None) -> Variant:
        """Return grid and block size for a matrix of order n on so many processes.

        `layout` are grid and block size of operands that are distributed already.
        """
        grid = parse_grid(self.grid) if isinstance(self.grid, str) else self.grid
        nb = self.nb
        if layout is not None:
            if grid not in (None, layout[0]) or nb not in (None, layout[1]):
                raise InputError(
                    f"grid and nb are {layout[0]} and {layout[1]} of the distributed operands, got "
                    f"{grid} and {nb}: leave them out"
                )
            grid, nb = layout
        return Variant(n, BLOCK if nb is None else nb, grid or squarest(size))


@dataclass
class Run:
    """One computation on the processes of a grid.

    Parameters
    ----------
    kind
        Its name in reports.
    world
        The processes of the grid.
    variant, dtype
        Order, distribution, and type of the elements that are computed with.
    columns
        Right-hand sides.
    devices
        Opened.
    check_finite
        NaN and Inf in an operand are errors.
    pivoting
        A key of `PIVOTINGS`.
    slabs, kept_slabs
        Slabs of A, and those that an earlier run had stored; 0 for a matrix in memory.
    """

    kind: str
    world: Communicator
    variant: Variant
    dtype: np.dtype[Any]
    columns: int
    devices: Devices
    check_finite: bool = True
    pivoting: str = "partial"
    slabs: int = 0
    kept_slabs: int = 0
    recorder: PhaseRecorder = field(default_factory=PhaseRecorder)
    began: float = field(default_factory=time.perf_counter)

    def part(self) -> Part:
        """Return memory for this process's part of [A|B]."""
        return Part.allocate(self.variant, self.world, self.variant.n + self.columns, self.dtype)

    def load(
        self,
        part: Part,
        matrix: StoredMatrix | BlockCyclicArray,
        name: str,
        first: int = 0,
        triangle: Triangle = None,
    ) -> None:
        """Read a matrix, or a triangle of it, into the columns from `first` on; see `Loader`."""
        with self.recorder.record("read", first):
            if isinstance(matrix, BlockCyclicArray):
                with together(self.world):
                    if triangle == "upper":
                        raise InputError(
                            f"the lower triangle of a distributed {name} is read: give lower=True"
                        )
                if self.check_finite:
                    check_finite(self.world, matrix, name, triangle)
                matrix.copy_to(part, first, triangle)
                return
            Loader(matrix, name, self.check_finite, triangle).load(part, first)

    def factor(self, part: Part) -> Elimination:
        """Factor A by LU, and apply the interchanges and L⁻¹ to B."""
        strip = self.strip(self.variant.n + self.columns)
        with self.window() as window:
            variant = replace(self.variant, strip=strip)
            factor = PIVOTINGS[self.pivoting]
            elimination = Elimination(variant, part, window, self.recorder, factor=factor)
            elimination.run()
        return elimination

    def strip(self, columns: int) -> int:
        """Return the columns of a strip of so many columns, the same on all processes."""
        updates = int(self.world.largest(len(self.devices.updates)))
        return self.variant.widest_strip(updates, columns)

    def factor_cholesky(self, part: Part) -> None:
        """Factor the lower triangle of A; raises on all ranks where it is not positive definite."""
        with self.window() as window:
            elimination = CholeskyElimination(self.variant, part, window, self.recorder)
            elimination.run()
        with together(self.world):
            if elimination.order:
                raise not_positive_definite(elimination.order)

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Yield a working window with the devices of this process."""
        window = self.devices.window(self.recorder, lambda error: end_all(self.world, error))
        try:
            yield window
        finally:
            window.close()

    def substitute(
        self, part: Part, substitution: Callable[[Part, Any], Any], columns: int | None = None
    ) -> None:
        """Replace B, the columns after A, by the result of a substitution, group by group."""
        n, columns = self.variant.n, self.columns if columns is None else columns
        for first in range(n, n + columns, GROUP):
            last = min(first + GROUP, n + columns)
            own = slice(part.cols.below(first), part.cols.below(last))
            places = part.cols.positions()[own] - first
            right = np.zeros((part.rows.count, last - first), self.dtype, order="F")
            right[:, places] = part.a[:, own]
            with self.recorder.record("solve", first):
                part.row.join(right)
                found = substitution(part, right)
            part.a[:, own] = found[:, places]

    def finish(self, call: MpiCall, flops: float) -> None:
        """Give the caller the report of so many operations."""
        report = self._report(flops)
        if call.report is not None:
            call.report(report)

    def _report(self, flops: float) -> Report:
        found = self.world.collect(seconds_by_phase(self.recorder.events, STORED_PHASES))
        phases = {name: sum(each[name] for each in found) / len(found) for name in found[0]}
        seconds = self.world.largest(time.perf_counter() - self.began)
        variant = self.variant
        return Report(
            self.kind,
            variant.n,
            self.columns,
            self.dtype.name,
            variant.nb,
            variant.grid,
            flops,
            seconds,
            phases,
            self.slabs,
            self.kept_slabs,
        )


@dataclass(frozen=True, slots=True)
class Request:
    """What a distributed call asks for.

    Parameters
    ----------
    kind
        Name of the function.
    a, b
        The square matrix, and the right-hand sides or None, as the caller gave them.
    arguments
        Other arguments, which must be the same on all ranks.
    check_finite
        NaN and Inf are errors.
    refines
        Factors in single precision lie beside a matrix in double precision.
    slabs
        When a matrix in storage is factored by slabs of columns.
    pivoting
        A key of `PIVOTINGS`.
    """

    kind: str
    a: Any
    b: Any = None
    arguments: Mapping[str, object] = field(default_factory=dict)
    check_finite: bool = True
    refines: bool = False
    slabs: BySlabs = BySlabs.NEVER
    pivoting: str = "partial"

    def compared(self, call: MpiCall) -> dict[str, object]:
        """Return what must be the same on all ranks, as plain values."""
        operands = {"a": _shown(self.a), "b": _shown(self.b)}
        own = {"grid": call.grid, "nb": call.nb, "check_finite": self.check_finite}
        own["pivoting"] = self.pivoting
        return {"function": self.kind, **operands, **own, **self.arguments}


@dataclass(frozen=True, slots=True)
class Opened:
    """A run and its operands.

    Parameters
    ----------
    b
        None without right-hand sides.
    vector
        B is one vector.
    check_unchanged
        Raises on all ranks when a file of an operand has changed since the run began.
    slabs
        The slabs by which A is factored; None for a matrix in memory.
    limit
        Bytes that each rank may take, with slabs.
    """

    run: Run
    a: StoredMatrix | BlockCyclicArray
    b: StoredMatrix | BlockCyclicArray | None
    vector: bool
    check_unchanged: Callable[[], None]
    slabs: Slabs | None = None
    limit: int = 0

    @property
    def columns(self) -> StoredMatrix | BlockCyclicArray:
        """B, of a call that has right-hand sides."""
        if self.b is None:
            raise InputError("b must be a matrix, got None")
        return self.b


@contextmanager
def started(request: Request, call: MpiCall) -> Iterator[Opened | None]:
    """Yield a computation on all processes of the grid, with its operands opened; None on others.

    Errors that every process finds are raised by all; another error ends all processes.

    Raises
    ------
    InputError
        When ranks have different arguments or versions, or see different matrices.
    DoesNotFitError
        When a machine lacks memory for its part: `missing` in bytes.
    """
    world, options = call.world, check_options(call.options)
    with together(world):
        world.compare(request.compared(call))
    with ExitStack() as stack:
        with together(world):
            a, b, vector = _open(request, stack)
        matrices = {"a": a} if b is None else {"a": a, "b": b}
        with together(world):
            for name, matrix in matrices.items():
                if isinstance(matrix, BlockCyclicArray):
                    matrix.check(world.rank, name)
        stored = {n: m for n, m in matrices.items() if not isinstance(m, BlockCyclicArray)}
        with together(world):
            prove_same(world, stored)
        watched = ExitStack()
        inputs = {name: matrix.operand for name, matrix in stored.items()}
        watched.enter_context(unchanged(inputs, PlannedMatrix(None, (0, 0), a.dtype)))
        dtype = result_dtype(*(matrix.dtype for matrix in matrices.values()))
        with together(world):
            variant = call.variant(a.shape[0], world.size, common_layout((a, b)))
        columns = 0 if b is None else b.shape[1]
        extra = buffer_bytes(variant, columns, dtype.itemsize)
        if request.refines and dtype.name in SINGLE:
            extra += refinement_bytes(variant, columns, dtype.itemsize)
        when = request.slabs if len(stored) == len(matrices) else BySlabs.NEVER
        try:
            with together(world):
                check_limit(variant, columns, dtype.itemsize, extra, options)
            with together(world):
                check(variant, world, columns=columns, itemsize=dtype.itemsize, extra=extra)
        except DoesNotFitError:
            if when is BySlabs.NEVER:
                raise
            when = BySlabs.ALWAYS
        slabs, limit = _slabs(variant, dtype.itemsize, world, options, when)
        inside = world.rank < variant.grid[0] * variant.grid[1]
        active = world.split(int(inside), world.rank)
        if not inside:
            yield None
        else:
            threads = threads_of(options, active)
            with together(active):
                devices = stack.enter_context(open_devices(options, threads))
            # Each thread calls BLAS for itself.
            stack.enter_context(blas_threads(1))
            stack.enter_context(ending_all(active))
            how = request.check_finite, request.pivoting
            run = Run(request.kind, active, variant, dtype, columns, devices, *how)
            unchanged_yet = partial(_check_unchanged, active, watched)
            yield Opened(run, a, b, vector, unchanged_yet, slabs, limit)
    active.free()  # not after an error, which others may not have had yet


def _slabs(
    variant: Variant, itemsize: int, world: Communicator, options: Options, when: BySlabs
) -> tuple[Slabs | None, int]:
    """Return the slabs that fit the memory of each rank, and that memory; None without slabs."""
    if when is not BySlabs.ALWAYS:
        return None, 0
    limit = memory_of_each(world, variant, options)
    with together(world):
        slabs = fitting(variant, itemsize, limit)
    return slabs, limit


def _check_unchanged(world: Communicator, watched: ExitStack) -> None:
    with together(world):
        watched.close()


def check_limit(
    variant: Variant, columns: int, itemsize: int, extra: int, options: Options
) -> None:
    """Raise `DoesNotFitError` where one process needs more than the options' `host_memory`."""
    need = needed_bytes(variant, columns=columns, itemsize=itemsize) + extra
    if options.host_bytes is not None and need > options.host_bytes:
        raise DoesNotFitError.within(f"one process for n = {variant.n}", need, options.host_bytes)


def refinement_bytes(variant: Variant, columns: int, itemsize: int) -> int:
    """Return the bytes of one process for refinement: the factors, and X, whole, for a residual."""
    factors = needed_bytes(variant, columns=0, itemsize=itemsize // 2)
    return factors + min(columns, GROUP) * itemsize * variant.n


def buffer_bytes(variant: Variant, columns: int, itemsize: int) -> int:
    """Return the bytes of one process beside the matrix: strips, and groups of columns of B."""
    p, q = variant.grid
    rows = -(-variant.n // p)
    strip = strip_bytes(variant.n, variant.n, p * q, itemsize)
    group = min(columns, GROUP)
    return BUFFERS * strip + group * 16 * (6 * rows + q * variant.nb)


def _open(
    request: Request, stack: ExitStack
) -> tuple[StoredMatrix | BlockCyclicArray, StoredMatrix | BlockCyclicArray | None, bool]:
    a: StoredMatrix | BlockCyclicArray
    if isinstance(request.a, BlockCyclicArray):
        a = request.a
        check_square(a.shape)
    else:
        a = stack.enter_context(open_square(request.a))
    if not a.shape[0]:
        raise InputError("a 0×0 matrix cannot be dealt to processes")
    b: StoredMatrix | BlockCyclicArray | None = None
    vector = False
    if request.b is not None:
        if isinstance(request.b, BlockCyclicArray):
            b = request.b
        else:
            b, vector = open_columns(request.b)
            stack.enter_context(b)
        if b.shape[0] != a.shape[0]:
            raise InputError(
                f"b has {b.shape[0]} rows, the matrix {a.shape[0]}: they must be as many"
            )
    return a, b, vector


def _shown(x: Any) -> object:
    """Return an operand as ranks compare it: as text, or its type where that is an array."""
    return str(x) if is_location(x) or isinstance(x, BlockCyclicArray) else type(x).__name__
