"""Plans of factorisations and solves, made without reading or writing a matrix."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdgemm.call.keywords import Call
from hdgemm.call.operands import open_matrix
from hdgemm.errors import InputError, InputTypeError
from hdgemm.machine.limits import memory_limit
from hdgemm.matrices.layout import check_read
from hdgemm.matrices.location import Location
from hdgemm.matrices.planned import planned_matrix
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.routines.description import load
from hdgemm.routines.registry import planned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from hdgemm.call.plans import LinearPlan
    from hdgemm.call.prepared import Prepared
    from hdgemm.options import Options
    from hdgemm.routines.description import Routine
    from hdgemm.run.session import Session


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
        and "inv" (factorisation and solution), "lstsq", "ridge", "pinv", "svd", "svdvals", "svds",
        "eigsh", "pca", "cov", "corrcoef", "norm", "trsm" or "solve_triangular", "det", "slogdet",
        "syrk", "topk".
    a
        The order n, the shape (m, n), or a matrix as the routine takes it.
    dtype
        Of the elements, where `a` is no matrix.
    columns
        Right-hand sides, for "solve", "lstsq" and triangular systems, and columns of op(B) for
        "topk": their number, or B as the routine takes it.
    out
        Where the result will go: a location. Its folder's disk is the one that is priced. None for
        an array, or for A with `overwrite_a`; where A is only described, for a file.
    checkpoint
        The run is to be durable.
    options, session
        As the routine takes them.
    arguments
        Arguments of the routine that change its plan: `lower`, `overwrite_a`, `assume_a`,
        `transposed`, `refine`, `trans`, `mode`, `k`, `trans_b` and others. The plan of
        ``refine="float32"`` has three solves.

    Returns
    -------
    LinearPlan
        Slabs, bytes, memory and expected seconds; `print` shows a table.

    Raises
    ------
    InputError
        For another routine, or a matrix that it does not take.
    InputTypeError
        For other arguments.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.

    See Also
    --------
    hdgemm.plan : Plans of products.

    Examples
    --------
    >>> print(hdgemm.linalg.plan("lu", 100_000, options=hdgemm.Options(host_memory="8GB")))
    """
    if not isinstance(routine, str):
        raise InputTypeError(
            f"routine must be a name such as 'lu', got a {type(routine).__name__}: pass the name "
            "first, then the matrix"
        )
    described = planned().get(routine)
    if described is None:
        raise InputError(f"there are plans for {', '.join(planned())}: not {routine}")
    _check_arguments(routine, described, arguments)
    call = Call(options, session, checkpoint=checkpoint)
    with memory_limit(), _operands(described, a, dtype, columns, arguments) as operands:
        if out is None and operands[0] is not a:
            out = _new_files(described, arguments)
        with prepared(described, operands, out, call, arguments) as found:
            return found.plan


def prepared(
    routine: Routine, operands: Sequence[Any], out: Any, call: Call, arguments: Mapping[str, Any]
) -> AbstractContextManager[Prepared[Any]]:
    """Return the context that prepares a call of a routine."""
    context: AbstractContextManager[Prepared[Any]] = load(routine.prepare)(
        *operands, out, call, **arguments
    )
    return context


@contextmanager
def _operands(
    routine: Routine, a: Any, dtype: str, columns: Any, given: Mapping[str, Any]
) -> Iterator[list[Any]]:
    """Yield A and, for a routine that takes it, B; either may be described only."""
    matrix = _described(a, dtype)
    found = [a if matrix is None else matrix]
    if len(routine.operands) == 1:
        yield found
        return
    if not isinstance(columns, int):
        yield [*found, columns]
        return
    first, second = routine.operands
    with open_matrix(found[0]) as source:
        extents = dict(zip(first.stored(given), source.shape, strict=True))
        rows, cols = (extents.get(name, columns) for name in second.stored(given))
        described = planned_matrix(None, (rows, cols), source.dtype.newbyteorder("="), "F")
    yield [*found, StoredMatrix(described, writable=False)]


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
    return StoredMatrix(planned_matrix(where, shape, check_read(dtype, "a")), writable=False)


def _new_files(routine: Routine, arguments: Mapping[str, Any]) -> Any:
    """Return where the results of a matrix go that is only described: one file, or several."""
    names = [each.name for each in routine.present(arguments, "matrix")]
    places = tuple(Location(Path(f"{name.upper()}-NEW.npy")) for name in names)
    return places if len(places) > 1 else next(iter(places), None)


def _check_arguments(name: str, routine: Routine, given: Mapping[str, Any]) -> None:
    """Refuse what has no effect on the plan of a routine."""
    known = [each.name for each in routine.parameters]
    if unknown := sorted(set(given) - set(known)):
        taken = ", ".join([*known, "dtype", "columns", "out", "checkpoint", "options", "session"])
        raise InputTypeError(
            f"the plan of {name} has no argument {', '.join(unknown)}; it takes {taken}"
        )
