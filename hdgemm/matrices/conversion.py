"""Elements of low precision and integers: converted when they are loaded and stored."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.dtypes import CONVERTED
from hdgemm.errors import InputError
from hdgemm.matrices.base import Wrapper

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix, Operand

#: Whole numbers up to this one, and their sums up to it, are exact in float64.
EXACT: Final = 1 << 53
#: The same for float32.
_EXACT_SINGLE: Final = 1 << 24
#: Fewer terms are not worth a product in float32: their sums are added to C too often.
_LEAST_TERMS: Final = 256
#: Bytes that are converted at a time.
_STRIP_BYTES: Final = 4 << 20


def computed_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that stored elements are computed in, in native byte order."""
    native = dtype.newbyteorder("=")
    return np.dtype(CONVERTED.get(native.name, native))


def is_whole(dtype: np.dtype[Any]) -> bool:
    """Say whether elements are integers or truth values."""
    return dtype.kind in "iub"


def largest(dtype: np.dtype[Any]) -> int:
    """Return the largest magnitude that integers of a dtype can have."""
    return 1 if dtype.kind == "b" else max(-int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def exact_terms(*dtypes: np.dtype[Any]) -> int:
    """Return how many products of integers of A and of B have exact sums in float32; 0 for few."""
    if not all(map(is_whole, dtypes)):
        return 0
    terms = _EXACT_SINGLE // math.prod(map(largest, dtypes))
    return terms if terms >= _LEAST_TERMS else 0


class ExactProduct:
    """Check that a product of integers is exact in float64, while its operands are loaded.

    Every sum of the product is exact where k·max|a|·max|b| < 2^53.

    Parameters
    ----------
    k
        Columns of op(A).
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._largest = {"a": 0, "b": 0}
        self._lock = threading.Lock()

    @classmethod
    def watch(cls, k: int, a: Operand, b: Operand) -> tuple[Matrix, Matrix]:
        """Return the matrices of A and B, with the check where their dtypes do not ensure it."""
        check = cls(k)
        bounds = [largest(x.matrix.dtype) for x in (a, b)]
        if k * bounds[0] * bounds[1] < EXACT:
            return a.matrix, b.matrix
        return _Watched(a.matrix, check, "a"), _Watched(b.matrix, check, "b")

    def see(self, letter: str, magnitude: int) -> None:
        """Take the largest magnitude of a tile into account.

        Raises
        ------
        InputError
            When the product may be inexact: `bound` and `limit`.
        """
        if magnitude <= self._largest[letter]:
            return
        with self._lock:
            self._largest[letter] = max(magnitude, self._largest[letter])
            a, b = self._largest.values()
        bound = self._k * a * b
        if bound >= EXACT:
            raise InputError(
                f"the product of integers may exceed what float64 holds exactly: k·max|a|·max|b| = "
                f"{self._k}·{a}·{b} = {bound} must be less than 2^53 = {EXACT}; pass "
                "dtype='float64' for a rounded product",
                bound=bound,
                limit=EXACT,
            )


class _Watched(Wrapper):
    """A matrix of integers whose largest magnitude is noted whenever a tile is read."""

    def __init__(self, matrix: Matrix, check: ExactProduct, letter: str) -> None:
        super().__init__(matrix)
        self._check, self._letter = check, letter

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Read, and check what was read."""
        self.stored.read(row, col, out)
        if out.size:
            self._check.see(self._letter, max(int(out.max()), -int(out.min())))

    def part(self, row: int, col: int, shape: tuple[int, int]) -> Matrix:
        """Return a rectangle with the same check."""
        return _Watched(self.stored.part(row, col, shape), self._check, self._letter)


def unwatched(matrix: Matrix) -> Matrix:
    """Return a matrix without the check of `ExactProduct`."""
    return matrix.stored if isinstance(matrix, _Watched) else matrix


class WholeNumbers(Wrapper):
    """A matrix of int64 that takes tiles of whole numbers in float64."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__(matrix)
        self.array = None

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Convert and write, by strips of rows."""
        height = max(1, _STRIP_BYTES // max(1, tile.shape[1] * self.dtype.itemsize))
        for top in range(0, len(tile), height):
            strip = tile[top : top + height]
            self.stored.write(row + top, col, strip.astype(self.dtype))

    def part(self, row: int, col: int, shape: tuple[int, int]) -> Matrix:
        """Return a rectangle that takes such tiles, too."""
        return WholeNumbers(self.stored.part(row, col, shape))
