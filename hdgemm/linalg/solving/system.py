"""Square systems that are factored and then solved, in the precision of X or in a lower one."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from scipy.linalg import LinAlgWarning

from hdgemm.call.input_checks import input_unchanged
from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import folder_of, open_run, plan_parts
from hdgemm.call.run_sequence import RunSequence
from hdgemm.errors import InputError
from hdgemm.linalg.planning.factors import FactorsOfSolve
from hdgemm.linalg.planning.slab import SlabPlan
from hdgemm.linalg.planning.solve import SINGLE, STEPS
from hdgemm.linalg.solving.columns import SolvedColumns, check_apart
from hdgemm.linalg.solving.factors import prepare_cholesky_factor, prepare_lu_factors
from hdgemm.linalg.solving.refinement import NotConvergedError, Refinement
from hdgemm.linalg.storage import takes_result
from hdgemm.matrices.base import Converted
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.triangles import symmetric
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.product.target import check_no_operand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from hdgemm.call.keywords import Call
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg._checkpoint import Command
    from hdgemm.linalg.planning.slab import Kind
    from hdgemm.linalg.planning.solve import SolvePlan
    from hdgemm.linalg.solving.columns import ColumnSolver, RightHandSides
    from hdgemm.linalg.solving.factors import Factors, PreparedFactors
    from hdgemm.linalg.storage import OpenOutput, Output

#: The short name of each value of SciPy's `assume_a`. For None SciPy detects the structure; here it
#: means a general matrix, since LU solves any. Bands are not exploited.
_STRUCTURES: Final[Mapping[str | None, str]] = {
    **dict.fromkeys((None, "gen", "general", "diagonal", "tridiagonal", "banded"), "gen"),
    **dict.fromkeys(("sym", "symmetric"), "sym"),
    **dict.fromkeys(("her", "hermitian"), "her"),
    **dict.fromkeys(("pos", "positive definite"), "pos"),
    "upper triangular": "upper triangular",
    "lower triangular": "lower triangular",
}
#: Structures of matrices that are read from one triangle and factored whole.
MIRRORED: Final = ("sym", "her")


def structure_of(assume_a: str | None) -> str:
    """Return the short form of SciPy's `assume_a`."""
    if assume_a not in list(_STRUCTURES):
        names = ", ".join(map(repr, _STRUCTURES))
        raise InputError(f"assume_a must be one of {names}, got {assume_a!r}")
    return _STRUCTURES[assume_a]


@dataclass(frozen=True, slots=True)
class System:
    """A system to be factored and solved; takes the arguments of `hdgemm.linalg.solve`.

    Parameters
    ----------
    a, source
        The matrix, or the pair of its LU factors, as the caller gave it, and the opened matrix.
    rhs
        What is solved for.
    """

    a: Any
    source: StoredMatrix
    rhs: RightHandSides
    assume_a: str
    lower: bool = False
    transposed: bool = False
    check_finite: bool = True
    overwrite_a: bool = False

    def __post_init__(self) -> None:
        if self.kind == "cholesky" and self.transposed and self.source.dtype.kind == "c":
            raise InputError("transposed does not go with assume_a='pos' for a complex matrix")

    @property
    def kind(self) -> Kind:
        """The factorisation."""
        return "cholesky" if self.assume_a == "pos" else "lu"

    @property
    def kept(self) -> Mapping[str, StoredMatrix]:
        """The matrix, by name, where it is the same after the factorisation."""
        return {} if self.overwrite_a else {"the matrix": self.source}

    def whole(self) -> System:
        """Return the system with the whole matrix that a stored triangle stands for."""
        if self.assume_a not in MIRRORED:
            return self
        source = _whole_of(self.source, lower=self.lower, hermitian=self.assume_a == "her")
        return replace(self, a=source, source=source)

    def as_dtype(self, dtype: np.dtype[Any]) -> System:
        """Return the system with its matrix converted while it is read."""
        if self.source.dtype.newbyteorder("=") == dtype:
            return self
        operand = self.source.operand
        converted = replace(operand, matrix=Converted(operand.matrix, dtype))
        source = StoredMatrix(converted, writable=False)
        return replace(self, a=source, source=source, overwrite_a=False)

    def in_single(self) -> tuple[System, str]:
        """Return the system with its matrix in single precision, and the name of its factors.

        Columns of the transpose of a row-major matrix are contiguous, so that they load faster.
        """
        single = replace(self.as_dtype(SINGLE[self.rhs.dtype.name]), overwrite_a=False)
        if self.kind == "cholesky" or self.source.order != "C":
            return single, "single"
        columns = single.source.T
        return replace(single, a=columns, source=columns, transposed=not self.transposed), (
            "transposed"
        )


class Solved(NamedTuple):
    """X, and an estimate of the reciprocal condition number of A; 1 where none was made."""

    x: Any
    rcond: float

    def warn(self) -> Any:
        """Return X; warn, as SciPy, where the matrix is singular to working precision.

        A public function calls it, so that the warning names the line of its caller.
        """
        if self.rcond < np.finfo(self.x.dtype).eps:
            warnings.warn(
                f"An ill-conditioned matrix detected: estimated rcond = {self.rcond:.6g}. "
                "The result may not be accurate.",
                LinAlgWarning,
                stacklevel=5,
            )
        return self.x


@contextmanager
def prepare_system(
    routine: str,
    system: System,
    out: Any,
    call: Call,
    command: Command,
    *,
    name: str,
    refines: bool = False,
) -> Iterator[Prepared[Solved]]:
    """Yield the factorisation of A and the solution with its factors, planned.

    Parameters
    ----------
    name
        Of the factors of a durable run.
    refines
        Factor in single precision, and refine X.

    Raises
    ------
    DoesNotFitError
        When the factorisation, or the solution beside what it needs, does not fit.
    """
    how: dict[str, Any] = {"name": name, "refines": refines}
    with open_run(call) as run, ExitStack() as stack:

        def plans(run: OpenRun) -> Prepared[Solved]:
            found = _prepared(routine, system, out, run, command, restart=call.restart, **how)
            return stack.enter_context(found)

        yield plan_parts(f"{routine} with a matrix of {system.source.shape}", plans, run)


@contextmanager
def _prepared(
    routine: str,
    system: System,
    out: Any,
    run: OpenRun,
    command: Command,
    *,
    restart: bool,
    name: str,
    refines: bool,
) -> Iterator[Prepared[Solved]]:
    """Plan both parts within the memory of `run`; parameters as in `prepare_system`."""
    with ExitStack() as stack:
        rhs = system.rhs
        check_no_operand(out, system.source)
        solution = SolvedColumns.of(rhs, out, run, command, check_finite=system.check_finite)
        in_double = solution.output.work_file(f".{name}.npy")
        # An earlier run may have found that A must be factored in double precision.
        refines = refines and (restart or in_double is None or not in_double.path.exists())
        read = system.source, rhs.matrix
        system = system.whole().as_dtype(rhs.dtype)
        part, single = system, None
        if refines:
            part, name = system.in_single()
            single = SINGLE[rhs.dtype.name]
            if not solution.output.new:
                check_apart(solution.output.matrix, read, "a or b, which are")
        needed = FactorsOfSolve(
            part.kind,
            rhs.matrix.shape,
            rhs.dtype,
            single,
            part.overwrite_a and takes_result(part.a),
            solution.output.durable,
        )
        portions, flops = _portions(system, run)
        watched = run._replace(callbacks=portions.next(flops[0]))
        factors = stack.enter_context(_factors(part, watched, needed, solution.output, name))
        residual = needed.residual_bytes(run.options)
        refinement = _Refined(system, residual, needed.copies) if refines else None
        solver = _solver(factors.described, part, refinement)
        plan = solution.plan(solver, residual + factors.host_bytes)
        facts = facts_of(routine, rhs.matrix.shape, rhs.dtype.name, run.options)
        joint = JointPlan(facts, (plan,) if factors.plan is None else (factors.plan, plan))
        computation = _FactoredSolve(part, solution, factors, refinement, plan, portions, flops[1])

        def compute() -> Solved:
            x = solution.run(partial(computation.store, joint), joint)
            return Solved(x, 1.0 if refines else factors.rcond())

        yield Prepared(joint, compute, run.session)


def _portions(system: System, run: OpenRun) -> tuple[RunSequence, tuple[int, int]]:
    """Return the two parts of the computation, and the operations of each."""
    (n, p), dtype = system.rhs.matrix.shape, system.rhs.dtype.name
    factoring = SlabPlan.of_array(system.kind, n, n, dtype).flops
    if isinstance(system.a, tuple):
        factoring = 0
    solving = flops_per_multiply_add(dtype) * n * n * p
    return RunSequence(run.callbacks, factoring + solving), (factoring, solving)


def _factors(
    system: System,
    run: OpenRun,
    needed: FactorsOfSolve,
    output: Output,
    name: str,
) -> AbstractContextManager[PreparedFactors[Factors]]:
    """Prepare the factors of a system, or open those that the caller has given."""
    if isinstance(system.a, tuple):
        return prepare_lu_factors(system.a, run)
    how: dict[str, Any] = {
        "overwrite_a": system.overwrite_a,
        "check_finite": system.check_finite,
        "output": output,
        "name": name,
    }
    if system.kind == "cholesky":
        return prepare_cholesky_factor(system.a, run, lower=system.lower, **how)
    folder = folder_of(system.source)
    resident = needed.plan_in_memory(folder, run)
    return prepare_lu_factors(system.a, run, resident=resident, **how)


class _Refined(NamedTuple):
    """Refinement of X in a system: bytes of the stream of A, and arrays of the size of X."""

    system: System
    memory: int
    copies: int

    def solver(self, single: ColumnSolver) -> ColumnSolver:
        """Return a solver that refines solutions with factors in single precision."""
        system, a = self.system, self.system.source
        if system.kind == "cholesky":
            a = _whole_of(a, lower=system.lower, hermitian=True)
        return single._replace(
            solve=Refinement(a.T if system.transposed else a, single, self.memory),
            dtype=SINGLE[system.rhs.dtype.name],
            more=a.nbytes,
            copies=self.copies,
            steps=STEPS,
        )


def _solver(factors: Factors, system: System, refinement: _Refined | None) -> ColumnSolver:
    solver = factors.solver("T" if system.transposed else "N")
    return solver if refinement is None else refinement.solver(solver)


@dataclass(frozen=True, slots=True)
class _FactoredSolve:
    """One system that is planned: its factors, then X.

    Parameters
    ----------
    system
        As it is factored.
    plan
        Of the solution.
    flops
        Operations of the solution.
    """

    system: System
    solution: SolvedColumns
    factors: PreparedFactors[Factors]
    refinement: _Refined | None
    plan: SolvePlan
    portions: RunSequence
    flops: int

    def store(self, joint: JointPlan, target: OpenOutput) -> None:
        """Factor A, solve and store X; report the plan of both.

        Raises
        ------
        NotConvergedError, SingularMatrixError
            When a system that is refined must be factored in double precision.
        """
        self.portions.start()
        with self._input_unchanged(target):
            solver = _solver(self._factor(), self.system, self.refinement)
            self.solution.solve(solver, self.plan, self.portions.next(self.flops), target)
        self.portions.finish(joint.facts)

    def _input_unchanged(self, target: OpenOutput) -> AbstractContextManager[None]:
        """Check an A that refinement reads again; the factorisation checks what it reads."""
        if self.refinement is None:
            return nullcontext()
        return input_unchanged(self.refinement.system.source, target.stored)

    def _factor(self) -> Factors:
        try:
            return self.factors.run()
        except InputError as error:
            if self.refinement is None or not hasattr(error, "row"):
                raise
            # An element beyond the range of single precision, or not finite in double either.
            raise NotConvergedError(f"in single precision {error}") from error


def _whole_of(a: StoredMatrix, *, lower: bool, hermitian: bool) -> StoredMatrix:
    """Return the symmetric or Hermitian matrix of which `a` holds one triangle."""
    whole = symmetric(a.operand, lower=lower, hermitian=hermitian)
    return StoredMatrix(whole, writable=False)
