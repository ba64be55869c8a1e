"""Solutions of linear systems out of core: `solve`, `lu_solve`, `cho_solve`."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError
from hdgemm.linalg.cholesky import cho_factor
from hdgemm.linalg.fortran import laswp
from hdgemm.linalg.lu import factor
from hdgemm.linalg.storage import SingularMatrixError, open_square
from hdgemm.linalg.triangle_solver import Triangle
from hdgemm.linalg.triangular import solve_stored, solve_triangular
from hdgemm.progress import Watch

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.linalg.triangle_solver import TriangleSolver
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback
    from hdgemm.run.session import Session


def cho_solve(
    c_and_lower: tuple[Any, bool],
    b: Any,
    overwrite_b: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    check_finite: bool = True,
    *,
    out: Any = None,
    options: Options | None = None,
    session: Session | None = None,
    progress: ProgressCallback | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
) -> Any:
    """Solve A·X = B with the Cholesky factor of A, which streams through memory twice.

    Parameters
    ----------
    c_and_lower
        What `cho_factor` returned; the factor may be a location.
    b, overwrite_b, check_finite, out, options, session, progress, observer, cancel
        As in `solve_triangular`; `check_finite` concerns B.
    """
    c, lower = c_and_lower
    matrix = open_square(c, "c")
    first, second = ("N", "C") if lower else ("C", "N")

    def solve_in_memory(solver: TriangleSolver, x: NDArray[Any]) -> None:
        solver.solve(Triangle(matrix, bool(lower), first), x)
        solver.solve(Triangle(matrix, bool(lower), second), x)

    return solve_stored(
        matrix.shape[0], matrix.dtype, b, out, Watch(progress, observer, cancel),
        options=options, session=session, check_finite=check_finite, solve=solve_in_memory,
    )  # fmt: skip


def lu_solve(
    lu_and_piv: tuple[Any, Any],
    b: Any,
    trans: int = 0,
    overwrite_b: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    check_finite: bool = True,
    *,
    out: Any = None,
    options: Options | None = None,
    session: Session | None = None,
    progress: ProgressCallback | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
) -> Any:
    """Solve op(A)·X = B with the LU factors of A, each of which streams through memory once.

    Parameters
    ----------
    lu_and_piv
        What `lu_factor`, or SciPy's, returned; the factors may be a location.
    trans
        0: A; 1: its transpose; 2: its conjugate transpose.
    b, overwrite_b, check_finite, out, options, session, progress, observer, cancel
        As in `solve_triangular`; `check_finite` concerns B.
    """
    lu, piv = lu_and_piv
    matrix = open_square(lu, "lu")
    pivots = np.asarray(piv, np.int64)
    n = matrix.shape[0]
    if pivots.shape != (n,):
        raise InputError(f"piv has shape {pivots.shape}, lu {matrix.shape}")
    if trans not in (0, 1, 2):
        raise InputError(f"trans must be 0, 1 or 2, got {trans!r}")
    code = "NTC"[trans]

    def solve_in_memory(solver: TriangleSolver, x: NDArray[Any]) -> None:
        if code == "N":
            laswp(x, pivots)
            solver.solve(Triangle(matrix, lower=True, unit=True), x)
            solver.solve(Triangle(matrix, lower=False), x)
            return
        solver.solve(Triangle(matrix, lower=False, trans=code), x)
        solver.solve(Triangle(matrix, lower=True, trans=code, unit=True), x)
        laswp(x, pivots, reverse=True)

    return solve_stored(
        n, matrix.dtype, b, out, Watch(progress, observer, cancel),
        options=options, session=session, check_finite=check_finite, solve=solve_in_memory,
    )  # fmt: skip


def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
    transposed: bool = False,
    *,
    out: Any = None,
    options: Options | None = None,
    session: Session | None = None,
    progress: ProgressCallback | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
) -> Any:
    """Solve A·X = B for a square matrix of any size.

    Where A lies in a file its factors go to a scratch file in the same folder, which needs as much
    space as A and is removed afterwards.

    Parameters
    ----------
    a, b
        As in `lu_factor` and `solve_triangular`.
    lower
        The triangle that is read for "pos".
    overwrite_a
        The factors may be stored in place of `a`.
    assume_a
        "gen", "sym" and "her": LU with partial pivoting of the whole matrix; "pos": Cholesky;
        "upper triangular", "lower triangular": no factorisation.
    transposed
        Solve with the transpose of A.
    overwrite_b, check_finite, out, options, session, progress, observer, cancel
        As in `solve_triangular`.

    Raises
    ------
    LinAlgError
        When a pivot is exactly zero, or A is not positive definite; a `SingularMatrixError`.
    InputError
        When shapes do not fit together, or elements are not finite.
    """
    run: dict[str, Any] = {
        "options": options, "session": session, "progress": progress, "observer": observer,
        "cancel": cancel,
    }  # fmt: skip
    rest: dict[str, Any] = run | {"check_finite": check_finite, "out": out}
    if assume_a in ("upper triangular", "lower triangular"):
        return solve_triangular(
            a, b, int(transposed), assume_a.startswith("lower"), overwrite_b=overwrite_b, **rest
        )
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise InputError(
            "assume_a must be 'gen', 'sym', 'her', 'pos', 'upper triangular' or 'lower "
            f"triangular', got {assume_a!r}"
        )
    source = open_square(a)
    if assume_a == "pos" and transposed and source.dtype.kind == "c":
        raise InputError("transposed does not go with assume_a='pos' for a complex matrix")
    with _scratch(source, overwrite_a=overwrite_a) as place:
        if assume_a == "pos":
            c_and_lower = cho_factor(a, lower, overwrite_a, check_finite, out=place, **run)
            return cho_solve(c_and_lower, b, overwrite_b, **rest)
        lu, pivots, zero = factor(
            a, place, Watch(progress, observer, cancel), options, session,
            overwrite_a=overwrite_a, check_finite=check_finite,
        )  # fmt: skip
        if zero:
            raise SingularMatrixError(f"a is singular: pivot {zero} is exactly zero", order=zero)
        return lu_solve((lu, pivots), b, int(transposed), overwrite_b, **rest)


@contextmanager
def _scratch(source: StoredMatrix, *, overwrite_a: bool) -> Iterator[Path | None]:
    """Yield a file for the factors beside A; None where they go into memory, or in place of A."""
    home = source.operand.matrix.home
    if home is None or overwrite_a:
        yield None
        return
    parent = home if home.is_dir() else home.parent
    folder = Path(tempfile.mkdtemp(prefix=".hdgemm-solve-", dir=parent))
    try:
        yield folder / "factors.npy"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
