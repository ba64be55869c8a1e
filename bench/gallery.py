"""Matrices on which pivoting is weak or has much to interchange, of any order (Higham, 2002)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import scipy.linalg

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]


def gfpp(n: int) -> Matrix:
    """Wilkinson's matrix: the last column doubles at each step (Higham, section 9.4)."""
    a = np.eye(n) - np.tri(n, k=-1)
    a[:, -1] = 1
    return a


def wright(n: int) -> Matrix:
    """Multiple shooting for a two-point boundary value problem (Wright, 1993)."""
    step = scipy.linalg.expm(0.3 * np.array([[-1 / 6, 1], [1, -1 / 6]]))
    blocks = n // 2 + 1
    a = np.eye(2 * blocks)
    for block in range(1, blocks):
        a[2 * block : 2 * block + 2, 2 * block - 2 : 2 * block] = -step
    a[:2, -2:] = np.eye(2)
    return a


def foster(n: int) -> Matrix:
    """Quadrature of a Volterra integral equation (Foster, 1994)."""
    c, h, k = 1.0, 40.0 / (n - 1), 1.0
    a = np.eye(n)
    a[1:, 0] = -k * h / 2
    for row in range(1, n):
        a[row, 1:row] = -k * h
    a[np.arange(1, n), np.arange(1, n)] = 1 - k * h / 2
    a[:, -1] -= 1 / c
    return a


def random(n: int, *, uniform: bool = False) -> Matrix:
    """Draw elements from a normal distribution, or uniform in [-1, 1)."""
    rng = np.random.default_rng(n)
    return rng.uniform(-1, 1, (n, n)) if uniform else rng.standard_normal((n, n))


def randsvd(condition: float, n: int) -> Matrix:
    """Random singular vectors; singular values fall geometrically from 1 to 1/condition."""
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    product: Matrix = u * np.geomspace(1, 1 / condition, n) @ v
    return product


def permutation(kind: str, n: int) -> Matrix:
    """Permute the rows of the identity, in reverse, cyclic by 11, or at random."""
    order = {
        "reversed": np.arange(n)[::-1],
        "cyclic": np.roll(np.arange(n), 11),
        "random": np.random.default_rng(1).permutation(n),
    }[kind]
    return np.eye(n)[order]


def zero_columns(n: int) -> Matrix:
    """Return a random matrix with three columns of zeros."""
    a = np.random.default_rng(2).standard_normal((n, n))
    a[:, [0, n // 2 - 1, n - 1]] = 0
    return a


def orthogonal(n: int) -> Matrix:
    """Sines: the eigenvectors of the second difference matrix, with large growth."""
    rows = np.arange(1, n + 1)
    return np.sqrt(2 / (n + 1)) * np.sin(np.pi * np.outer(rows, rows) / (n + 1))


def hadamard(n: int) -> Matrix:
    """Sylvester's matrix of the largest power of two up to n: growth is at least its order."""
    return scipy.linalg.hadamard(1 << (n.bit_length() - 1)).astype(np.float64)


def shuffled(make: Callable[[int], Matrix], n: int) -> Matrix:
    """Permute the rows of a matrix of the gallery: the leaves meet other rows."""
    a = make(n)
    return a[np.random.default_rng(3).permutation(len(a))]


GALLERY: Final[Mapping[str, Callable[[int], Any]]] = {
    "random, normal": random,
    "random, uniform": partial(random, uniform=True),
    "gfpp": gfpp,
    "gfpp, rows shuffled": partial(shuffled, gfpp),
    "wright": wright,
    "foster": foster,
    "orthogonal (sines)": orthogonal,
    "hadamard": hadamard,
    "randsvd 1e2": partial(randsvd, 1e2),
    "randsvd 0.1/eps": partial(randsvd, 0.1 / np.finfo(float).eps),
    "near overflow": lambda n: randsvd(10, n) * 1e300,
    "near underflow": lambda n: randsvd(10, n) * 1e-290,
    "badly scaled rows": lambda n: np.geomspace(1e-12, 1e12, n)[:, np.newaxis] * randsvd(10, n),
    "reversed": partial(permutation, "reversed"),
    "cyclic": partial(permutation, "cyclic"),
    "random permutation": partial(permutation, "random"),
    "zero columns": zero_columns,
}
