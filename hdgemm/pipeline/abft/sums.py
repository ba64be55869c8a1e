"""Sums of tiles with random signs, and the sizes that go with them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from hdgemm.pipeline.plan import Rect

#: Indices of k, from a step's first, by which the size of its part of a row is told from below.
SAMPLES: Final = 8
#: Bytes and rows, at most, that are summed in both directions while they are in cache.
_PANEL_BYTES: Final = 4 << 20
_PANEL_ROWS: Final = 1024


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return float64 or complex128: what sums of tiles are added up in."""
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


class Signs(NamedTuple):
    """Random signs x for the columns and y for the rows of C."""

    x: NDArray[Any]
    y: NDArray[Any]

    def of(self, rect: Rect) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return x and y of a rectangle of C."""
        x = self.x[rect.col : rect.col + rect.cols]
        return x, self.y[rect.row : rect.row + rect.rows]


@lru_cache(maxsize=4)
def draw_signs(m: int, n: int, dtype: np.dtype[Any], seed: int) -> Signs:
    """Return the signs that a seed stands for; the last ones are remembered."""
    drawn = np.random.default_rng(seed).integers(0, 2, m + n, np.int8)
    signs = (2 * drawn - 1).astype(dtype)
    signs.flags.writeable = False
    return Signs(signs[:n], signs[n:])


@dataclass(slots=True)
class UnitSums:
    """What a tile's sums should be, as far as its steps are done; without alpha and beta.

    Parameters
    ----------
    rows, cols
        Σ A_s·(B_s·x) and Σ (y'·A_s)·B_s, in float64 or complex128.
    row_least, col_least
        Lower bounds of F_i = Σ_p |a_ip|·‖b_p‖ and of G_j = Σ_p ‖a_p‖·|b_pj|, from samples of p.
    """

    rows: NDArray[Any]
    cols: NDArray[Any]
    row_least: NDArray[np.float64]
    col_least: NDArray[np.float64]
    old: OldSums | None = None

    @classmethod
    def empty(cls, rect: Rect, dtype: np.dtype[Any]) -> UnitSums:
        """Begin a unit."""
        kind = wide(dtype)
        return cls(
            np.zeros(rect.rows, kind), np.zeros(rect.cols, kind),
            np.zeros(rect.rows), np.zeros(rect.cols),
        )  # fmt: skip

    def add_sample(self, a: NDArray[Any], b: NDArray[Any]) -> None:
        """Take the sizes of some columns of A_s and the same rows of B_s, both as columns."""
        size_a, size_b = (np.abs(x).astype(np.float64, copy=False) for x in (a, b))
        self.row_least += size_a @ _least_norms(size_b)
        self.col_least += size_b @ _least_norms(size_a)


def _least_norms(size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the norms of columns, or less: what squares lose to underflow, all in overflow."""
    found: NDArray[np.float64] = np.sqrt(np.vecdot(size.T, size.T))
    found[found == np.inf] = 0.0
    return found


@dataclass(frozen=True, slots=True)
class OldSums:
    """C₀·x, y'·C₀ and the Euclidean norms of C₀'s rows and columns."""

    rows: NDArray[Any]
    cols: NDArray[Any]
    row_sizes: NDArray[np.float64]
    col_sizes: NDArray[np.float64]

    @classmethod
    def of(cls, c: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> OldSums:
        """Sum a tile before it is overwritten."""
        rows, cols = sum_both(panels(c), x, y)
        row_sizes, squares = np.empty(c.shape[0]), np.zeros(c.shape[1])
        for first, part in panels(c):
            row_sizes[first : first + len(part)] = norms(part)
            squares = np.hypot(squares, norms(part.T))
        return cls(rows, cols, row_sizes, squares)


def panels(c: NDArray[Any]) -> Iterable[tuple[int, NDArray[Any]]]:
    """Cut a tile into panels of whole rows: the first row of each, and the panel."""
    rows = panel_rows(c.shape[0], c.shape[1], c.dtype)
    return ((first, c[first : first + rows]) for first in range(0, c.shape[0], rows))


def panel_rows(rows: int, cols: int, dtype: np.dtype[Any], nbytes: int = _PANEL_BYTES) -> int:
    """Return the rows of a panel of at most so many bytes, if that can be."""
    return min(rows, _PANEL_ROWS, max(1, nbytes // max(1, cols * dtype.itemsize)))


def sum_both(
    parts: Iterable[tuple[int, NDArray[Any]]], x: NDArray[Any], y: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return C·x and y'·C for the panels of a tile; each is visited once."""
    kind = wide(x.dtype)
    rows, cols = np.empty(y.size, kind), np.zeros(x.size, kind)
    for first, part in parts:
        rows[first : first + len(part)] = part @ x
        cols += y[first : first + len(part)] @ part
    return rows, cols


def norms(part: NDArray[Any]) -> NDArray[np.float64]:
    """Return the Euclidean norm of each row without overflow or underflow; NaN, Inf stay."""
    size = np.abs(part).astype(np.float64)
    largest = size.max(axis=1, initial=0.0)
    scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    size /= scale[:, np.newaxis]
    found: NDArray[np.float64] = scale * np.sqrt(np.vecdot(size, size))
    return found
