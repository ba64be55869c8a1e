"""Solutions of linear systems for groups of right-hand sides that fit the memory."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from hdgemm.errors import InputError
from hdgemm.linalg.input_checks import check_finite_slab
from hdgemm.linalg.operands import in_memory, open_columns
from hdgemm.linalg.recorder import Recorder, report_done
from hdgemm.linalg.run import OpenRun, Run, folder_of, machine_of, open_run
from hdgemm.linalg.slab import Slab
from hdgemm.linalg.solve_plan import SolvePlan, Stream, plan_solve
from hdgemm.linalg.storage import destination
from hdgemm.linalg.triangle_solver import Triangle, TriangleSolver, whole_columns
from hdgemm.linalg.updates import host_bytes
from hdgemm.product.aliasing import overlaps
from hdgemm.product.arguments import result_dtype
from hdgemm.product.target import single
from hdgemm.progress import Watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from hdgemm.linalg.checkpoint import SlabCheckpoint
    from hdgemm.linalg.slab_journal import Command
    from hdgemm.linalg.storage import Destination
    from hdgemm.matrices.stored import StoredMatrix


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
        Of the triangles as they are read; None for that of X.
    more
        Bytes that are read for each group of columns between two steps.
    copies
        Arrays of the size of X that `solve` holds, X itself among them.
    memory
        Bytes for the stream, them and transfers; None for those of the options.
    steps
        How often `solve` is expected to read the triangles.
    """

    solve: Callable[[TriangleSolver, NDArray[Any]], None]
    triangles: tuple[Triangle, ...]
    dtype: np.dtype[Any] | None = None
    more: int = 0
    copies: int = 1
    memory: int | None = None
    steps: int = 1

    def stream(self, dtype: np.dtype[Any]) -> Stream:
        """Return what is read and held for an X of some dtype."""
        dtype = self.dtype or dtype
        columns = [each.by_columns(dtype).matrix for each in self.triangles]
        triangles = [
            each
            for each, matrix in zip(self.triangles, columns, strict=True)
            if in_memory(matrix, dtype) is None
        ]
        whole = bool(triangles) and all(whole_columns(each.matrix) for each in triangles)
        keeps = whole and len(triangles) > 1
        return Stream(
            len(self.triangles), len(triangles), dtype.itemsize, self.more,
            self.copies, whole, triangles[1].by_columns(dtype).lower if keeps else None, self.steps,
        )  # fmt: skip


class Solution(NamedTuple):
    """What a solve computes: X (n×p) for right-hand sides B, which are one vector or a matrix."""

    b: Any
    rhs: StoredMatrix
    vector: bool
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, b: Any, n: int, dtype: np.dtype[Any]) -> Solution:
        """Open B for a system of order n whose matrix has some dtype.

        Raises
        ------
        InputError
            When B has another number of rows.
        """
        rhs, vector = open_columns(b)
        if rhs.shape[0] != n:
            raise InputError(f"b has {rhs.shape[0]} rows, the matrix {n}: they must be as many")
        return cls(b, rhs, vector, result_dtype(dtype, rhs.dtype))

    def place(self, out: Any) -> Any:
        """Return the place of X that the caller gave, an array for a vector as one column."""
        given = single(out)
        vector = self.vector and isinstance(given, np.ndarray) and given.ndim == 1
        return given[:, np.newaxis] if vector else given

    def result(self, out: Any, target: Destination) -> Any:
        """Return what the caller gets: a vector for a vector, but in a file one column."""
        if isinstance(out, np.ndarray):
            return out
        found = target.result()
        return found[:, 0] if self.vector and target.location is None else found


#: Yields what solves a system and the watch of that part, for a call's run and the place of X.
Preparation: TypeAlias = (
    "Callable[[OpenRun, Destination], AbstractContextManager[tuple[ColumnSolver, Watch]]]"
)


def ready(solver: ColumnSolver) -> Preparation:
    """Return the preparation of a system that is factored already."""
    return lambda run, _target: nullcontext((solver, run.watch))


def solve_stored(
    solution: Solution,
    out: Any,
    prepare: Preparation,
    run: Run,
    command: Command,
    *,
    check_finite: bool,
    reads: tuple[StoredMatrix, ...] = (),
) -> Any:
    """Solve for all columns of B, as many at a time as fit the memory, and return X.

    Parameters
    ----------
    out
        As in `solve_triangular`.
    prepare
        Called when the place of X is open, durably where the command is.
    reads
        Matrices that X must not overlap, since they are read until its end.
    """
    rhs, dtype = solution.rhs, solution.dtype
    with (
        open_run(run) as opened,
        destination(
            solution.place(out), solution.b, rhs, order="F", overwrite_a=False, dtype=dtype,
            command=command,
        ) as target,
    ):  # fmt: skip
        for matrix in reads:
            if overlaps(target.stored.operand.matrix, matrix.operand.matrix):
                raise InputError("out overlaps a or b, which are read until X is complete: "
                                 "choose another out")  # fmt: skip
        done = target.checkpoint
        if done is not None and done.finished:
            report_done(run.watch, done)
        else:
            with prepare(opened, target) as (solver, watch):
                solve_columns(
                    solver, rhs, target.stored, dtype, opened._replace(watch=watch),
                    check_finite=check_finite, checkpoint=done,
                )  # fmt: skip
    return solution.result(out, target)


def solve_columns(
    solver: ColumnSolver,
    rhs: StoredMatrix,
    target: StoredMatrix,
    dtype: np.dtype[Any],
    run: OpenRun,
    *,
    check_finite: bool,
    checkpoint: SlabCheckpoint | None = None,
) -> None:
    """Store X for all columns of B, as many at a time as fit the memory with their copies."""
    matrices = [each.matrix for each in solver.triangles]
    if any(overlaps(target.operand.matrix, matrix.operand.matrix) for matrix in matrices):
        raise InputError("out overlaps a triangle that is read until X is complete: choose another "
                         "out")  # fmt: skip
    array = in_memory(target, dtype)
    plan = None if checkpoint is None else checkpoint.plan
    if not isinstance(plan, SolvePlan):
        plan = _plan(solver, rhs, target, dtype, run)
    if checkpoint is not None:
        checkpoint.begin(plan, run.options)
    start = 0 if checkpoint is None else checkpoint.done(0)
    recorder = Recorder(run.watch, plan.flops, done=plan.flops_of(sum(
        group.width for group in plan.slabs[:start])))  # fmt: skip
    with (
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
                    checkpoint.store(0, number, place, x, {})
                else:
                    target[:, place.first : place.last] = x
    recorder.finish(
        plan, plan.bytes_from(start), None if checkpoint is None else checkpoint.resumption
    )


def _plan(
    solver: ColumnSolver, rhs: StoredMatrix, target: StoredMatrix, dtype: np.dtype[Any],
    run: OpenRun,
) -> SolvePlan:  # fmt: skip
    """Return the groups of columns that are solved at once."""
    n, p = rhs.shape
    folder = folder_of(*(each.matrix for each in solver.triangles), target)
    machine = machine_of((n, n), dtype, folder, run._replace(watch=Watch()), depth=p)
    return plan_solve(
        rhs.shape, dtype, solver.stream(dtype),
        host_bytes(run.options) if solver.memory is None else solver.memory, machine,
        in_array=in_memory(target, dtype) is not None, tile=run.options.tile,
    )  # fmt: skip
