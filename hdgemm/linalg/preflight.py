"""Plans of factorisations and solves, made without reading or writing a matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import InputError, InputTypeError
from hdgemm.linalg.factor_plan import FactorsOfSolve, row_bytes, slabs_for
from hdgemm.linalg.joint_plan import JointPlan, facts_of
from hdgemm.linalg.planning import Storage
from hdgemm.linalg.qr import tall_plan
from hdgemm.linalg.rank_update import plan_syrk
from hdgemm.linalg.refinement import SINGLE, STEPS
from hdgemm.linalg.row_plan import rows_for
from hdgemm.linalg.run import OpenRun, Run, folder_of, machine_of, open_run
from hdgemm.linalg.slab_plan import SlabPlan
from hdgemm.linalg.slab_store import PIECE_BYTES
from hdgemm.linalg.solution import ColumnSolver
from hdgemm.linalg.solve_plan import SolvePlan, Stream, plan_solve
from hdgemm.linalg.storage import open_columns, open_matrix
from hdgemm.linalg.system import MIRRORED, check_refine, structure_of, whole_of
from hdgemm.linalg.triangle_solver import Triangle
from hdgemm.linalg.updates import host_bytes
from hdgemm.machine.limits import memory_limit
from hdgemm.matrices.layout import check_dtype
from hdgemm.matrices.location import parse_location
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.stores import create_matrix
from hdgemm.matrices.transfer import SHORT
from hdgemm.product.arguments import result_dtype
from hdgemm.product.target import is_location
from hdgemm.progress import Watch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy as np

    from hdgemm.linalg.row_plan import RowPlan
    from hdgemm.linalg.slab_plan import Kind
    from hdgemm.machine.rates import Machine
    from hdgemm.options import Options
    from hdgemm.run.session import Session

#: The slabs that a routine is planned by.
_KINDS: Final[dict[str, Kind]] = {
    "cholesky": "cholesky", "cho_factor": "cholesky", "lu": "lu", "lu_factor": "lu", "qr": "qr",
}  # fmt: skip
#: Solves with a triangle that is stored.
_TRIANGULAR: Final = ("trsm", "solve_triangular")
#: Arguments of the routines that have a plan, where they change it.
_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("cholesky", "cho_factor"), ("lower", "overwrite_a")),
    **dict.fromkeys(("lu", "lu_factor", "inv"), ("overwrite_a",)),
    "qr": ("mode", "overwrite_a"),
    "solve": ("lower", "overwrite_a", "assume_a", "transposed", "refine"),
    "lstsq": (),
    **dict.fromkeys(_TRIANGULAR, ("lower", "trans")),
    "syrk": ("lower", "trans"),
}
#: Routines that have a plan.
PLANNED: Final[Collection[str]] = tuple(_ARGUMENTS)


def plan(
    routine: str,
    a: Any,
    *,
    dtype: str = "float64",
    columns: Any = 1,
    out: Any = None,
    checkpoint: bool = False,
    options: Options | None = None,
    session: Session | None = None,
    **arguments: Any,
) -> SlabPlan | RowPlan | SolvePlan | JointPlan:
    """Return the plan that a routine executes, without reading or writing a matrix.

    Parameters
    ----------
    routine
        "cholesky", "cho_factor", "lu" or "lu_factor", "qr" (the reflectors; with mode="r" TSQR of
        a tall matrix), "solve" and "inv" (factorisation and solution), "lstsq", "trsm" or
        "solve_triangular", "syrk".
    a
        The order n, the shape (m, n), or a matrix as the routine takes it.
    dtype
        Of the elements, where `a` is no matrix.
    columns
        Right-hand sides, for "solve", "lstsq" and triangular systems: their number, or B as the
        routine takes it.
    out
        Where the result will go: a location. Its folder's disk is the one that is priced.
    checkpoint
        The run is to be durable.
    options, session
        As the routine takes them.
    arguments
        Those of the routine that change its plan: `lower`, `overwrite_a`, `assume_a`, `transposed`,
        `refine`, `trans`, `mode`. The plan of ``refine="float32"`` has three solves.

    Raises
    ------
    InputError
        For another routine, or a matrix that it does not take.
    InputTypeError
        For other arguments.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.

    Examples
    --------
    >>> print(hdgemm.linalg.plan("lu", 100_000, options=hdgemm.Options(host_memory="8GB")))
    """
    if routine not in PLANNED:
        raise InputError(f"there are plans for {', '.join(PLANNED)}: not {routine}")
    _check_arguments(routine, arguments)
    with memory_limit(), open_run(Run(options, session, Watch())) as run:
        if routine == "syrk":
            return _syrk(a, dtype, out, run, arguments)
        preflight = _Preflight.of(a, dtype, columns, out, run, checkpoint=checkpoint)
        if routine == "lstsq":
            return preflight.rows()
        m, n = preflight.shape
        if routine not in ("lu", "lu_factor", "qr") and m != n:
            raise InputError(f"{routine} takes square matrices, got {m}×{n}")
        arguments["assume_a"] = structure_of(arguments.get("assume_a"))
        if routine in _TRIANGULAR or "triangular" in arguments["assume_a"]:
            return preflight.solution(preflight.triangle())
        if routine in ("solve", "inv"):
            return preflight.completed(arguments).system(routine, arguments)
        if routine == "qr" and arguments.get("mode") == "r":
            tall = tall_plan(preflight.shape, preflight.dtype, preflight.folder, run)
            if tall is not None:
                return tall
        made = parse_location(out).format if out is not None and is_location(out) else None
        kind, whole = _KINDS[routine], made == "npy"
        upper = kind == "cholesky" and not arguments.get("lower", False)
        return preflight.slabs(
            kind, Storage(made != "zarr", preflight.row_bytes(upper), whole, whole)
        )


def _check_arguments(routine: str, given: Mapping[str, Any]) -> None:
    """Refuse what has no effect on the plan of a routine."""
    known = _ARGUMENTS[routine]
    if unknown := sorted(set(given) - set(known)):
        has = f"has {', '.join(known)}" if known else "has none"
        raise InputTypeError(
            f"the plan of {routine} has no argument {', '.join(unknown)}: it {has} of those of "
            f"{routine}, and dtype, columns, out, checkpoint, options, session"
        )
    check_refine(given.get("refine"))


def _syrk(a: Any, dtype: str, out: Any, run: OpenRun, given: Mapping[str, Any]) -> JointPlan:
    how = int(given.get("trans", 0)), int(given.get("lower", 0)), out, run.options, run.session
    shape = _described(a)
    if shape is None:
        return plan_syrk(a, *how)
    place = Path.cwd() / ".hdgemm-plan.npy"  # never written: it has no disk space and no name
    with create_matrix(place, shape, dtype, sparse=True) as draft:
        return plan_syrk(StoredMatrix(draft.operand, writable=False), *how)


def _described(a: Any) -> tuple[int, int] | None:
    """Return the shape of a matrix that is only described; None for a matrix."""
    shape = (a, a) if isinstance(a, int) else a
    described = isinstance(shape, tuple) and all(isinstance(extent, int) for extent in shape)
    return shape if described and len(shape) == 2 else None


@dataclass(frozen=True, slots=True)
class _Preflight:
    """What the plan of a call depends on; `matrix` is None where A is only described."""

    shape: tuple[int, int]
    matrix: StoredMatrix | None
    dtype: np.dtype[Any]
    columns: int
    out: Any
    run: OpenRun
    checkpoint: bool

    @classmethod
    def of(
        cls, a: Any, dtype: str, columns: Any, out: Any, run: OpenRun, *, checkpoint: bool
    ) -> _Preflight:
        shape, matrix = _described(a), None
        if shape is None:
            matrix = open_matrix(a)
            shape = matrix.shape
        found = check_dtype(dtype, "a") if matrix is None else matrix.dtype.newbyteorder("=")
        if not isinstance(columns, int):
            b, _ = open_columns(columns)
            if matrix is not None and b.shape[0] != matrix.shape[0]:
                raise InputError(
                    f"b has {b.shape[0]} rows, a {matrix.shape[0]}: they must be as many"
                )
            columns, found = b.shape[1], result_dtype(found, b.dtype)
        return cls(shape, matrix, found, columns, out, run, checkpoint)

    @property
    def folder(self) -> Path | None:
        """The folder of A, or the present one where A is only described."""
        return Path.cwd() if self.matrix is None else folder_of(self.matrix)

    def row_bytes(self, transposed: bool, itemsize: int | None = None) -> int:
        """Return the bytes from one row to the next of a row-major A, or of its transpose.

        They are those of elements of `itemsize` bytes, to which A is converted.
        """
        if self.matrix is None:
            return 0
        pitch = row_bytes(self.matrix.T if transposed else self.matrix)
        return pitch * (itemsize or self.dtype.itemsize) // self.matrix.dtype.itemsize

    def machine(self, folder: Path | None, depth: int | None = None) -> Machine:
        """Return the rates to plan with."""
        return machine_of(self.shape, self.dtype, folder, self.run, depth=depth)

    def rows(self) -> RowPlan:
        """Return the plan of one pass over the rows of A and B."""
        return rows_for(self.shape, self.columns, self.dtype, self.folder, self.run)

    def slabs(self, kind: Kind, storage: Storage) -> SlabPlan:
        """Return the plan of a factorisation."""
        folder = self.folder
        if self.out is not None and is_location(self.out):
            folder = Path(parse_location(self.out).path).absolute().parent
        return slabs_for(
            kind, self.shape, self.dtype.name, self.machine(folder), self.run,
            storage=storage, reserved=PIECE_BYTES if self.checkpoint else 0,
        )  # fmt: skip

    def solution(self, stream: Stream, reserved: int = 0) -> SolvePlan:
        """Return the plan of a solution with stored triangles."""
        return plan_solve(
            (self.shape[0], self.columns), self.dtype, stream,
            host_bytes(self.run.options) - reserved, self.machine(self.folder, self.columns),
            in_array=not is_location(self.out), tile=self.run.options.tile,
        )  # fmt: skip

    def triangle(self) -> Stream:
        """Return what a solve with a stored triangle reads."""
        if self.matrix is None:
            return Stream(1, 1, self.dtype.itemsize)
        triangles = (Triangle(self.matrix, lower=True),)
        return ColumnSolver(lambda _solver, _x: None, triangles).stream(self.dtype)

    def factors(self, kind: Kind, transposed: bool, mirrors: bool) -> SlabPlan:
        """Return the plan of factors, of A or of its transpose, for a solve: in an array where A is
        one, or in a scratch file.
        """
        n, itemsize = self.shape[0], self.dtype.itemsize
        if self.folder is None:
            return SlabPlan.of_array(kind, n, n, self.dtype.name, host_bytes(self.run.options))
        described = n * itemsize if mirrors and self.matrix is None else 0
        pitch = described or self.row_bytes(transposed, itemsize)
        return self.slabs(kind, Storage(True, pitch, copies=not mirrors, whole=True))

    def completed(self, arguments: Mapping[str, Any]) -> _Preflight:
        """Return the same with A read whole from the triangle that is stored."""
        if self.matrix is None or arguments["assume_a"] not in MIRRORED:
            return self
        lower, hermitian = bool(arguments.get("lower")), arguments["assume_a"] == "her"
        return replace(self, matrix=whole_of(self.matrix, lower=lower, hermitian=hermitian))

    def system(self, routine: str, arguments: Mapping[str, Any]) -> JointPlan:
        """Return the plan of a factorisation into a scratch file, and of the solution with it."""
        kind: Kind = "cholesky" if arguments["assume_a"] == "pos" else "lu"
        mirrors = arguments["assume_a"] in MIRRORED
        upper = kind == "cholesky" and not arguments.get("lower", False)
        single = SINGLE.get(self.dtype.name) if arguments.get("refine") else None
        dtype, n = single or self.dtype, self.shape[0]
        columns = n if routine == "inv" else self.columns
        # Of a row-major matrix, refinement factors the transpose.
        turned = kind == "lu" and bool(single and self.matrix and self.matrix.order == "C")
        needed = FactorsOfSolve(
            kind, (n, columns), self.dtype, single,
            in_place=bool(arguments.get("overwrite_a")) and not mirrors, durable=self.checkpoint,
        )  # fmt: skip
        slabs = needed.plan_in_memory(self.folder, self.run) if routine == "solve" else None
        if slabs is None:
            slabs = replace(self, dtype=dtype, out=None).factors(kind, upper or turned, mirrors)
        stored = 2 if slabs.stores else 0
        reserved = needed.residual_bytes(self.run.options)
        reserved += 0 if slabs.stores else slabs.bytes_held
        whole = bool(stored) and n * dtype.itemsize < SHORT
        # The second triangle is L^H of Cholesky factors, U of LU factors, L of their transpose.
        second_lower = kind == "cholesky" or bool(arguments.get("transposed")) != turned
        stream = Stream(2, stored, dtype.itemsize, whole=whole,
                        keeps_lower=second_lower if whole else None)  # fmt: skip
        if single is not None:
            residual = n * n * self.dtype.itemsize
            stream = stream._replace(more=residual, copies=needed.copies, steps=STEPS)
        facts = facts_of(routine, (n, columns), self.dtype.name, self.run.options)
        solution = replace(self, columns=columns).solution(stream, reserved)
        return JointPlan(facts, (slabs, solution))
