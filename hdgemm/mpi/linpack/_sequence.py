"""HPL's random matrix: a linear congruential sequence of which any part can be made alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

#: X ← MULTIPLIER·X + INCREMENT modulo 2**64, from X₀ = SEED (HPL 2.3, HPL_rand).
MULTIPLIER: Final = 6364136223846793005
INCREMENT: Final = 1
SEED: Final = 100
_MODULUS: Final = 1 << 64


def jump(steps: int) -> tuple[int, int]:
    """Return a and c so that X after `steps` steps is a·X + c modulo 2**64."""
    factor, term = 1, 0
    a, c = MULTIPLIER, INCREMENT
    while steps:
        if steps & 1:
            factor, term = a * factor % _MODULUS, (a * term + c) % _MODULUS
        a, c = a * a % _MODULUS, (a * c + c) % _MODULUS
        steps >>= 1
    return factor, term


def jumps(count: int) -> tuple[Words, Words]:
    """Return the factors and terms of `jump` for 0 to ``count - 1`` steps."""
    factors, terms = np.ones(count, np.uint64), np.zeros(count, np.uint64)
    known = 1
    while known < count:
        factor, term = (np.uint64(word) for word in jump(known))
        more = min(known, count - known)
        factors[known : known + more] = factor * factors[:more]
        terms[known : known + more] = factor * terms[:more] + term
        known += more
    return factors, terms


class RandomMatrix:
    """Columns of HPL's N×(N + 1) matrix [A|b], uniform in [-1/2, 1/2), made anew at each call.

    The sequence runs down the columns: element (i, j) is ½ - X/2**64 with the X of step 1 + i + jN,
    and X₀ is the seed. Only the given rows are made.
    """

    def __init__(self, n: int, rows: NDArray[np.int64], seed: int = SEED) -> None:
        factors, terms = jumps(n)
        self._factors, self._terms = factors[rows], terms[rows]
        self._n, self._seed = n, seed

    def column(self, col: int) -> NDArray[np.float64]:
        """Return the wanted rows of one column; column N is b."""
        factor, term = jump(1 + col * self._n)
        first = np.uint64((factor * self._seed + term) % _MODULUS)
        words = self._factors * first + self._terms
        return 0.5 - words.astype(np.float64) / float(_MODULUS)


class DominantMatrix(RandomMatrix):
    """The matrix of HPL-MxP: HPL's, each diagonal element replaced by the row's absolute sum.

    `sums` go over all N columns of the wanted rows.
    """

    def __init__(
        self, n: int, rows: NDArray[np.int64], sums: NDArray[np.float64], seed: int = SEED
    ) -> None:
        super().__init__(n, rows, seed)
        self._rows, self._sums = rows, sums

    def column(self, col: int) -> NDArray[np.float64]:
        """Return the wanted rows of one column; column N is b."""
        found = super().column(col)
        diagonal = self._rows == col
        found[diagonal] = self._sums[diagonal]
        return found
