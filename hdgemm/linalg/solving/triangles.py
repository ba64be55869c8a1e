"""Triangular systems with one side streamed: a stored triangle, and right-hand sides in memory."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from hdgemm.call.operands import computes_in_place, in_memory
from hdgemm.fortran import SingularMatrixError, gemm, trsm
from hdgemm.linalg.planning.slab import Columns
from hdgemm.linalg.planning.solve import kept_blocks
from hdgemm.linalg.slabs.slab import Slab, check_finite_slab
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.planned import PlannedMatrix
from hdgemm.matrices.read_ahead import STREAM_BUFFERS, ReadAhead, array_in
from hdgemm.matrices.transfer import ALIGNMENT, SHORT, aligned_bytes, array_at
from hdgemm.pipeline.devices.host_blas import SCIPY_SINGLE_THREADED
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.matrices.stored import StoredMatrix


#: Right-hand sides up to which BLAS runs in one thread: the stream takes longer than the product,
#: and threads that wait for a busy core took 20 times as long.
_FEW: Final = 16


def few_threads(x: NDArray[Any]) -> AbstractContextManager[None]:
    """Return the context of BLAS calls with the right-hand sides X."""
    return SCIPY_SINGLE_THREADED if x.shape[1] <= _FEW else nullcontext()


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

    def by_columns(self, dtype: np.dtype[Any]) -> Triangle:
        """Return it with contiguous columns: a row-major matrix that streams as its transpose."""
        if self.matrix.order == "F" or computes_in_place(self.matrix, dtype):
            return self
        trans = "N" if self.trans != "N" else "T"
        return self._replace(matrix=self.matrix.T, lower=not self.lower, trans=trans)


def whole_columns(matrix: StoredMatrix) -> bool:
    """Say whether columns are read whole: they lie one after the other in a file, and requests for
    their halves, a short one for each column, take longer.
    """
    stored = matrix.operand.matrix
    length = stored.shape[1] * stored.dtype.itemsize
    return isinstance(stored, FileMatrix | PlannedMatrix) and stored.pitch == length < SHORT


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
    block
        Columns of a stream block.
    recorder
        Told of every operation.
    group
        The number of the group of right-hand sides that is solved, for events.
    kept
        Bytes for parts of columns that are read for one triangle and used for the next one, too.
    """

    def __init__(
        self,
        n: int,
        dtype: np.dtype[Any],
        block: int,
        recorder: Recorder,
        group: int = 0,
        kept: int = 0,
    ) -> None:
        self._n, self._dtype, self.block = n, dtype, min(block, max(1, n))
        self.recorder, self.group = recorder, group
        self.kept_bytes = kept
        self._kept: dict[int, NDArray[Any]] = {}
        self._keep(None)
        self._buffers: list[NDArray[np.uint8]] = []
        self._reads = ReadAhead()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reads.close()
        self._buffers, self._kept = [], {}

    def solve(self, triangle: Triangle, x: NDArray[Any], then: Triangle | None = None) -> None:
        """Overwrite B, given in the column-major `x`, by X.

        `then` is the triangle of the same matrix that is solved next: parts of it are kept.
        """
        streamed = triangle.by_columns(self._dtype)
        matrix, lower, trans, unit, checked = streamed
        conjugate = triangle.trans == "C" != streamed.trans and self._dtype.kind == "c"
        self._keep(then)
        if conjugate:
            np.conjugate(x, out=x)
        starts = range(0, self._n, self.block)
        forward = lower == (trans == "N")
        for number, part in enumerate(
            self._parts(matrix, starts if forward else starts[::-1], lower), 1
        ):
            if checked:
                _check(part, lower=lower, unit=unit, transposed=lower != triangle.lower)
            rows = slice(part.last, None) if lower else slice(0, part.first)
            inner, outer = x[part.first : part.last], x[rows]
            flops = (
                flops_per_multiply_add(self._dtype.name)
                * x.shape[1]
                * (part.rest.size + part.diagonal.size // 2)
            )
            with (
                self.recorder.operation("mult1", self.group, flops=flops, block=number),
                few_threads(x),
            ):
                if trans == "N":
                    trsm(part.diagonal, inner, lower=lower, unit=unit)
                    gemm(-1.0, part.rest, inner, outer)
                else:
                    gemm(-1.0, part.rest, outer, inner, trans_a=trans)
                    trsm(part.diagonal, inner, lower=lower, trans=trans, unit=unit)
        if conjugate:
            np.conjugate(x, out=x)

    def _keep(self, then: Triangle | None) -> None:
        """Choose the blocks of columns of which the part that `then` needs is kept."""
        self._keeps, self._keeps_lower = range(0), False
        if then is not None and self.kept_bytes and whole_columns(then.matrix):
            lower = self._keeps_lower = then.by_columns(self._dtype).lower
            itemsize = self._dtype.itemsize
            self._keeps, _ = kept_blocks(
                self._n, self.block, itemsize, self.kept_bytes, lower=lower
            )

    def _parts(self, matrix: StoredMatrix, starts: range, lower: bool) -> Iterator[_Part]:
        array = in_memory(matrix, self._dtype)
        if array is not None:
            for first in starts:
                last = min(first + self.block, self._n)
                rows = slice(first, None) if lower else slice(0, last)
                yield _cut(array[rows, first:last], first, last, lower=lower)
            return
        if not self._buffers:
            size = self._n * self.block * self._dtype.itemsize + ALIGNMENT
            self._buffers = [aligned_bytes(size) for _ in range(STREAM_BUFFERS)]
        yield from self._reads.blocks(
            starts, lambda first, buffer: self._read(matrix, first, self._buffers[buffer], lower)
        )

    def _read(
        self, matrix: StoredMatrix, first: int, buffer: NDArray[np.uint8], lower: bool
    ) -> _Part:
        last = min(first + self.block, self._n)
        if (kept := self._kept.pop(first, None)) is not None:
            return _cut(kept, first, last, lower=lower)
        rows = slice(0, self._n) if whole_columns(matrix) else self._rows(first, last, lower)
        part = matrix[rows, first:last]
        array = array_in(buffer, part, self._dtype)
        with self.recorder.operation("load1", self.group, nbytes=array.nbytes):
            part.read(array)
        if first in self._keeps:
            self._kept[first] = _copied(array[self._rows(first, last, self._keeps_lower)])
        own = self._rows(first, last, lower)
        return _cut(array[own.start - rows.start : own.stop - rows.start], first, last, lower=lower)

    def _rows(self, first: int, last: int, lower: bool) -> slice:
        """Return the rows of some columns of a triangle."""
        return slice(first, self._n) if lower else slice(0, last)


def _copied(columns: NDArray[Any]) -> NDArray[Any]:
    """Return a column-major copy in pages of its own, which go back to the system."""
    memory = aligned_bytes(columns.nbytes)
    found = array_at(memory, columns.shape, columns.dtype, 0, "F")
    np.copyto(found, columns)
    return found


def _cut(array: NDArray[Any], first: int, last: int, *, lower: bool) -> _Part:
    width = last - first
    if lower:
        return _Part(first, last, array[:width], array[width:])
    return _Part(first, last, array[first:], array[:first])


def _check(part: _Part, *, lower: bool, unit: bool, transposed: bool) -> None:
    """Raise for a zero on the diagonal, and for NaN and Inf in the triangle of a matrix, which is
    the transpose of the caller's where it is `transposed`.
    """
    zeros = np.flatnonzero(np.diagonal(part.diagonal) == 0)
    if zeros.size and not unit:
        order = part.first + int(zeros[0]) + 1
        raise SingularMatrixError(
            f"a is singular: number {order} of its diagonal is exactly zero", order=order
        )
    triangle = np.tril(part.diagonal, -int(unit)) if lower else np.triu(part.diagonal, int(unit))
    for top, array in ((part.first, triangle), (part.last if lower else 0, part.rest)):
        if not np.isfinite(array).all():
            slab = Slab(0, Columns(part.first, part.last, top), array)
            check_finite_slab(slab, transposed=transposed)
