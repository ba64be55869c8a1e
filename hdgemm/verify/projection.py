"""One pass over a stored matrix, in bounded memory: its products with vectors, its rows' sizes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.matrices.transfer import ALIGNMENT, aligned_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix, Operand

#: Extents of the pieces that all work on one part of a matrix is done on: they stay in cache, and
#: keep the sums short that a rounding error can grow in.
PIECE: Final = 256
_TALL: Final = 1024
#: Bytes of one reading buffer, however much memory there is.
_SLAB: Final = 64 << 20
#: Norms within these neither lost a part to underflow nor overflowed, as sums of squares.
_SAFE_NORMS: Final = (1e-140, 1e150)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a matrix must not be finite, and which of its rows may be so anywhere (overflow)."""

    rows: NDArray[np.bool_]
    cols: NDArray[np.bool_]
    free_rows: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Projection:
    """What a pass over op(X), p×q, found; elements that are not finite were taken as zero.

    Parameters
    ----------
    product
        op(X)·V, p×r, in float64 or complex128.
    sizes
        |op(X)|·w, or the Euclidean norms of op(X)'s rows where no weights were given.
    bad_rows, bad_cols
        Rows (p) and columns (q) of op(X) that hold an element that is not finite.
    misplaced_rows
        Rows in which NaN or Inf lie elsewhere than the `Placement` says.
    additions
        How many lie behind an element of `product`, at most: what its rounding errors grow with.
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
) -> Projection:
    """Read op(X) once and return its products with `vectors` and the sizes of its rows.

    Parameters
    ----------
    operand
        op(X), p×q.
    vectors
        V, q×r, float64 or complex128.
    weights
        w, q; not negative.
    placement
        Where X must not be finite; checked element for element.
    memory
        Bytes for the two buffers that the matrix is read into.
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
    # A NaN or Inf in a row leaves all its products NaN or Inf, so that clean rows cost nothing.
    if not np.isfinite(product).all():
        bad = ~np.isfinite(part)
        found.bad_rows[rows] |= bad.any(axis=1)
        found.bad_cols[cols] |= bad.any(axis=0)
        part = np.where(bad, 0, part)
        product = part @ vectors[cols]
    found.product[rows] += product
    if weights is None:
        found.sizes[rows] = np.hypot(found.sizes[rows], _norms(part))
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


def _norms(part: NDArray[Any]) -> NDArray[np.float64]:
    """Return the Euclidean norm of each row, without overflow or underflow on the way."""
    norms: NDArray[np.float64] = np.sqrt(_square_sums(part))
    least, most = _SAFE_NORMS
    if bool(np.all((norms > least) & (norms < most))):
        return norms
    magnitude = np.abs(part)
    largest = magnitude.max(axis=1, initial=0.0)
    scaled = magnitude / np.where(largest > 0, largest, 1.0)[:, np.newaxis]
    rescaled: NDArray[np.float64] = largest * np.sqrt(_square_sums(scaled))
    return rescaled


def _square_sums(part: NDArray[Any]) -> NDArray[np.float64]:
    if part.dtype.kind == "c":
        return _square_sums(part.real) + _square_sums(part.imag)
    sums: NDArray[np.float64] = np.einsum("ij,ij->i", part, part)
    return sums


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
    """Read a matrix by slabs of whole rows, each while the one before it is worked on."""
    array = matrix.array
    if array is not None and array.dtype == wide:
        yield 0, 0, array
        return
    rects = list(_rectangles(matrix.shape, max(1, min(memory // 2, _SLAB) // wide.itemsize)))
    if not rects:
        return
    largest = max(rows * cols for _, _, rows, cols in rects) * wide.itemsize
    buffers = [aligned_bytes(largest + ALIGNMENT) for _ in range(2)]

    def read(number: int) -> NDArray[Any]:
        row, col, rows, cols = rects[number]
        tile = _shaped(buffers[number % 2], wide, rows, cols, matrix.phase(row, col))
        matrix.read(row, col, tile)
        return tile

    with ThreadPoolExecutor(1, "hdgemm-read") as ahead:
        coming = ahead.submit(read, 0)
        for number, (row, col, _, _) in enumerate(rects):
            tile = coming.result()
            if number + 1 < len(rects):
                coming = ahead.submit(read, number + 1)
            yield row, col, tile


def _rectangles(shape: tuple[int, int], elements: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut rows and columns into slabs of whole rows, or parts of rows where one is too long."""
    height, width = shape
    cols = max(1, min(width, elements))
    rows = max(1, min(height, elements // cols))
    for row in range(0, height, rows):
        for col in range(0, width, cols):
            yield row, col, min(rows, height - row), min(cols, width - col)


def _shaped(
    memory: NDArray[np.uint8], dtype: np.dtype[Any], rows: int, cols: int, phase: int
) -> NDArray[Any]:
    """Return memory for a rectangle, placed so that direct I/O needs no copy."""
    start = phase if phase % dtype.itemsize == 0 else 0
    tile: NDArray[Any] = memory[start : start + rows * cols * dtype.itemsize].view(dtype)
    return tile.reshape(rows, cols)
