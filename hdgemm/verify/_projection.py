"""One pass over a stored matrix in bounded memory: products with vectors, and norms of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.errors import CancelledRunError
from hdgemm.matrices.layout import rectangles
from hdgemm.matrices.transfer import ALIGNMENT, aligned_bytes, array_at
from hdgemm.pipeline.abft.bounds import row_norms
from hdgemm.threads import WorkerPool

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix, Operand

#: Extents of the pieces in which a matrix is processed: they stay in the cache, and short sums
#: keep rounding errors small.
PIECE: Final = 256
_TALL: Final = 1024
#: Bytes of one reading buffer at most.
_SLAB: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Placement:
    """Rows and columns that must hold NaN or Inf only, and rows that may overflow anywhere."""

    rows: NDArray[np.bool_]
    cols: NDArray[np.bool_]
    free_rows: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Projection:
    """Result of a pass over op(X), p×q, with NaN and Inf replaced by 0.

    Parameters
    ----------
    product
        op(X)·V, p×r, in float64 or complex128.
    sizes
        |op(X)|·w, or the Euclidean norms of op(X)'s rows where no weights were given.
    bad_rows, bad_cols
        Rows (p) and columns (q) of op(X) that hold an element that is not finite.
    misplaced_rows
        Rows in which NaN or Inf lie elsewhere than in the `Placement`.
    additions
        Additions behind an element of `product` at most, with which its rounding error grows.
    """

    product: NDArray[Any]
    sizes: NDArray[np.float64]
    bad_rows: NDArray[np.bool_]
    bad_cols: NDArray[np.bool_]
    misplaced_rows: NDArray[np.bool_]
    additions: int = 0


class _Piece(NamedTuple):
    rows: slice
    cols: slice
    part: NDArray[Any]


def project(
    operand: Operand,
    vectors: NDArray[Any],
    *,
    weights: NDArray[np.float64] | None = None,
    placement: Placement | None = None,
    memory: int,
    cancel: threading.Event | None = None,
) -> Projection:
    """Read op(X), p×q, once and return its products with `vectors` and the sizes of its rows.

    V, q×r, is float64 or complex128; the q weights are not negative. The `placement` of NaN and Inf
    is checked for each element. `memory` has the bytes for the two buffers that the matrix is read
    into. `cancel` ends the pass with `CancelledRunError`.
    """
    height, width = operand.shape
    wide = np.dtype(np.complex128 if operand.matrix.dtype.kind == "c" else np.float64)
    found = Projection(
        np.zeros((height, vectors.shape[1]), np.result_type(wide, vectors)),
        np.zeros(height),
        np.zeros(height, np.bool_),
        np.zeros(width, np.bool_),
        np.zeros(height, np.bool_),
    )
    longest = sums = 0
    with np.errstate(all="ignore"):
        for piece in _pieces(operand, wide, memory):
            if cancel is not None and cancel.is_set():
                raise CancelledRunError("the check was cancelled")
            _add(found, piece, vectors, weights, placement)
            longest = max(longest, piece.part.shape[1])
            sums += piece.rows.start == 0
    return replace(found, additions=longest + sums)


def _add(
    found: Projection,
    piece: _Piece,
    vectors: NDArray[Any],
    weights: NDArray[np.float64] | None,
    placement: Placement | None,
) -> None:
    rows, cols, part = piece
    product = part @ vectors[cols]
    bad = None
    # NaN and Inf in a row make its products NaN or Inf: rows without them need no other test.
    if not np.isfinite(product).all():
        bad = ~np.isfinite(part)
        found.bad_rows[rows] |= bad.any(axis=1)
        found.bad_cols[cols] |= bad.any(axis=0)
        part = np.where(bad, 0, part)
        product = part @ vectors[cols]
    found.product[rows] += product
    if weights is None:
        found.sizes[rows] = np.hypot(found.sizes[rows], row_norms(part))
    else:
        found.sizes[rows] += np.abs(part) @ weights[cols]
    if placement is not None:
        _compare(found, piece, bad, placement)


def _compare(
    found: Projection, piece: _Piece, bad: NDArray[np.bool_] | None, placement: Placement
) -> None:
    rows, cols, _ = piece
    must_rows, must_cols = placement.rows[rows], placement.cols[cols]
    if bad is None and not must_rows.any() and not must_cols.any():
        return
    must = must_rows[:, np.newaxis] | must_cols
    wrong = must if bad is None else bad ^ must
    if bad is not None:
        wrong &= must | ~placement.free_rows[rows, np.newaxis]
    found.misplaced_rows[rows] |= wrong.any(axis=1)


def _pieces(operand: Operand, wide: np.dtype[Any], memory: int) -> Iterator[_Piece]:
    """Cut op(X) into pieces of at most _TALL×PIECE, in its dtype for arithmetic."""
    tall, broad = (PIECE, _TALL) if operand.trans else (_TALL, PIECE)
    for top, left, tile in _tiles(operand.matrix, wide, memory):
        for i in range(0, tile.shape[0], tall):
            for j in range(0, tile.shape[1], broad):
                part = tile[i : i + tall, j : j + broad]
                rows = slice(top + i, top + i + part.shape[0])
                cols = slice(left + j, left + j + part.shape[1])
                if operand.conj:
                    part = part.conj()
                yield _Piece(cols, rows, part.T) if operand.trans else _Piece(rows, cols, part)


def _tiles(
    matrix: Matrix, wide: np.dtype[Any], memory: int
) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Read a matrix by slabs of whole rows, each while the one before it is processed."""
    array = matrix.array
    if array is not None and array.dtype == wide:
        yield 0, 0, array
        return
    rects = list(rectangles(matrix.shape, max(1, min(memory // 2, _SLAB) // wide.itemsize)))
    if not rects:
        return
    largest = max(rows * cols for _, _, rows, cols in rects) * wide.itemsize
    buffers = [aligned_bytes(largest + ALIGNMENT) for _ in range(2)]

    def read(number: int) -> NDArray[Any]:
        row, col, rows, cols = rects[number]
        tile = array_at(buffers[number % 2], (rows, cols), wide, matrix.phase(row, col))
        matrix.read(row, col, tile)
        return tile

    with WorkerPool(1, "hdgemm-read") as ahead:
        coming = ahead.submit(read, 0)
        for number, (row, col, _, _) in enumerate(rects):
            tile = coming.result()
            if number + 1 < len(rects):
                coming = ahead.submit(read, number + 1)
            yield row, col, tile
