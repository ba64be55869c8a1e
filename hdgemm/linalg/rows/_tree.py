"""Q of a tall matrix from the reflectors of TSQR, which are stored where Q will be.

Two passes: one reads A and stores the reflectors of each row, the other reads them, last block
first, and stores the rows of Q·C, for a C of n×k, in the same place or another one. Q is orthogonal
to working precision whatever the condition of A.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hdgemm.fortran import gemqrt, geqrt_by_blocks, tpmqrt, tpqrt, trsm
from hdgemm.linalg.planning.rows import RowShape, RowWork, triangle_work
from hdgemm.linalg.rows.reducer import Reducer, RowBlock
from hdgemm.linalg.rows.tsqr import panel_width, strips
from hdgemm.matrices.read_ahead import RESULT_BUFFERS
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix

    #: Reflectors of a triangle that was joined to another one, and their T.
    Join = tuple[NDArray[Any], NDArray[Any]]
    #: A core's part of C (n×k), and the T of its first n rows.
    Top = tuple[NDArray[Any], NDArray[Any]]


def reflectors_work(shape: RowShape, stored: np.dtype[Any]) -> RowWork:
    """Return the work of TSQR that stores its reflectors in some dtype."""
    work, itemsize = triangle_work(shape), np.dtype(shape.dtype).itemsize
    return RowWork(
        name="TSQR with reflectors",
        result="R and the reflectors of a triangle",
        flops=work.flops,
        core_bytes=work.core_bytes + shape.n**2 * itemsize,
        stored=shape.n * stored.itemsize,
        of_gemm=work.of_gemm,
        least_rows=work.least_rows,
        required_rows=max(1, shape.n),
        column_major=True,
        overwrites=True,
    )


def q_work(shape: RowShape, k: int, stored: np.dtype[Any]) -> RowWork:
    """Return the work of Q·C for a C of k columns, with rows stored in some dtype."""
    work, itemsize = triangle_work(shape), np.dtype(shape.dtype).itemsize
    return RowWork(
        name="Q·C",
        result="C and the reflectors of a triangle",
        flops=2 * flops_per_multiply_add(shape.dtype) * shape.m * shape.n * k,
        core_bytes=work.core_bytes + shape.n * (shape.n + k) * itemsize,
        row_bytes=RESULT_BUFFERS * k * itemsize,
        stored=k * stored.itemsize,
        of_gemm=work.of_gemm,
        least_rows=work.least_rows,
        required_rows=max(1, shape.n),
        column_major=True,
    )


class StoredReflectors(Reducer):
    """The R of TSQR (n×n), with the reflectors of each block of rows stored in its place.

    The first n rows of a core are factored alone, so that R begins with rows of A.

    Parameters
    ----------
    n, dtype
        Columns and dtype of the blocks.
    target
        m×n, opened for writing.

    Attributes
    ----------
    r
        The triangle.
    starts
        For each core, the T of its first n rows.
    joins
        For each further core, the reflectors that joined its triangle to those before it.
    """

    def __init__(self, n: int, dtype: np.dtype[Any], target: StoredMatrix) -> None:
        self.r = np.zeros((n, n), dtype, "F")
        self.starts: list[NDArray[Any]] = []
        self.joins: list[Join] = []
        self.target = self._where = target

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of TSQR."""
        return reflectors_work(shape, self._where.dtype)

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return the triangle of a matrix without rows."""
        return type(self)(len(self.r), self.r.dtype, self._where)

    def update(self, block: RowBlock) -> NDArray[Any]:
        """Reduce rows, and return their reflectors."""
        n, rest = len(self.r), block.a
        t, work = _workspace(n, n, rest.dtype)
        if not self.starts:
            geqrt_by_blocks(rest[:n], t, work)
            self.r, rest = np.asfortranarray(np.triu(rest[:n])), rest[n:]
            self.starts.append(t)
            t = np.zeros_like(t)
        for rows in strips(rest):
            tpqrt(self.r, rest[rows], t, work)
            _mark_reflections(rest[rows], t)
        return block.a

    def combine(self, other: Self) -> None:
        """Join the triangle of another core."""
        t, work = _workspace(len(self.r), len(self.r), self.r.dtype)
        tpqrt(self.r, other.r, t, work, triangle=True)
        self.joins.append((other.r, t))
        self.starts += other.starts

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The triangle, the T of the first rows of each core, and the joins of further cores."""
        starts = {f"start{number}": t for number, t in enumerate(self.starts)}
        joins = {
            f"join{number}.{name}": array
            for number, join in enumerate(self.joins)
            for name, array in zip("vt", join, strict=True)
        }
        return {"r": self.r} | starts | joins

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a recorded triangle."""
        found = {name: np.asfortranarray(array) for name, array in arrays.items()}
        self.r = found["r"]
        cores = sum(name.startswith("start") for name in found)
        self.starts = [found[f"start{core}"] for core in range(cores)]
        joins = sum(name.endswith(".t") for name in found)
        self.joins = [(found[f"join{each}.v"], found[f"join{each}.t"]) for each in range(joins)]

    def tops(self, c: NDArray[Any]) -> list[Top]:
        """Return what each core's reflectors are applied to, for the rows of Q·C with C of n×k."""
        top = np.array(c, order="F")
        parts = []
        for v, t in reversed(self.joins):
            part = np.zeros_like(top)
            _, work = _workspace(len(top), top.shape[1], top.dtype)
            tpmqrt(v, t, top, part, work, triangle=True, adjoint=False)
            parts.append(part)
        return list(zip([top, *reversed(parts)], self.starts, strict=True))


class FormQ(Reducer):
    """The rows of Q·C, from stored reflectors, in a pass from the last block to the first one.

    Parameters
    ----------
    tops
        What `StoredReflectors.tops` returns.
    first
        The first row of each core.
    target
        m×k, opened for writing; it may be the matrix of the reflectors.
    core
        The core whose blocks these are.
    """

    def __init__(
        self, tops: Sequence[Top], first: Sequence[int], target: StoredMatrix, core: int = 0
    ) -> None:
        self._tops, self._first, self._core = tops, first, core
        self._top, self._start = tops[core]
        self.target = self._where = target

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of applying the reflectors."""
        return q_work(shape, self._top.shape[1], self._where.dtype)

    def fresh(self, core: int) -> Self:
        """Return the reducer of another core."""
        return type(self)(self._tops, self._first, self._where, core)

    def update(self, block: RowBlock) -> NDArray[Any]:
        """Return the rows of Q·C of a block."""
        n, k = self._top.shape
        begins = block.first == self._first[self._core]
        v, found = block.a, np.zeros((len(block.a), k), block.a.dtype, "F")
        above = n if begins else 0
        _, work = _workspace(n, k, v.dtype)
        rest, below = v[above:], found[above:]
        for rows in reversed(strips(rest)):
            t = triangles_of(rest[rows])
            tpmqrt(rest[rows], t, self._top, below[rows], work, adjoint=False)
        if begins:
            gemqrt(v[:n], self._start, self._top, work)
            found[:n] = self._top
        return found

    def combine(self, other: Self) -> None:
        """Do nothing: all rows are stored."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The part of C that is left."""
        return {"top": self._top}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a recorded part of C."""
        self._top = np.asfortranarray(arrays["top"])


def _workspace(n: int, k: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return T and LAPACK's workspace, for k columns."""
    t = np.zeros((panel_width(n), n), dtype, "F")
    return t, np.empty(len(t) * max(n, k, 1), dtype)


def _mark_reflections(v: NDArray[Any], t: NDArray[Any]) -> None:
    """Let no reflection with τ = 2 have zeros only: they stand for the identity, τ = 0.

    Such reflections come from numbers that underflowed when they were divided by the diagonal of R.
    """
    width = len(t)
    for column in range(t.shape[1]):
        if t[column % width, column].real == 2 and not v[:, column].any():
            v[0, column] = np.finfo(v.dtype).tiny


def triangles_of(v: NDArray[Any]) -> NDArray[Any]:
    """Return the T of all blocks of reflectors, from the reflectors V alone.

    With Y = [I; V], ``T^-1 + T^-H = Y^H·Y`` (C. Puglisi: Modification of the Householder method
    based on the compact WY representation, 1992); τ is real, since the diagonal of R is.
    """
    n = v.shape[1]
    t = np.zeros((panel_width(n), n), v.dtype, "F")
    for first in range(0, n, len(t)):
        panel = v[:, first : first + len(t)]
        inverse = np.asfortranarray(panel.conj().T @ panel)
        squares = np.diagonal(inverse).real.copy()
        identity = ~panel.any(axis=0)
        np.fill_diagonal(inverse, np.where(identity, 1, (1 + squares) / 2))
        found = np.eye(len(inverse), dtype=v.dtype, order="F")
        trsm(inverse, found, lower=False)
        found[:, identity] = 0
        t[: len(found), first : first + len(found)] = found
    return t
