"""Square systems that are factored and then solved, in the precision of X or in a lower one."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hdgemm.errors import InputError
from hdgemm.linalg.cholesky import cho_factor
from hdgemm.linalg.factor_plan import FactorsOfSolve
from hdgemm.linalg.factored_solve import by_cholesky
from hdgemm.linalg.joint_plan import facts_of
from hdgemm.linalg.operands import open_square
from hdgemm.linalg.portions import Portions
from hdgemm.linalg.refinement import SINGLE, STEPS, NotConvergedError, Refinement
from hdgemm.linalg.run import folder_of
from hdgemm.linalg.scratch import lu_factors, scratch_file
from hdgemm.linalg.slab_plan import SlabPlan
from hdgemm.linalg.solution import ColumnSolver, Solution, solve_stored
from hdgemm.linalg.updates import host_bytes
from hdgemm.matrices.base import Converted
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.triangles import symmetric
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    import numpy as np

    from hdgemm.linalg.checkpoint import SlabCheckpoint
    from hdgemm.linalg.run import OpenRun, Run
    from hdgemm.linalg.slab_journal import Command
    from hdgemm.linalg.slab_plan import Kind
    from hdgemm.linalg.storage import Destination
    from hdgemm.progress import Watch

    Prepared: TypeAlias = AbstractContextManager[tuple[ColumnSolver, Watch]]


#: The short name of each value of SciPy's `assume_a`. For None SciPy detects the structure; here it
#: means a general matrix, since LU solves any.
_STRUCTURES: Final[Mapping[str | None, str]] = {
    None: "gen", "gen": "gen", "general": "gen", "sym": "sym", "symmetric": "sym",
    "her": "her", "hermitian": "her", "pos": "pos", "positive definite": "pos",
    "upper triangular": "upper triangular", "lower triangular": "lower triangular",
}  # fmt: skip


def structure_of(assume_a: str | None) -> str:
    """Return the short form of SciPy's `assume_a`."""
    if assume_a not in list(_STRUCTURES):
        names = ", ".join(map(repr, _STRUCTURES))
        raise InputError(f"assume_a must be one of {names}, got {assume_a!r}")
    return _STRUCTURES[assume_a]


def check_transposed(structure: str, dtype: np.dtype[Any], *, transposed: bool) -> None:
    """Raise `InputError` for the transpose of a Hermitian matrix that is factored by Cholesky."""
    if structure == "pos" and transposed and dtype.kind == "c":
        raise InputError("transposed does not go with assume_a='pos' for a complex matrix")


def check_refine(refine: str | None) -> None:
    """Raise `InputError` where X cannot be refined in this way."""
    if refine not in (None, "float32"):
        raise InputError(f"refine must be None or 'float32', got {refine!r}")


#: Structures of matrices that are read from one triangle and factored whole.
MIRRORED: Final = ("sym", "her")


@dataclass(frozen=True, slots=True)
class System:
    """A system to be factored and solved; arguments as of `hdgemm.linalg.solve`.

    Parameters
    ----------
    a, source
        The matrix as the caller gave it, and opened.
    solution
        What is solved for.
    """

    a: Any
    source: StoredMatrix
    solution: Solution
    assume_a: str
    lower: bool
    transposed: bool
    check_finite: bool
    overwrite_a: bool

    @property
    def kept(self) -> Mapping[str, StoredMatrix]:
        """The matrix, by name, where it is the same after the factorisation."""
        return {} if self.overwrite_a else {"the matrix": self.source}

    def solve(
        self,
        out: Any,
        prepare: Callable[[System, OpenRun, Destination], Prepared],
        run: Run,
        command: Command,
    ) -> Any:
        """Factor and solve; return X."""
        reads = (self.source, self.solution.rhs) if prepare is refined else ()
        return solve_stored(
            self.solution, out, partial(prepare, self), run, command,
            check_finite=self.check_finite, reads=reads,
        )  # fmt: skip

    def as_dtype(self, dtype: np.dtype[Any]) -> System:
        """Return the system with its matrix converted while it is read."""
        if self.source.dtype.newbyteorder("=") == dtype:
            return self
        operand = self.source.operand
        converted = replace(operand, matrix=Converted(operand.matrix, dtype))
        source = StoredMatrix(converted, writable=False)
        return replace(self, a=source, source=source, overwrite_a=False)

    @property
    def kind(self) -> Kind:
        """The factorisation."""
        return "cholesky" if self.assume_a == "pos" else "lu"

    def needed(self, target: Destination, single: np.dtype[Any] | None = None) -> FactorsOfSolve:
        """Return what decides where the factors go; `single` is their dtype where X is refined."""
        solution, durable = self.solution, target.checkpoint is not None
        return FactorsOfSolve(
            self.kind, solution.rhs.shape, solution.dtype, single, self.overwrite_a, durable
        )

    def completed(self) -> System:
        """Return the system with the whole matrix that the stored triangle stands for."""
        if self.assume_a not in MIRRORED:
            return self
        source = whole_of(self.source, lower=self.lower, hermitian=self.assume_a == "her")
        return replace(self, a=source, source=source)

    @contextmanager
    def factors(
        self, run: OpenRun, checkpoint: SlabCheckpoint | None, name: str, plan: SlabPlan | None
    ) -> Iterator[ColumnSolver]:
        """Yield what solves with the factors, which end with the context.

        Parameters
        ----------
        plan
            Of factors that stay in memory; None for a scratch file, where A is in a file.

        Raises
        ------
        SingularMatrixError
            When a pivot is exactly zero, or the matrix not positive definite.
        """
        if self.assume_a == "pos":
            with scratch_file(
                self.source, overwrite_a=self.overwrite_a, checkpoint=checkpoint, name=name,
                order="F" if self.lower else "C", sparse=True,
            ) as place:  # fmt: skip
                watch = run.watch
                c, lower = cho_factor(
                    self.a, self.lower, self.overwrite_a, self.check_finite, out=place,
                    options=run.options, session=run.session, progress=watch.progress,
                    observer=watch.observer, cancel=watch.cancel, report=watch.report,
                    checkpoint=checkpoint is not None,
                )  # fmt: skip
                with open_square(c) as factor:
                    yield by_cholesky(factor, lower=lower)
            return
        with lu_factors(
            self.a, run, overwrite_a=self.overwrite_a, check_finite=self.check_finite,
            checkpoint=checkpoint, name=name, plan=plan,
        ) as factors:  # fmt: skip
            solver = factors.solver("T" if self.transposed else "N")
            left = None if plan is None else plan.host_limit - plan.bytes_held
            yield solver._replace(memory=left)

    def portions(self, run: OpenRun) -> tuple[Portions, int, int]:
        """Return the two parts of the computation, and the operations of each."""
        (n, p), dtype = self.solution.rhs.shape, self.solution.dtype.name
        factoring = SlabPlan.of_array(self.kind, n, n, dtype).flops
        solving = flops_per_multiply_add(dtype) * n * n * p
        return Portions(run.watch, factoring + solving), factoring, solving

    def summary(self, run: OpenRun) -> dict[str, Any]:
        """Return shape and dtype as plain values, for reports."""
        solution = self.solution
        return facts_of("solve", solution.rhs.shape, solution.dtype.name, run.options)


@contextmanager
def factored(
    system: System, run: OpenRun, target: Destination
) -> Iterator[tuple[ColumnSolver, Watch]]:
    """Yield what solves a system with factors in the precision of X."""
    system = system.completed().as_dtype(system.solution.dtype)
    portions, factoring, solving = system.portions(run)
    plan = system.needed(target).plan_in_memory(folder_of(system.source), run)
    with system.factors(
        run._replace(watch=portions.next(factoring)), target.checkpoint, "factors", plan
    ) as solver:
        yield solver, portions.next(solving)
    portions.finish(system.summary(run))


@contextmanager
def refined(
    system: System, run: OpenRun, target: Destination
) -> Iterator[tuple[ColumnSolver, Watch]]:
    """Yield what solves a system with factors in single precision, and refines.

    Raises
    ------
    NotConvergedError, SingularMatrixError
        When A must be factored in double precision, or an earlier run has done so.
    """
    done = target.checkpoint
    if done is not None and done.destination.work(".factors.npy").exists():
        raise NotConvergedError("an earlier run has done so")
    system = system.completed().as_dtype(system.solution.dtype)
    lower_precision = SINGLE[system.solution.dtype.name]
    single = replace(system.as_dtype(lower_precision), overwrite_a=False)
    name = "single"
    if system.assume_a != "pos" and system.source.order == "C":
        # Columns of the transpose of a row-major matrix are contiguous, so that they load faster.
        columns = single.source.T
        single = replace(single, a=columns, source=columns, transposed=not system.transposed)
        name = "transposed"
    portions, factoring, solving = system.portions(run)
    memory, needed = host_bytes(run.options), single.needed(target, lower_precision)
    residual = needed.residual_bytes(run.options)
    plan = needed.plan_in_memory(folder_of(system.source), run)
    part = run._replace(watch=portions.next(factoring))
    with ExitStack() as stack:
        factors = _enter_single(stack, single.factors(part, target.checkpoint, name, plan))
        a = system.source
        if system.assume_a == "pos":
            a = whole_of(a, lower=system.lower, hermitian=True)
        yield factors._replace(
            solve=Refinement(a.T if system.transposed else a, factors, residual),
            dtype=lower_precision, more=a.nbytes, copies=needed.copies,
            memory=(memory if factors.memory is None else factors.memory) - residual, steps=STEPS,
        ), portions.next(solving)  # fmt: skip
    portions.finish(system.summary(run))


def _enter_single(stack: ExitStack, factors: AbstractContextManager[ColumnSolver]) -> ColumnSolver:
    """Return what solves with factors in single precision."""
    try:
        return stack.enter_context(factors)
    except InputError as error:
        if not hasattr(error, "row"):
            raise
        # An element beyond the range of single precision, or one that is not finite in double.
        raise NotConvergedError(f"in single precision {error}") from error


def whole_of(a: StoredMatrix, *, lower: bool, hermitian: bool) -> StoredMatrix:
    """Return the symmetric or Hermitian matrix of which `a` holds one triangle."""
    whole = symmetric(a.operand, lower=lower, hermitian=hermitian)
    return StoredMatrix(whole, writable=False)
