"""Factorisations by tasks on small matrices, judged by LAPACK's ratios."""

import numpy as np

from hdgemm.tasks.algorithms import ALGORITHMS, finish_pivots
from hdgemm.tasks.block_columns import BlockColumns
from hdgemm.tasks.capability import Capability

EPS = 2.0**-53
KINDS = ("potrf", "panel trsm", "trsm", "gemm", "getrf", "laswp", "geqrt", "larfb")
UPDATES = ("trsm", "gemm", "laswp", "larfb")
NAMES = ("cholesky", "lu", "calu", "qr")
#: Tournaments of several leaves for matrices of 40 rows.
HOW = {"calu": {"leaf": 9}}


def host(lanes=1, rate=1e9):
    return Capability(name="host", rates=dict.fromkeys(KINDS, rate), lanes=lanes)


def device(name, rate=1e9, **more):
    return Capability(name=name, rates=dict.fromkeys(UPDATES, rate), **more)


def matrix_for(name, shape, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    if name == "cholesky":
        x = x @ x.conj().T + len(x) * np.eye(len(x))
    return np.asfortranarray(x.astype(dtype))


def factor(name, runtime, a, widths, weights=None, **how):
    """Factor a copy of a matrix; returns the factors and, for LU, the pivots."""
    array = np.array(a, order="F")
    cut = BlockColumns.cut(a.shape, widths, array=array, lower=name == "cholesky", weights=weights)
    found = ALGORITHMS[name](cut, runtime.insert, **HOW.get(name, {}), **how)
    runtime.finish()
    if name in ("lu", "calu"):
        finish_pivots(cut, found)
        return array, found.rows
    if name == "qr":
        return array, [tile.array for tile in found]
    return array, None


def ratio(name, a, found, widths):
    """LAPACK's ratio of a factorisation: below 30 is correct."""
    array, rest = found
    m, n = a.shape
    eps = EPS * (2**29 if a.dtype.char in "fF" else 1)
    norm = np.linalg.norm(a, 1)
    if name == "cholesky":
        lower = np.tril(array)
        return np.linalg.norm(lower @ lower.conj().T - a, 1) / (n * norm * eps)
    if name in ("lu", "calu"):
        k = min(m, n)
        lower = np.tril(array[:, :k], -1) + np.eye(m, k)
        permuted = a.copy()
        for row, pivot in enumerate(rest):
            permuted[[row, pivot]] = permuted[[pivot, row]]
        return np.linalg.norm(lower @ np.triu(array[:k]) - permuted, 1) / (n * norm * eps)
    product, edges = np.triu(array), np.cumsum([0, *widths])
    for t, first in reversed(list(zip(rest, edges, strict=False))):
        v = np.tril(array[first:, first : first + len(t)], -1) + np.eye(m - first, len(t))
        product[first:] -= v @ (np.triu(t) @ (v.conj().T @ product[first:]))
    return np.linalg.norm(product - a, 1) / (m * norm * eps)
