"""Factors that one call needs and nobody keeps: scratch files beside A, or arrays."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdgemm.linalg.lu import factor
from hdgemm.linalg.storage import open_matrix, open_square

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options
    from hdgemm.progress import Watch
    from hdgemm.run.session import Session


class Factors(NamedTuple):
    """LU factors, their pivots, and the 1-based index of the first zero pivot, 0 without one."""

    lu: StoredMatrix
    pivots: NDArray[np.int64]
    zero: int


@contextmanager
def lu_factors(
    a: Any,
    watch: Watch,
    options: Options | None,
    session: Session | None,
    *,
    overwrite_a: bool = False,
    check_finite: bool = True,
) -> Iterator[Factors]:
    """Yield the LU factors of a matrix, which end with the context, or those that are given."""
    if isinstance(a, tuple):
        lu, pivots = a
        yield Factors(open_square(lu, "lu"), np.asarray(pivots, np.int64), 0)
        return
    source = open_matrix(a)
    with scratch_file(source, overwrite_a=overwrite_a) as place:
        lu, pivots, zero = factor(a, place, watch, options, session,
                                  overwrite_a=overwrite_a, check_finite=check_finite)  # fmt: skip
        yield Factors(open_matrix(lu), pivots, zero)


@contextmanager
def scratch_file(source: StoredMatrix, *, overwrite_a: bool) -> Iterator[Path | None]:
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
