"""Plans of factorisations and solves, made without reading or writing a matrix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.linalg.planning import Storage
from hdgemm.linalg.run import folder_of, host_session, machine_of, row_bytes, slabs_for
from hdgemm.linalg.slab_store import PIECE_BYTES
from hdgemm.linalg.solution import ColumnSolver
from hdgemm.linalg.solve_plan import SolvePlan, Stream, plan_solve
from hdgemm.linalg.storage import open_matrix
from hdgemm.linalg.triangle_solver import Triangle
from hdgemm.linalg.tsqr import plan_rows
from hdgemm.machine.limits import cores, default_host_bytes
from hdgemm.matrices.location import parse_location
from hdgemm.product.target import is_location
from hdgemm.progress import Watch

if TYPE_CHECKING:
    from collections.abc import Collection

    from hdgemm.linalg.slab_plan import Kind, SlabPlan
    from hdgemm.linalg.tsqr import RowPlan
    from hdgemm.options import Options
    from hdgemm.run.session import Session

#: The slabs that a routine is planned by.
_KINDS: Final[dict[str, Kind]] = {
    "cholesky": "cholesky", "cho_factor": "cholesky", "lu": "lu", "lu_factor": "lu", "qr": "qr",
    "solve": "lu",
}  # fmt: skip
#: Solves with a triangle that is stored.
_TRIANGULAR: Final = ("trsm", "solve_triangular")
#: Routines that have a plan.
PLANNED: Final[Collection[str]] = (*_KINDS, "lstsq", *_TRIANGULAR)


def plan(
    routine: str,
    a: Any,
    *,
    dtype: str = "float64",
    columns: int = 1,
    lower: bool = False,
    out: Any = None,
    checkpoint: bool = False,
    options: Options | None = None,
    session: Session | None = None,
) -> SlabPlan | RowPlan | SolvePlan:
    """Return the plan that a routine executes, without reading or writing a matrix.

    Parameters
    ----------
    routine
        "cholesky", "cho_factor", "lu" or "lu_factor", "qr" (the reflectors), "solve" (its LU
        factorisation), "lstsq", "trsm" or "solve_triangular".
    a
        The order n, the shape (m, n), or a matrix as the routine takes it.
    dtype
        Of the elements, where `a` is no matrix.
    columns
        Right-hand sides, for "lstsq" and triangular systems.
    lower
        As `cholesky` takes it: U is computed as the L of the transposed matrix.
    out
        Where the factors will go: a location. Its folder's disk is the one that is priced.
    checkpoint
        The run is to be durable.
    options, session
        As the routine takes them.

    Raises
    ------
    InputError
        For another routine, or a matrix that it does not take.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.

    Examples
    --------
    >>> print(hdgemm.linalg.plan("lu", 100_000, options=hdgemm.Options(host_memory="8GB")))
    """
    upper = _KINDS.get(routine) == "cholesky" and not lower
    shape, found, folder, pitch = _matrix(a, dtype, transposed=upper)
    if out is not None and is_location(out):
        folder = Path(parse_location(out).path).absolute().parent
    with host_session(session, options) as (opened, chosen):
        memory = chosen.host_bytes or default_host_bytes()
        if routine == "lstsq":
            return plan_rows(
                shape, columns, found.name, memory, chosen.threads or cores(),
                rows=chosen.tile and chosen.tile[0],
            )  # fmt: skip
        if routine not in (*_KINDS, *_TRIANGULAR):
            raise InputError(f"there are plans for {', '.join(PLANNED)}: not {routine}")
        if routine not in ("lu", "lu_factor", "qr") and shape[0] != shape[1]:
            raise InputError(f"{routine} takes square matrices, got {shape[0]}×{shape[1]}")
        if routine in _TRIANGULAR:
            return plan_solve(
                (shape[0], columns), found, _stream(a, found), memory,
                machine_of(shape, found, _matrix(a, dtype)[2], opened, chosen, Watch(),
                           depth=columns),
                in_array=not is_location(out), tile=chosen.tile,
            )  # fmt: skip
        machine = machine_of(shape, found, folder, opened, chosen, Watch())
        made = parse_location(out).format if out is not None and is_location(out) else None
        whole = made == "npy" or routine == "solve"
        storage = Storage(made != "zarr", pitch, whole, whole)
        return slabs_for(
            _KINDS[routine], shape, found.name, machine, chosen, opened,
            storage=storage, reserved=PIECE_BYTES if checkpoint else 0,
        )  # fmt: skip


def _stream(a: Any, dtype: np.dtype[Any]) -> Stream:
    """Return what a triangular solve reads; a matrix that is only described lies in a file."""
    if isinstance(a, int | tuple):
        return Stream(1, 1, dtype.itemsize)
    solver = ColumnSolver(lambda _solver, _x: None, (Triangle(open_matrix(a), lower=True),))
    return solver.stream(dtype)


def _matrix(
    a: Any, dtype: str, *, transposed: bool = False
) -> tuple[tuple[int, int], np.dtype[Any], Path | None, int]:
    """Return shape, dtype, folder and `row_bytes` of a matrix, or of one that is only described.

    `row_bytes` are those of the transpose where that is factored.
    """
    if isinstance(a, int):
        a = (a, a)
    if isinstance(a, tuple) and len(a) == 2 and all(isinstance(extent, int) for extent in a):
        return a, np.dtype(dtype), Path.cwd(), 0
    stored = open_matrix(a)
    pitch = row_bytes(stored.T if transposed else stored)
    return stored.shape, stored.dtype.newbyteorder("="), folder_of(stored), pitch
