"""Triangular solves out of core: the matrix streams through memory once, B stays in memory."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.linalg.fortran import gemm, trsm
from hdgemm.linalg.planning import STREAM_BUFFERS
from hdgemm.linalg.run import host_session
from hdgemm.linalg.slabs import Recorder
from hdgemm.linalg.storage import (
    SingularMatrixError,
    destination,
    in_memory,
    open_matrix,
    open_square,
)
from hdgemm.machine.limits import default_host_bytes
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.product.target import is_location, single
from hdgemm.progress import Watch

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback
    from hdgemm.run.session import Session

#: Bytes of a stream block, where memory allows them: a few of the largest disk requests.
_BLOCK_BYTES: Final = 32 << 20
#: Columns of a stream block at most: trsm, which is slower than gemm, takes their triangle.
_MOST_COLUMNS: Final = 512


class Triangle(NamedTuple):
    """One triangle of a stored matrix as the left side of op(A)·X = B.

    `trans` is N, T (transposed) or C (conjugate transposed); `unit` says that the diagonal is not
    stored and has ones; `checked` that zeros on it and NaNs are errors.
    """

    matrix: StoredMatrix
    lower: bool
    trans: str = "N"
    unit: bool = False
    checked: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """Columns `first` to `last` of a triangle in memory: its diagonal block and the rest."""

    first: int
    last: int
    diagonal: NDArray[Any]
    rest: NDArray[Any]


class TriangleSolver:
    """Context that solves triangular systems with one right-hand side matrix in memory.

    Parameters
    ----------
    n, dtype
        Of the triangles; elements are converted to `dtype`.
    memory
        Bytes for stream blocks.
    """

    def __init__(self, n: int, dtype: np.dtype[Any], memory: int, watch: Watch) -> None:
        self._n, self._dtype = n, dtype
        self._recorder = Recorder(watch, 0)
        column = max(1, n * dtype.itemsize)
        self._columns = max(1, min(_MOST_COLUMNS, _BLOCK_BYTES // column,
                                   memory // (STREAM_BUFFERS * column)))  # fmt: skip
        self._buffers: list[NDArray[Any]] = []
        self._pool = ThreadPoolExecutor(STREAM_BUFFERS, "hdgemm-triangle")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._buffers = []

    def solve(self, triangle: Triangle, x: NDArray[Any]) -> None:
        """Overwrite B, given in the column-major `x`, by X."""
        matrix, lower, trans, unit, checked = triangle
        conjugate = False
        if matrix.order == "C" and in_memory(matrix, self._dtype) is None:
            # Stream the columns of the transpose, which are contiguous.
            conjugate = trans == "C" and self._dtype.kind == "c"
            matrix, lower, trans = matrix.T, not lower, "N" if trans != "N" else "T"
        if conjugate:
            np.conjugate(x, out=x)
        starts = range(0, self._n, self._columns)
        forward = lower == (trans == "N")
        for number, part in enumerate(
            self._parts(matrix, starts if forward else starts[::-1], lower), 1
        ):
            if checked:
                _check(part, lower=lower, unit=unit)
            rows = slice(part.last, None) if lower else slice(0, part.first)
            inner, outer = x[part.first : part.last], x[rows]
            flops = (
                flops_per_multiply_add(self._dtype.name)
                * x.shape[1]
                * (part.rest.size + part.diagonal.size // 2)
            )
            with self._recorder.operation("mult1", 0, flops=flops, block=number):
                if trans == "N":
                    trsm(part.diagonal, inner, lower=lower, unit=unit)
                    gemm(-1.0, part.rest, inner, outer)
                else:
                    gemm(-1.0, part.rest, outer, inner, trans_a=trans)
                    trsm(part.diagonal, inner, lower=lower, trans=trans, unit=unit)
        if conjugate:
            np.conjugate(x, out=x)

    def _parts(self, matrix: StoredMatrix, starts: range, lower: bool) -> Iterator[_Part]:
        array = in_memory(matrix, self._dtype)
        if array is not None:
            for first in starts:
                last = min(first + self._columns, self._n)
                rows = slice(first, None) if lower else slice(0, last)
                yield _cut(array[rows, first:last], first, last, lower=lower)
            return
        if not self._buffers:
            size = self._n * self._columns
            self._buffers = [np.empty(size, self._dtype) for _ in range(STREAM_BUFFERS)]
        reads: deque[Future[_Part]] = deque()
        for number, first in enumerate(starts):
            buffer = self._buffers[number % STREAM_BUFFERS]
            if len(reads) == STREAM_BUFFERS:
                yield reads.popleft().result()
            reads.append(self._pool.submit(self._read, matrix, first, buffer, lower))
        while reads:
            yield reads.popleft().result()

    def _read(self, matrix: StoredMatrix, first: int, buffer: NDArray[Any], lower: bool) -> _Part:
        last = min(first + self._columns, self._n)
        top, bottom = (first, self._n) if lower else (0, last)
        shape = bottom - top, last - first
        array = buffer[: shape[0] * shape[1]].reshape(shape, order="F")
        with self._recorder.operation("load1", 0, nbytes=array.nbytes):
            matrix[top:bottom, first:last].read(array)
        return _cut(array, first, last, lower=lower)


def _cut(array: NDArray[Any], first: int, last: int, *, lower: bool) -> _Part:
    width = last - first
    if lower:
        return _Part(first, last, array[:width], array[width:])
    return _Part(first, last, array[first:], array[:first])


def _check(part: _Part, *, lower: bool, unit: bool) -> None:
    """Raise for a zero on the diagonal, and for NaN and Inf in the triangle."""
    zeros = np.flatnonzero(np.diagonal(part.diagonal) == 0)
    if zeros.size and not unit:
        order = part.first + int(zeros[0]) + 1
        raise SingularMatrixError(
            f"a is singular: number {order} of its diagonal is exactly zero", order=order
        )
    triangle = np.tril(part.diagonal) if lower else np.triu(part.diagonal)
    if not (np.isfinite(triangle).all() and np.isfinite(part.rest).all()):
        raise InputError(
            f"columns {part.first} to {part.last} of a's triangle contain infs or NaNs",
            first=part.first, last=part.last,
        )  # fmt: skip


def solve_stored(
    n: int,
    dtype: np.dtype[Any],
    b: Any,
    out: Any,
    watch: Watch,
    *,
    options: Any,
    session: Session | None,
    check_finite: bool,
    solve: Callable[[TriangleSolver, NDArray[Any]], None],
) -> Any:
    """Solve for all columns of B, as many at a time as fit the memory, and return X.

    Parameters
    ----------
    n, dtype
        Of the factored matrix.
    b, out
        As in `solve_triangular`.
    solve
        Overwrites B in a column-major array by X.
    """
    vector = not (is_location(b) or isinstance(b, StoredMatrix)) and np.ndim(b) == 1
    rhs = open_matrix(np.asarray(b)[:, np.newaxis] if vector else b)
    if rhs.shape[0] != n:
        raise InputError(f"b has {rhs.shape[0]} rows, the matrix {n}: they must be as many")
    dtype = np.result_type(dtype, rhs.dtype).newbyteorder("=")
    given = single(out)
    if vector and isinstance(given, np.ndarray):
        given = given[:, np.newaxis]
    with (
        host_session(session, options) as (_, chosen),
        destination(given, b, rhs, order="F", overwrite_a=False, dtype=dtype) as target,
    ):
        memory = chosen.host_bytes or default_host_bytes()
        array = in_memory(target.stored, dtype)
        columns = rhs.shape[1] if array is not None else _columns(n, dtype, memory, rhs.shape[1])
        with TriangleSolver(n, dtype, memory // 4, watch) as solver:
            for first in range(0, rhs.shape[1], max(1, columns)):
                part = rhs[:, first : first + columns]
                x = np.empty(part.shape, dtype, "F") if array is None else array
                part.read(x)
                if check_finite and not all(np.isfinite(column).all() for column in x.T):
                    raise InputError("b must not contain infs or NaNs")
                solve(solver, x)
                if array is None:
                    target.stored[:, first : first + columns] = x
    result = target.result()
    if isinstance(out, np.ndarray):
        return out
    return result[:, 0] if vector and target.location is None else result


def _columns(n: int, dtype: np.dtype[Any], memory: int, most: int) -> int:
    """Return how many columns of B fit beside the stream, which has a quarter of the memory."""
    column = max(1, n * dtype.itemsize)
    room = memory - memory // 4 - min(BOUNCE_BYTES, memory // 8)
    if room < column:
        raise DoesNotFitError(
            f"one column of b needs {column} bytes beside the stream; host_memory is {memory}: "
            f"raise it to {2 * column}",
            requested=2 * column, available=memory, missing=2 * column - memory,
        )  # fmt: skip
    return min(most, room // column)


def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
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
    """Solve op(A)·X = B for a triangular matrix of any size, which streams through memory once.

    Parameters
    ----------
    a
        A square matrix as in `hdgemm.matmul`; only one triangle is read.
    b
        Right-hand sides: a vector, or a matrix as in `hdgemm.matmul`. One that does not fit the
        memory is solved by groups of columns, for each of which A streams again; `out` must be
        a file then.
    trans
        0 or "N": A; 1 or "T": its transpose; 2 or "C": its conjugate transpose.
    lower
        Read the lower triangle.
    unit_diagonal
        The diagonal is not read; ones are in its place.
    overwrite_b
        Has no effect.
    check_finite
        Raise `InputError` for NaN and Inf in the triangle or in B.
    out
        Where X goes: an array, a stored matrix, the location of a file; None for a new array.
    options, session, progress, observer, cancel
        As in `cholesky`.

    Raises
    ------
    LinAlgError
        When an element of the diagonal is exactly zero; it is a `SingularMatrixError`.
    InputError
        When shapes do not fit together, or elements are not finite.
    DoesNotFitError
        When not one column of B fits the memory.
    """
    matrix = open_square(a)
    codes = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}
    if trans not in codes:
        raise InputError(f"trans must be 0, 1, 2, 'N', 'T' or 'C', got {trans!r}")
    triangle = Triangle(matrix, bool(lower), codes[trans], bool(unit_diagonal), check_finite)
    return solve_stored(
        matrix.shape[0], matrix.dtype, b, out, Watch(progress, observer, cancel),
        options=options, session=session, check_finite=check_finite,
        solve=lambda solver, x: solver.solve(triangle, x),
    )  # fmt: skip
