"""Solutions of linear systems for groups of right-hand sides that fit the memory."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdgemm.call.operands import computes_in_place, in_memory, open_columns
from hdgemm.call.prepared import PreparedMatrix
from hdgemm.call.recorder import Recorder, report_done
from hdgemm.call.run import OpenRun, folder_of, machine_of, open_run
from hdgemm.errors import InputError
from hdgemm.linalg.planning.solve import SolvePlan, Stream, plan_solve
from hdgemm.linalg.slabs.slab import Slab, check_finite_slab
from hdgemm.linalg.solving.triangles import Triangle, TriangleSolver, whole_columns
from hdgemm.linalg.storage import Output
from hdgemm.machine.limits import host_bytes
from hdgemm.matrices.fingerprint import unchanged
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.product.aliasing import overlaps
from hdgemm.product.arguments import result_dtype
from hdgemm.product.target import check_no_operand, single
from hdgemm.progress import Callbacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Call
    from hdgemm.call.plans import LinearPlan
    from hdgemm.linalg._checkpoint import Command, SlabCheckpoint
    from hdgemm.linalg.storage import OpenOutput


class ColumnSolver(NamedTuple):
    """Solves for right-hand sides in memory.

    Parameters
    ----------
    solve
        Overwrites B in a column-major array by X.
    triangles
        The triangular systems, of which some may be in memory. Parts of the second one are kept
        while the first one is read, where both are of one matrix.
    dtype
        Of the triangles as they are read; None for X's.
    more
        Bytes that are read for each group of columns between two steps.
    copies
        Arrays of the size of X that `solve` holds, X itself among them.
    steps
        How often `solve` is expected to read the triangles.
    """

    solve: Callable[[TriangleSolver, NDArray[Any]], None]
    triangles: tuple[Triangle, ...]
    dtype: np.dtype[Any] | None = None
    more: int = 0
    copies: int = 1
    steps: int = 1

    def stream(self, dtype: np.dtype[Any]) -> Stream:
        """Return what is read and held for an X of some dtype; triangles may be described only."""
        dtype = self.dtype or dtype
        triangles = [each.by_columns(dtype) for each in self.triangles]
        streamed = [each for each in triangles if not computes_in_place(each.matrix, dtype)]
        whole = bool(streamed) and all(whole_columns(each.matrix) for each in streamed)
        keeps = whole and len(streamed) > 1
        return Stream(
            triangles=len(triangles),
            stored=len(streamed),
            itemsize=dtype.itemsize,
            more=self.more,
            copies=self.copies,
            whole=whole,
            keeps_lower=streamed[1].lower if keeps else None,
            steps=self.steps,
        )


class RightHandSides(NamedTuple):
    """The columns of B, one vector or a matrix, and the dtype of X.

    Parameters
    ----------
    given
        B as the caller gave it.
    matrix
        B, opened (n×p).
    vector
        It is one vector, and so is X.
    dtype
        Of X.
    """

    given: Any
    matrix: StoredMatrix
    vector: bool
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, b: Any, n: int, dtype: np.dtype[Any]) -> RightHandSides:
        """Open B for a matrix of n rows and some dtype.

        Raises
        ------
        InputError
            When B has another number of rows.
        """
        matrix, vector = open_columns(b)
        if matrix.shape[0] != n:
            raise InputError(f"b has {matrix.shape[0]} rows, the matrix {n}: they must be as many")
        return cls(b, matrix, vector, result_dtype(dtype, matrix.dtype))

    def place(self, out: Any) -> Any:
        """Return the place of X that the caller gave, an array for a vector as one column."""
        given = single(out)
        vector = self.vector and isinstance(given, np.ndarray) and given.ndim == 1
        return given[:, np.newaxis] if vector else given

    def result(self, out: Any, target: OpenOutput) -> Any:
        """Return X for the caller: a vector for a vector, but for a stored matrix given as `out`.

        A vector in a .npy file is a view of its memmap; from another file it is read.
        """
        given, found = single(out), target.result()
        if isinstance(given, np.ndarray):
            return given
        if not self.vector or (given is not None and target.location is None):
            return found
        if isinstance(found, StoredMatrix):
            with found:
                found = found.read()
        return found[:, 0]


@dataclass(frozen=True, slots=True)
class SolvedColumns:
    """X for the columns of B: described, then solved for by groups of columns and stored.

    Parameters
    ----------
    rhs
        B.
    out, output
        Where X goes, as the caller gave it and described.
    how
        Options, session and callbacks.
    check_finite
        Raise `InputError` for NaN and Inf in B.
    """

    rhs: RightHandSides
    out: Any
    output: Output
    how: OpenRun
    check_finite: bool

    @classmethod
    def of(
        cls, rhs: RightHandSides, out: Any, run: OpenRun, command: Command, *, check_finite: bool
    ) -> SolvedColumns:
        """Describe X; `out` as in `solve_triangular`, `command` the durable run that stores it."""
        output = Output.of(
            rhs.place(out),
            rhs.given,
            rhs.matrix,
            order="F",
            overwrite_a=False,
            dtype=rhs.dtype,
            command=command,
        )
        return cls(rhs, out, output, run, check_finite)

    def plan(self, solver: ColumnSolver, reserved: int = 0) -> SolvePlan:
        """Return the groups of columns: of the run that goes on, or the best ones.

        Parameters
        ----------
        solver
            Its triangles may be described only.
        reserved
            Memory that is held meanwhile.
        """
        check_no_operand(self.output.out, *(each.matrix for each in solver.triangles))
        if not self.output.new:
            _check_triangles(self.output.matrix, solver)
        recorded, rhs = self.output.recorded_plan(), self.rhs
        if isinstance(recorded, SolvePlan):
            return recorded
        return _plan(solver, rhs.matrix, self.output.matrix, rhs.dtype, self.how, reserved)

    def run(self, compute: Callable[[OpenOutput], None], plan: LinearPlan) -> Any:
        """Open the place of X, compute and return X; nothing where an earlier run has finished it.

        Parameters
        ----------
        compute
            Stores X.
        plan
            Of the whole computation.
        """
        with self.output.opened() as target:
            done = target.checkpoint
            if done is not None and done.finished:
                report_done(self.how.callbacks, plan, done.resumption)
            else:
                compute(target)
        return self.rhs.result(self.out, target)

    def solve(
        self, solver: ColumnSolver, plan: SolvePlan, callbacks: Callbacks, target: OpenOutput
    ) -> None:
        """Store X, as planned."""
        solve_columns(
            solver,
            self.rhs.matrix,
            target.stored,
            self.rhs.dtype,
            self.how._replace(callbacks=callbacks),
            check_finite=self.check_finite,
            checkpoint=target.checkpoint,
            plan=plan,
        )


@contextmanager
def prepare_solution(
    solver: ColumnSolver,
    rhs: RightHandSides,
    out: Any,
    call: Call,
    command: Command,
    *,
    check_finite: bool,
) -> Iterator[PreparedMatrix[Any]]:
    """Yield the solution with triangles that are stored already, planned."""
    with rhs.matrix, open_run(call) as run:
        solution = SolvedColumns.of(rhs, out, run, command, check_finite=check_finite)
        plan = solution.plan(solver)
        store = partial(solution.solve, solver, plan, run.callbacks)
        compute = partial(solution.run, store, plan)
        yield PreparedMatrix(plan, compute, run.session, solution.output.matrix)


def solve_columns(
    solver: ColumnSolver,
    rhs: StoredMatrix,
    target: StoredMatrix,
    dtype: np.dtype[Any],
    run: OpenRun,
    *,
    check_finite: bool,
    checkpoint: SlabCheckpoint | None = None,
    plan: SolvePlan | None = None,
) -> None:
    """Store X for all columns of B, as many at a time as fit the memory with their copies.

    Parameters
    ----------
    plan
        The groups of columns; None plans them.
    """
    array = in_memory(target, dtype)
    if plan is None:
        _check_triangles(target, solver)
        plan = _plan(solver, rhs, target, dtype, run)
    if checkpoint is not None:
        checkpoint.begin(plan, run.options)
    start = 0 if checkpoint is None else checkpoint.done(0)
    finished = sum(group.width for group in plan.slabs[:start])
    recorder = Recorder(run.callbacks, plan.flops, done=plan.flops_of(finished))
    inputs = {"B": rhs.operand}
    for each in solver.triangles:  # of one matrix
        inputs["A"] = each.matrix.operand
    with (
        unchanged(inputs, target.operand.matrix),
        recorder.measuring_memory(),
        TriangleSolver(plan.n, dtype, plan.block, recorder, kept=plan.kept) as triangles,
    ):
        for number, place in enumerate(plan.slabs[start:], start):
            x = (
                np.empty((plan.n, place.width), dtype, "F")
                if array is None
                else array[:, place.first : place.last]
            )
            triangles.group = number
            with recorder.operation("load1", number, nbytes=x.nbytes):
                rhs[:, place.first : place.last].read(x)
            if check_finite:
                check_finite_slab(Slab(number, place, x), name="b")
            solver.solve(triangles, x)
            if array is not None:
                continue
            with recorder.operation("store2", number, nbytes=x.nbytes):
                if checkpoint is not None:
                    checkpoint.store(0, place, x, {})
                else:
                    target[:, place.first : place.last] = x
    resumption = None if checkpoint is None else checkpoint.resumption
    recorder.finish(plan, plan.bytes_from(start), resumption)


def check_apart(out: StoredMatrix, matrices: Iterable[StoredMatrix], what: str) -> None:
    """Raise `InputError` where X overlaps matrices that are read until its end."""
    if any(overlaps(out.operand.matrix, each.operand.matrix) for each in matrices):
        raise InputError(f"out overlaps {what} read until X is complete: choose another out")


def _check_triangles(out: StoredMatrix, solver: ColumnSolver) -> None:
    check_apart(out, (each.matrix for each in solver.triangles), "a triangle that is")


def _plan(
    solver: ColumnSolver,
    rhs: StoredMatrix,
    target: StoredMatrix,
    dtype: np.dtype[Any],
    run: OpenRun,
    reserved: int = 0,
) -> SolvePlan:
    """Return the groups of columns that are solved at once."""
    n, p = rhs.shape
    folder = folder_of(*(each.matrix for each in solver.triangles), target)
    machine = machine_of((n, n), dtype, folder, run._replace(callbacks=Callbacks()), depth=p)
    return plan_solve(
        rhs.shape,
        dtype,
        solver.stream(dtype),
        host_bytes(run.options),
        machine,
        in_array=computes_in_place(target, dtype),
        tile=run.options.tile,
        reserved=reserved,
    )
