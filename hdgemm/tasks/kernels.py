"""Kernels of the factorisations: what they cost, and how the host and devices run them.

A device holds each tile transposed, row-major: a matrix X of the textbook is X' there, and a
product A·B is B'·A'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.fortran import SingularMatrixError, gemm, geqrt, getrf, laswp, potrf, rank_k, trsm
from hdgemm.pipeline.devices.interchanges import moves_of
from hdgemm.tasks.task import Kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Completion
    from hdgemm.tasks.block_columns import BlockColumn
    from hdgemm.tasks.tiles import TaskTile, TileWorkspace

_ALL = slice(None)


def potrf_diagonal(panel: BlockColumn) -> Kernel:
    """Return POTRF: the Cholesky factor of a block column's diagonal block."""
    width = panel.width

    def host() -> None:
        factor_diagonal(panel.part(panel.first, panel.last), panel.first)

    return _of(panel, Kernel("potrf", width**3 // 3, width, host=host))


def factor_diagonal(a: NDArray[Any], first: int) -> None:
    """Overwrite the lower triangle of a diagonal block by its Cholesky factor.

    Raise `SingularMatrixError` when it is not positive definite: `order` counts the `first` rows
    above the block, too.
    """
    order = potrf(a)
    if order:
        raise not_positive_definite(first + order)


def not_positive_definite(order: int) -> SingularMatrixError:
    """Return the error of a matrix with a leading minor that is not positive definite."""
    return SingularMatrixError(
        f"a is not positive definite: its leading minor of order {order} is not", order=order
    )


def trsm_below(panel: BlockColumn) -> Kernel:
    """Return TRSM: the rows below a diagonal block, solved with its factor."""

    def host() -> None:
        diagonal = panel.part(panel.first, panel.last)
        trsm(diagonal, panel.part(panel.last), side="R", trans="C")

    flops = panel.width**2 * panel.below(panel.last)
    return _of(panel, Kernel("panel trsm", flops, panel.width, host=host))


def symmetric_update(panel: BlockColumn, column: BlockColumn) -> Kernel:
    """Return SYRK on one block column: C -= P·P_j^H.

    A device updates the whole block column by one GEMM, the unused triangle of the diagonal block
    included (Dongarra et al., section 6.7.1).
    """
    first, last, rows = column.first, column.last, column.below(column.first)

    def host() -> None:
        beside = panel.part(first, last)
        rank_k(-1.0, beside, column.part(first, last))
        gemm(-1.0, panel.part(last), beside, column.part(last), trans_b="C")

    def device(tiles: TileWorkspace, after: Sequence[Completion]) -> None:
        beside = tiles.block(panel.tile, _ALL, panel.rows(first, last))
        below = tiles.block(panel.tile, _ALL, panel.rows(first))
        whole = tiles.block(column.tile, _ALL, column.rows(first))
        tiles.multiply(-1.0, beside, below, whole, after, trans_a="C")

    flops = panel.width * column.width * (2 * rows - column.width)
    return _of(column, Kernel("gemm", flops, panel.width, host=host, device=device), panel)


def getrf_panel(panel: BlockColumn, pivots: NDArray[np.int64], zeros: list[int]) -> Kernel:
    """Return GETRF: LU of a block column from its diagonal on.

    `pivots` takes the interchanges, relative to the panel's first row, and `zeros` the 1-based
    index of the first pivot that is exactly zero.
    """
    rows = panel.below(panel.first)

    def host() -> None:
        found, zero = getrf(panel.part(panel.first))
        pivots[: len(found)] = found
        if zero:
            zeros.append(zero + panel.first)

    short = min(rows, panel.width)
    flops = short**2 * (max(rows, panel.width) - short // 3)
    return _of(panel, Kernel("getrf", flops, panel.width, host=host))


def interchange(
    column: BlockColumn, row: int, pivots: NDArray[np.int64], panel: BlockColumn
) -> Kernel:
    """Return the row permutation of one panel, from some row on, applied to a block column."""

    def host() -> None:
        laswp(column.part(row), pivots)

    def device(tiles: TileWorkspace, after: Sequence[Completion]) -> None:
        tiles.permute(tiles.block(column.tile, _ALL, column.rows(row)), moves_of(pivots), after)

    # Each interchange reads and writes two rows.
    nbytes = 4 * len(pivots) * column.width * 8
    return _of(column, Kernel("laswp", 0, 1, nbytes, host=host, device=device), panel)


def late_interchanges(
    column: BlockColumn, panels: Sequence[BlockColumn], pivots: NDArray[np.int64]
) -> Kernel:
    """Return the row permutations of all panels to the right of a factored one, in its rows."""
    later = panels[column.number + 1 :]

    def host() -> None:
        for panel in later:
            laswp(column.part(panel.first), pivots[panel.first : panel.last])

    nbytes = 4 * sum(panel.width for panel in later) * column.width * 8
    return _of(column, Kernel("laswp", 0, 1, nbytes, host=host))


def trsm_beside(panel: BlockColumn, lower: TaskTile, column: BlockColumn) -> Kernel:
    """Return TRSM: the rows of U beside a panel; `lower` is the panel from its diagonal on."""
    first, last = panel.first, min(panel.last, panel.bottom)
    depth = last - first

    def host() -> None:
        trsm(lower.data()[:depth], column.part(first, last), unit=True)

    def device(tiles: TileWorkspace, after: Sequence[Completion]) -> None:
        triangle = tiles.block(lower, slice(0, depth), slice(0, depth))
        beside = tiles.block(column.tile, _ALL, column.rows(first, last))
        tiles.solve(triangle, beside, after)

    flops = depth**2 * column.width
    return _of(column, Kernel("trsm", flops, depth, host=host, device=device), panel)


def gemm_below(panel: BlockColumn, lower: TaskTile, column: BlockColumn) -> Kernel:
    """Return GEMM: the rows below a panel, C -= L·U."""
    first, last, depth = panel.first, panel.last, panel.width

    def host() -> None:
        gemm(-1.0, lower.data()[depth:], column.part(first, last), column.part(last))

    def device(tiles: TileWorkspace, after: Sequence[Completion]) -> None:
        beside = tiles.block(column.tile, _ALL, column.rows(first, last))
        below = tiles.block(lower, _ALL, slice(depth, None))
        tiles.multiply(
            -1.0, beside, below, tiles.block(column.tile, _ALL, column.rows(last)), after
        )

    flops = 2 * depth * column.width * panel.below(last)
    return _of(column, Kernel("gemm", flops, depth, host=host, device=device), panel)


def geqrt_panel(panel: BlockColumn, v: TaskTile, t: TaskTile) -> Kernel:
    """Return GEQRT: QR of a block column from its diagonal on, with its compact WY form.

    `v` takes the reflectors with their unit diagonal and zeros above, for which memory is
    allocated, and `t` the triangle T.
    """
    rows, width = panel.below(panel.first), min(panel.width, panel.below(panel.first))

    def host() -> None:
        part = panel.part(panel.first)
        geqrt(part[:, :width], t.data())
        v.array = reflectors_of(part[:, :width])
        apply_reflectors(v.array, t.data(), part[:, width:])  # of a panel wider than high

    flops = 2 * width**2 * (rows - width // 3)
    return _of(panel, Kernel("geqrt", flops, width, host=host))


def larfb(panel: BlockColumn, v: TaskTile, t: TaskTile, column: BlockColumn) -> Kernel:
    """Return LARFB: C := (I - V·T^H·V^H)·C, in three GEMMs (Dongarra et al., section 6.7.4)."""
    rows = panel.below(panel.first)
    width = min(panel.width, rows)

    def host() -> None:
        target = column.part(panel.first)
        apply_reflectors(v.data(), t.data(), target)

    def device(tiles: TileWorkspace, after: Sequence[Completion]) -> None:
        reflectors = tiles.block(v, _ALL, _ALL)
        target = tiles.block(column.tile, _ALL, column.rows(panel.first))
        dtype = target.tile.dtype
        first = tiles.scratch("W", column.width, width, dtype)
        second = tiles.scratch("WT", column.width, width, dtype)
        tiles.multiply(1.0, target, reflectors, first, after, beta=0.0, trans_b="C")
        # The device has V', T' and C': it computes C' - C'·conj(V)·conj(T)·V'.
        tiles.multiply(1.0, first, tiles.block(t, _ALL, _ALL), second, beta=0.0, trans_b="C")
        tiles.multiply(-1.0, second, reflectors, target)

    flops = column.width * width * (4 * rows + 2 * width)
    return _of(column, Kernel("larfb", flops, width, host=host, device=device), panel)


def discard_reflectors(panel: BlockColumn, v: TaskTile) -> Kernel:
    """Return the task that frees a panel's copy of its reflectors after their last use."""

    def host() -> None:
        v.array = None

    return _of(panel, Kernel("geqrt", host=host))


def reflectors_of(panel: NDArray[Any]) -> NDArray[Any]:
    """Return the V of a factored panel, with its unit diagonal and zeros above."""
    v, width = np.array(panel, order="F"), panel.shape[1]
    v[:width] = np.tril(v[:width], -1)
    np.fill_diagonal(v, 1)
    return v


def apply_reflectors(v: NDArray[Any], t: NDArray[Any], c: NDArray[Any], trans: str = "C") -> None:
    """Overwrite C by Q^H·C (trans C) or Q·C (trans N); V has its unit diagonal and zeros above."""
    first = np.zeros((v.shape[1], c.shape[1]), c.dtype, "F")
    second = np.zeros_like(first, order="F")
    gemm(1.0, v, c, first, trans_a="C")
    gemm(1.0, t, first, second, trans_a=trans)
    gemm(-1.0, v, second, c)


def _of(written: BlockColumn, kernel: Kernel, panel: BlockColumn | None = None) -> Kernel:
    """Return a kernel with the numbers of the block column and the panel, for events."""
    kernel.unit = written.number
    kernel.step = (panel or written).number
    return kernel
