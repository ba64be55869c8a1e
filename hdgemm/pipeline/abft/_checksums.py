"""Checksums of tiles with random signs, and lower bounds of the sizes that they are judged by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.pipeline.abft.bounds import row_norms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from hdgemm.pipeline.tiles import Load, Rect, Step

#: Indices of k at the start of each step from which the size of a row is bounded from below.
SAMPLES: Final = 8
#: Largest panel that is summed in both directions while it is in the cache.
_PANEL_BYTES: Final = 4 << 20
_PANEL_ROWS: Final = 1024


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of checksums: float64 or complex128."""
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
    """Return the signs of a seed."""
    drawn = np.random.default_rng(seed).integers(0, 2, m + n, np.int8)
    signs = (2 * drawn - 1).astype(dtype)
    signs.flags.writeable = False
    return Signs(signs[:n], signs[n:])


class Side(NamedTuple):
    """Checksums of the rows (or columns) of a tile.

    `sums` are expected from A and B, without alpha: Σ A_s·(B_s·x), or Σ (y'·A_s)·B_s. `least` are
    lower bounds of F_i = Σ_p |a_ip|·‖b_p‖, or of G_j = Σ_p ‖a_p‖·|b_pj|, from samples of p. `old`
    and `old_sizes` are C₀·x (y'·C₀) and the norms of C₀'s rows (columns); None where C does not
    start from C₀.
    """

    sums: NDArray[Any]
    least: NDArray[np.float64]
    old: NDArray[Any] | None
    old_sizes: NDArray[np.float64] | None


@dataclass(slots=True)
class UnitSums:
    """Expected checksums of the rows and columns of a C tile after the steps done so far."""

    rows: Side
    cols: Side

    @classmethod
    def empty(cls, rect: Rect, dtype: np.dtype[Any]) -> UnitSums:
        """Return the checksums before the first step."""
        kind = wide(dtype)
        rows, cols = (
            Side(np.zeros(n, kind), np.zeros(n), None, None) for n in (rect.rows, rect.cols)
        )
        return cls(rows, cols)

    def start_from(self, c: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> None:
        """Take the checksums of C₀, a tile that is about to be overwritten."""
        rows, cols = sum_both(panels(c), x, y)
        row_sizes, col_sizes = np.empty(c.shape[0]), np.zeros(c.shape[1])
        for first, part in panels(c):
            row_sizes[first : first + len(part)] = row_norms(part)
            col_sizes = np.hypot(col_sizes, row_norms(part.T))
        self.rows = self.rows._replace(old=rows, old_sizes=row_sizes)
        self.cols = self.cols._replace(old=cols, old_sizes=col_sizes)

    def replaced(self, rows: NDArray[Any], cols: NDArray[Any]) -> UnitSums:
        """Return the same tile's checksums with other expected sums."""
        return UnitSums(self.rows._replace(sums=rows), self.cols._replace(sums=cols))

    def add_sample(self, a: NDArray[Any], b: NDArray[Any]) -> None:
        """Add the sizes of some columns of A_s and the same rows of B_s, both given as columns."""
        size_a, size_b = (np.abs(x).astype(np.float64, copy=False) for x in (a, b))
        self.rows.least[...] += size_a @ _least_norms(size_b)
        self.cols.least[...] += size_b @ _least_norms(size_a)


def _least_norms(size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return lower bounds of the norms of columns: smaller by underflow, 0 after overflow."""
    found: NDArray[np.float64] = np.sqrt(np.vecdot(size.T, size.T))
    found[found == np.inf] = 0.0
    return found


class LoadSums:
    """y'·A or B·x of one loaded tile, added up piece by piece, with samples of its columns (rows).

    Samples are taken where steps begin: every `kb`, the k-chunk of the plan.
    """

    def __init__(self, load: Load, kb: int, dtype: np.dtype[Any]) -> None:
        self._load = load
        self._along_a = load.operand == "A"
        rect = load.rect
        self._k0, depth = (rect.col, rect.cols) if self._along_a else (rect.row, rect.rows)
        places = np.arange(self._k0, self._k0 + depth)
        self._places = places[places % kb < SAMPLES]
        across = rect.rows if self._along_a else rect.cols
        self._samples = np.zeros((across, self._places.size), dtype)
        self._left = rect.area
        self._sum = np.zeros(depth, wide(dtype))
        self._dtype = dtype

    def add(self, rect: Rect, part: NDArray[Any], signs: Signs) -> None:
        """Add one piece: `part` lies over `rect`, both in op-space."""
        x, y = signs.of(rect)
        if self._along_a:
            k0, first, side, weights = rect.col, rect.row - self._load.rect.row, part.T, y
        else:
            k0, first, side, weights = rect.row, rect.col - self._load.rect.col, part, x
        depth, across = side.shape
        self._sum[k0 - self._k0 : k0 - self._k0 + depth] += side @ weights
        here = (self._places >= k0) & (self._places < k0 + depth)
        self._samples[first : first + across, here] = side[self._places[here] - k0].T
        self._left -= rect.area

    @property
    def complete(self) -> bool:
        """All pieces were added."""
        return self._left == 0

    @property
    def vector(self) -> NDArray[Any]:
        """The checksums in the product's dtype, over the tile's part of k."""
        return self._sum.astype(self._dtype)

    def sample(self, step: Step) -> NDArray[Any]:
        """Return the sampled columns (A) or rows (B) of a step, as columns."""
        here = (self._places >= step.k0) & (self._places < step.k0 + min(step.kb, SAMPLES))
        found: NDArray[Any] = self._samples[:, here]
        return found


def panels(c: NDArray[Any]) -> Iterable[tuple[int, NDArray[Any]]]:
    """Cut a tile into panels of whole rows: the first row of each, and the panel."""
    rows = panel_rows(c.shape[0], c.shape[1], c.dtype)
    return ((first, c[first : first + rows]) for first in range(0, c.shape[0], rows))


def panel_rows(rows: int, cols: int, dtype: np.dtype[Any], nbytes: int = _PANEL_BYTES) -> int:
    """Return the rows of a panel of at most `nbytes`; at least one."""
    return min(rows, _PANEL_ROWS, max(1, nbytes // max(1, cols * dtype.itemsize)))


def sum_both(
    parts: Iterable[tuple[int, NDArray[Any]]], x: NDArray[Any], y: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return C·x and y'·C from the panels of a tile, each read once."""
    kind = wide(x.dtype)
    rows, cols = np.empty(y.size, kind), np.zeros(x.size, kind)
    for first, part in parts:
        rows[first : first + len(part)] = part @ x
        cols += y[first : first + len(part)] @ part
    return rows, cols
