"""Triangular systems with one side streamed: a stored triangle, and right-hand sides in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from hdgemm.errors import InputError
from hdgemm.fortran import SingularMatrixError, gemm, trsm
from hdgemm.linalg.planning import STREAM_BUFFERS
from hdgemm.linalg.read_ahead import ReadAhead
from hdgemm.linalg.storage import in_memory
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.linalg.recorder import Recorder
    from hdgemm.matrices.stored import StoredMatrix


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
    block
        Columns of a stream block.
    recorder
        Told of every operation.
    group
        The number of the group of right-hand sides that is solved, for events.
    """

    def __init__(
        self, n: int, dtype: np.dtype[Any], block: int, recorder: Recorder, group: int = 0
    ) -> None:
        self._n, self._dtype, self.block = n, dtype, block
        self.recorder, self.group = recorder, group
        self._buffers: list[NDArray[Any]] = []
        self._reads = ReadAhead()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reads.close()
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
        starts = range(0, self._n, self.block)
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
            with self.recorder.operation("mult1", self.group, flops=flops, block=number):
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
                last = min(first + self.block, self._n)
                rows = slice(first, None) if lower else slice(0, last)
                yield _cut(array[rows, first:last], first, last, lower=lower)
            return
        if not self._buffers:
            size = self._n * self.block
            self._buffers = [np.empty(size, self._dtype) for _ in range(STREAM_BUFFERS)]
        yield from self._reads.blocks(
            starts, lambda first, buffer: self._read(matrix, first, self._buffers[buffer], lower)
        )

    def _read(self, matrix: StoredMatrix, first: int, buffer: NDArray[Any], lower: bool) -> _Part:
        last = min(first + self.block, self._n)
        top, bottom = (first, self._n) if lower else (0, last)
        shape = bottom - top, last - first
        array = buffer[: shape[0] * shape[1]].reshape(shape, order="F")
        with self.recorder.operation("load1", self.group, nbytes=array.nbytes):
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
