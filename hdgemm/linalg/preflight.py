"""Plans of factorisations and solves, made without reading or writing a matrix."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hdgemm.blas.rank_update import plan_syrk, syrk
from hdgemm.call.keywords import Call
from hdgemm.call.operands import open_matrix
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import open_run
from hdgemm.errors import InputError, InputTypeError
from hdgemm.linalg.cholesky import prepare as prepare_cholesky
from hdgemm.linalg.factored_solve import prepare_triangular
from hdgemm.linalg.inverse import prepare as prepare_inverse
from hdgemm.linalg.lstsq import prepare as prepare_lstsq
from hdgemm.linalg.lu import prepare as prepare_lu
from hdgemm.linalg.qr import prepare as prepare_qr
from hdgemm.linalg.solve import prepare as prepare_solve
from hdgemm.machine.limits import memory_limit
from hdgemm.matrices.layout import check_dtype
from hdgemm.matrices.location import Location
from hdgemm.matrices.planned import planned_matrix
from hdgemm.matrices.stored import StoredMatrix

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager

    from hdgemm.call.plans import LinearPlan
    from hdgemm.options import Options
    from hdgemm.run.session import Session

#: Arguments of the routines that have a plan, where they change it.
_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("cholesky", "cho_factor"), ("lower", "overwrite_a")),
    **dict.fromkeys(("lu", "lu_factor"), ("overwrite_a",)),
    "inv": ("overwrite_a", "assume_a", "lower"),
    "qr": ("mode", "overwrite_a"),
    "solve": ("lower", "overwrite_a", "assume_a", "transposed", "refine"),
    "lstsq": (),
    **dict.fromkeys(("trsm", "solve_triangular"), ("lower", "trans")),
    "syrk": ("lower", "trans"),
}
#: Where the result of a matrix goes that is only described.
_NEW: Final = Location(Path("OUT.npy"))
_NEW_Q: Final = Location(Path("Q.npy"))
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
) -> LinearPlan:
    """Return the plan that a routine executes, without reading or writing a matrix.

    Parameters
    ----------
    routine
        "cholesky", "cho_factor", "lu_factor" (or "lu", as the command line names it), "qr", "solve"
        and "inv" (factorisation and solution), "lstsq", "trsm" or "solve_triangular", "syrk".
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
    call = Call(options, session, checkpoint=checkpoint)
    if routine in _PREPARED:
        with memory_limit(), _PREPARED[routine](a, dtype, out, call, arguments) as prepared:
            return prepared.plan
    with memory_limit(), _system(routine, a, dtype, columns, out, call, arguments) as prepared:
        return prepared.plan


def shape_of(a: Any) -> tuple[int, int] | None:
    """Return the shape of a matrix that is only described; None for a matrix."""
    shape = (a, a) if isinstance(a, int) else a
    extents = isinstance(shape, tuple) and all(isinstance(extent, int) for extent in shape)
    return shape if extents and len(shape) == 2 else None


def _described(a: Any, dtype: str) -> StoredMatrix | None:
    """Return a matrix in a file of which only the shape is known; None for one that exists."""
    shape = shape_of(a)
    if shape is None:
        return None
    where = Location(Path.cwd() / "A.npy")
    return StoredMatrix(planned_matrix(where, shape, check_dtype(dtype, "a")), writable=False)


def _lu(
    a: Any, dtype: str, out: Any, call: Call, given: Mapping[str, Any]
) -> AbstractContextManager[Prepared[Any]]:
    matrix = _described(a, dtype)
    if matrix is None:
        return prepare_lu(a, out, call, **given)
    return prepare_lu(matrix, out or _NEW, call, **given)


def _cholesky(
    a: Any, dtype: str, out: Any, call: Call, given: Mapping[str, Any]
) -> AbstractContextManager[Prepared[Any]]:
    given = {"lower": False, **given}
    matrix = _described(a, dtype)
    if matrix is None:
        return prepare_cholesky(a, out, call, **given)
    return prepare_cholesky(matrix, out or _NEW, call, **given)


def _qr(
    a: Any, dtype: str, out: Any, call: Call, given: Mapping[str, Any]
) -> AbstractContextManager[Prepared[Any]]:
    matrix = _described(a, dtype)
    if matrix is None:
        return prepare_qr(a, out, call, **given)
    pair = given.get("mode", "full") in ("full", "economic")
    return prepare_qr(matrix, out or ((_NEW_Q, _NEW) if pair else _NEW), call, **given)


def _inverse(
    a: Any, dtype: str, out: Any, call: Call, given: Mapping[str, Any]
) -> AbstractContextManager[Prepared[Any]]:
    matrix = _described(a, dtype)
    return prepare_inverse(a if matrix is None else matrix, out, call, **given)


@contextmanager
def _syrk(
    a: Any, dtype: str, out: Any, call: Call, given: Mapping[str, Any]
) -> Iterator[Prepared[Any]]:
    matrix = _described(a, dtype)
    a = a if matrix is None else matrix
    trans, lower = int(given.get("trans", 0)), int(given.get("lower", 0))
    with open_run(call) as run:
        plan = plan_syrk(a, trans, lower, out, run.options, run.session)
        how: dict[str, Any] = {"options": run.options, "session": run.session}
        yield Prepared(plan, partial(syrk, 1.0, a, trans=trans, lower=lower, out=out, **how))


#: Contexts that prepare each routine of one matrix.
_PREPARED: Final[Mapping[str, Callable[..., AbstractContextManager[Prepared[Any]]]]] = {
    "cholesky": _cholesky,
    "cho_factor": _cholesky,
    "lu": _lu,
    "lu_factor": _lu,
    "inv": _inverse,
    "qr": _qr,
    "syrk": _syrk,
}
#: Contexts that prepare each routine of a matrix and right-hand sides.
_SYSTEMS: Final[Mapping[str, Callable[..., AbstractContextManager[Prepared[Any]]]]] = {
    "solve": prepare_solve,
    "lstsq": prepare_lstsq,
    "trsm": prepare_triangular,
    "solve_triangular": prepare_triangular,
}


@contextmanager
def _system(
    routine: str,
    a: Any,
    dtype: str,
    columns: Any,
    out: Any,
    call: Call,
    given: Mapping[str, Any],
) -> Iterator[Prepared[Any]]:
    """Yield a routine of A and B, prepared; either may be described only."""
    matrix = _described(a, dtype)
    with open_matrix(a if matrix is None else matrix) as source:
        if isinstance(columns, int):
            rows = planned_matrix(
                None, (source.shape[0], columns), source.dtype.newbyteorder("="), "F"
            )
            columns = StoredMatrix(rows, writable=False)
        with _SYSTEMS[routine](
            a if matrix is None else matrix, columns, out, call, **given
        ) as prepared:
            yield prepared


def _check_arguments(routine: str, given: Mapping[str, Any]) -> None:
    """Refuse what has no effect on the plan of a routine."""
    known = _ARGUMENTS[routine]
    if unknown := sorted(set(given) - set(known)):
        has = f"has {', '.join(known)}" if known else "has none"
        raise InputTypeError(
            f"the plan of {routine} has no argument {', '.join(unknown)}: it {has} of those of "
            f"{routine}, and dtype, columns, out, checkpoint, options, session"
        )
