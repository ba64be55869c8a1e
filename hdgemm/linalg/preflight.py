"""Plans of factorisations and solves, made without reading or writing a matrix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import InputError, InputTypeError
from hdgemm.linalg.operands import check_tall
from hdgemm.linalg.planned_call import PlannedCall, shape_of
from hdgemm.linalg.rank_update import plan_syrk
from hdgemm.linalg.run import OpenRun, Run, open_run
from hdgemm.linalg.system import check_refine, structure_of
from hdgemm.machine.limits import memory_limit
from hdgemm.matrices.described import described
from hdgemm.matrices.layout import check_dtype
from hdgemm.matrices.location import Location
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.progress import Watch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hdgemm.linalg.joint_plan import JointPlan
    from hdgemm.linalg.row_plan import RowPlan
    from hdgemm.linalg.slab_plan import Kind, SlabPlan
    from hdgemm.linalg.solve_plan import SolvePlan
    from hdgemm.options import Options
    from hdgemm.run.session import Session

#: The slabs that a routine is planned by.
_KINDS: Final[dict[str, Kind]] = {
    "cholesky": "cholesky", "cho_factor": "cholesky", "lu": "lu", "lu_factor": "lu",
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
#: Modes of qr that have a plan: the others form Q afterwards.
_MODES: Final = ("raw", "r")
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
        "cholesky", "cho_factor", "lu" or "lu_factor", "qr" (modes "raw" and "r"; TSQR of a tall
        matrix for R), "solve" and "inv" (factorisation and solution), "lstsq", "trsm" or
        "solve_triangular", "syrk".
    a
        The order n, the shape (m, n), or a matrix as the routine takes it.
    dtype
        Of the elements, where `a` is no matrix.
    columns
        Right-hand sides, for "solve", "lstsq" and triangular systems: their number, or B as the
        routine takes it.
    out
        Where the result will go: a location. Its folder's disk is the one that is priced. None for
        an array, or for A with `overwrite_a`; where A is only described, for a file.
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
        call = PlannedCall.of(a, dtype, columns, out, run, checkpoint=checkpoint)
        if routine == "lstsq":
            check_tall(call.shape)
            return call.rows()
        m, n = call.shape
        if routine not in ("lu", "lu_factor", "qr") and m != n:
            raise InputError(f"{routine} takes square matrices, got {m}×{n}")
        arguments["assume_a"] = structure_of(arguments.get("assume_a"))
        if routine in _TRIANGULAR or "triangular" in arguments["assume_a"]:
            return call.solution(call.triangle(), call.folder)
        if routine in ("solve", "inv"):
            return call.completed(arguments).system(routine, arguments)
        if routine == "qr":
            return call.qr(arguments)
        return call.factorisation(_KINDS[routine], arguments)


def _check_arguments(routine: str, given: Mapping[str, Any]) -> None:
    """Refuse what has no effect on the plan of a routine."""
    known = _ARGUMENTS[routine]
    if unknown := sorted(set(given) - set(known)):
        has = f"has {', '.join(known)}" if known else "has none"
        raise InputTypeError(
            f"the plan of {routine} has no argument {', '.join(unknown)}: it {has} of those of "
            f"{routine}, and dtype, columns, out, checkpoint, options, session"
        )
    if (mode := given.get("mode", "raw")) not in _MODES:
        raise InputError(f"there are plans of qr for the modes {', '.join(_MODES)}, not {mode!r}")
    check_refine(given.get("refine"))


def _syrk(a: Any, dtype: str, out: Any, run: OpenRun, given: Mapping[str, Any]) -> JointPlan:
    how = int(given.get("trans", 0)), int(given.get("lower", 0)), out, run.options, run.session
    if (shape := shape_of(a)) is not None:
        operand = described(Location(Path.cwd() / "A.npy"), shape, check_dtype(dtype, "a"))
        a = StoredMatrix(operand, writable=False)
    return plan_syrk(a, *how)
