"""LU factorisation with separate factors: `lu`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError
from hdgemm.fortran import laswp
from hdgemm.linalg.run import Run, host_session
from hdgemm.linalg.scratch import lu_factors
from hdgemm.linalg.storage import absolute, check_apart, destination, open_matrix
from hdgemm.machine.limits import default_host_bytes
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress

if TYPE_CHECKING:
    import threading

    from numpy.typing import NDArray

    from hdgemm.linalg.storage import Destination
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback
    from hdgemm.run.session import Session


@shows_progress
def lu(
    a: Any,
    permute_l: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    p_indices: bool = True,
    *,
    out: tuple[Any, Any] | None = None,
    options: Options | None = None,
    session: Session | None = None,
    progress: ProgressCallback | bool | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
) -> tuple[Any, ...]:
    """Return ``(p, l, u)``, the LU factorisation A = L[p, :]·U of an m×n matrix of any size.

    `lu_factor` stores both factors in one matrix, which takes half the space.

    Parameters
    ----------
    a, overwrite_a, check_finite
        As in `lu_factor`. The factors of a matrix in a file go to a scratch file in its folder
        first.
    permute_l
        Return ``(L[p, :], U)``.
    p_indices
        True, unlike SciPy's default: p is a vector of indices. False: p is an m×m matrix, an array
        in memory, with A = P·L·U.
    out
        Where L (m×k, k = min(m, n)) and U (k×n) go: two arrays, stored matrices or locations of
        files; None for new arrays.
    options, session, progress, observer, cancel
        As in `lu_factor`.

    Returns
    -------
    p : array of int64
    l, u : array
        As `lu_factor` returns its factors.

    Raises
    ------
    InputError
        When A is not finite: `row` and `col`.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    Examples
    --------
    >>> p, l, u = hdgemm.linalg.lu("A.npy", out=("L.npy", "U.npy"))
    """
    if out is not None and (not isinstance(out, tuple) or len(out) != 2):
        raise InputError(f"out must be two places, of L and of U, got {out!r}")
    places = [absolute(place) for place in out or (None, None)]
    source = open_matrix(a)
    m, n = source.shape
    k = min(m, n)
    watch = Watch.of(progress, observer, cancel)
    with (
        host_session(session, options) as (held, chosen),
        lu_factors(
            a, Run(chosen, held, watch), overwrite_a=overwrite_a, check_finite=check_finite
        ) as found,
        ExitStack() as stack,
    ):
        # Row i of A is row p[i] of L·U.
        order = np.asfortranarray(np.arange(m, dtype=np.float64)[:, np.newaxis])
        laswp(order, found.pivots)
        p = np.argsort(order[:, 0].astype(np.int64))
        left, right = (
            stack.enter_context(
                destination(place, a, source, order="F", overwrite_a=False, shape=shape)
            )
            for place, shape in zip(places, ((m, k), (k, n)), strict=True)
        )
        check_apart(left, right)
        memory = chosen.host_bytes or default_host_bytes()
        _split(found.lu, left, right, p if permute_l else None, memory)
    if permute_l:
        return left.result(), right.result()
    if p_indices:
        return p, left.result(), right.result()
    real = np.empty(0, source.dtype.newbyteorder("=")).real.dtype
    return np.eye(m, dtype=real)[p], left.result(), right.result()


def _split(
    factors: StoredMatrix,
    left: Destination,
    right: Destination,
    p: NDArray[np.int64] | None,
    memory: int,
) -> None:
    """Store L and U, of which `factors` has both, by groups of columns."""
    m, n = factors.shape
    k = min(m, n)
    each = max(1, m * factors.dtype.itemsize)
    width = max(1, memory // (8 * each))
    for first in range(0, n, width):
        block = factors[:, first : first + width].read()
        last = first + block.shape[1]
        right.stored[:, first:last] = np.triu(block[:k], -first)
        if first >= k:
            continue
        block = np.tril(block[:, : k - first], -first - 1)
        diagonal = np.arange(first, min(last, k))
        block[diagonal, diagonal - first] = 1
        left.stored[:, first : min(last, k)] = block if p is None else block[p]
