"""Checks of stored factors and solutions with random vectors, in one or two passes over the files.

For a random vector x of ±1, P·A·x is compared with L·(U·x), A·x with L·(L^H·x) or Q·(R·x), and
A·(X·x) with B·x. Each element is compared with the bound of a backward stable computation, 2·n·eps
times the same products of absolute values.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from hdgemm.call.operands import open_matrix, open_square
from hdgemm.errors import InputError
from hdgemm.linalg.factored_solve import check_pair, check_pivots
from hdgemm.linalg.stored_factors import CholeskyFactor, LUFactors, QRFactors, open as open_factors
from hdgemm.verify.freivalds import number_of_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix

_MEMORY: Final = 256_000_000

_Factors = TypeVar("_Factors", LUFactors, CholeskyFactor, QRFactors)


@dataclass(frozen=True, slots=True)
class FactorCheck:
    """Outcome of a check.

    Parameters
    ----------
    passed
        No element deviates by more than its bound, and all are finite.
    worst
        The largest deviation divided by its bound.
    bound
        The largest bound, in the unit of A times a vector of ±1.
    rounds
        Number of random vectors: a wrong row is missed with probability 2^-rounds at most.
    """

    passed: bool
    worst: float
    bound: float
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        said = "the check passed" if self.passed else "the check failed"
        return (
            f"{said}: worst deviation {self.worst:.2g} of its bound, which is {self.bound:.2g} at "
            f"most; a wrong row is missed with probability {2.0**-self.rounds:.1g}"
        )


def check_lu(a: Any, factors: Any, *, rounds: int = 30, memory: int = _MEMORY) -> FactorCheck:
    """Check that P·A = L·U, for factors of `lu_factor` or their location."""
    found = _opened(factors, LUFactors, "LU")
    source, lu = open_matrix(a), open_matrix(found.lu, "lu")
    if lu.shape != source.shape:
        raise InputError(f"A is {source.shape}, its factors are {lu.shape}")
    x = _signs(source.shape[1], rounds)
    expected, of_a = _times(source, x, memory)
    for row, other in enumerate(check_pivots(found.piv, lu.shape)):
        for vectors in (expected, of_a):
            vectors[[row, other]] = vectors[[other, row]]
    y, sizes = _triangle_times(lu, x, np.abs(x[:, :1]), memory, lower=False)
    product, of_factors = _triangle_times(lu, y, sizes, memory, lower=True)
    return _compare(product, expected, of_factors + of_a, source)


def check_cholesky(a: Any, factors: Any, *, rounds: int = 30, memory: int = _MEMORY) -> FactorCheck:
    """Check that A = L·L^H or U^H·U, for a factor of `cholesky` or its location."""
    found = _opened(factors, CholeskyFactor, "Cholesky")
    source, factor = open_square(a), open_square(found.c, "c")
    if factor.shape != source.shape:
        raise InputError(f"A is {source.shape}, its factor is {factor.shape}")
    if not found.lower:  # the transpose of U is the L of the transpose of A
        source, factor = source.T, factor.T
    n = source.shape[0]
    x = _signs(n, rounds)
    expected, of_a = np.zeros_like(x, _wide(source)), np.zeros((n, 1))
    y, sizes = np.zeros_like(expected), np.zeros((n, 1))
    product, of_factors = np.zeros_like(expected), np.zeros((n, 1))
    for first, block in _columns(source, memory, triangle=True):
        last = first + block.shape[1]
        _add_hermitian(block, first, last, x, expected)
        _add_hermitian(np.abs(block), first, last, np.ones((n, 1)), of_a)
    for first, block in _columns(factor, memory, triangle=True):
        last = first + block.shape[1]
        block[: last - first] = np.tril(block[: last - first])
        y[first:last] = block.conj().T @ x[first:]
        sizes[first:last] = np.abs(block).T @ np.ones((n - first, 1))
        product[first:] += block @ y[first:last]
        of_factors[first:] += np.abs(block) @ sizes[first:last]
    return _compare(product, expected, of_factors + of_a, source)


def check_qr(a: Any, factors: Any, *, rounds: int = 30, memory: int = _MEMORY) -> FactorCheck:
    """Check that A = Q·R, for the reflectors of ``qr(mode="raw")`` or their location."""
    found = _opened(factors, QRFactors, "QR")
    source, qr = open_matrix(a), open_matrix(found.qr)
    if qr.shape != source.shape:
        raise InputError(f"A is {source.shape}, its factors are {qr.shape}")
    x = _signs(source.shape[1], rounds)
    expected, of_a = _times(source, x, memory)
    upper, sizes = _triangle_times(qr, x, np.abs(x[:, :1]), memory, lower=False)
    product = np.zeros_like(expected, np.result_type(expected, upper))
    product[: len(upper)] = upper
    _apply_q(qr, np.asarray(found.tau), product, memory)
    # Q mixes rows: one bound holds for the whole vector.
    norm = np.sqrt((of_a**2).sum() + (sizes**2).sum())
    return _compare(product, expected, np.full_like(of_a, norm), source)


def _opened(factors: Any, kind: type[_Factors], name: str) -> _Factors:
    """Return factors of a kind, given as the pair that the factorisation returned or as a file."""
    given = isinstance(factors, tuple)
    found = kind(*check_pair(factors, "factors", kind)) if given else open_factors(factors)
    if not isinstance(found, kind):
        raise InputError(f"{factors} is no {name} factorisation")
    return found


def _apply_q(qr: StoredMatrix, tau: NDArray[Any], y: NDArray[Any], memory: int) -> None:
    """Overwrite y by Q·y, with the reflectors below the diagonal, from the last to the first."""
    m, dtype = qr.shape[0], _wide(qr)
    k = len(tau)
    width = max(1, memory // (4 * max(1, m) * dtype.itemsize))
    for first in reversed(range(0, k, width)):
        view = qr[first:, first : min(first + width, k)]
        v = view.read(np.empty(view.shape, dtype, "F"))
        for column in reversed(range(v.shape[1])):
            reflector = v[column:, column]
            reflector[0] = 1
            part = y[first + column :]
            part -= np.outer(tau[first + column] * reflector, reflector.conj() @ part)


def check_solution(a: Any, b: Any, x: Any, *, rounds: int = 30) -> FactorCheck:
    """Check that A·X = B."""
    source, rhs, solution = open_square(a), open_matrix(b, "b"), open_matrix(x, "x")
    if solution.shape != (source.shape[1], rhs.shape[1]) or rhs.shape[0] != source.shape[0]:
        raise InputError(f"A is {source.shape}, B {rhs.shape}, X {solution.shape}")
    signs = _signs(rhs.shape[1], rounds)
    y, sizes = _times(solution, signs, _MEMORY)
    expected, of_b = _times(rhs, signs, _MEMORY)
    product, of_a = _times(source, y, _MEMORY, sizes)
    # Normwise: a small row may carry the error of a large one.
    return _compare(product, expected, np.full_like(of_a, (of_a + of_b).max(initial=0)), source)


def _signs(n: int, rounds: int) -> NDArray[np.float64]:
    return np.random.default_rng(n).choice([-1.0, 1.0], (n, number_of_rounds(rounds)))


def _wide(matrix: StoredMatrix) -> np.dtype[Any]:
    return np.dtype("complex128" if matrix.dtype.kind == "c" else "float64")


def _columns(
    matrix: StoredMatrix, memory: int, *, triangle: bool = False
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield blocks of columns, in double precision; of a triangle the rows from the diagonal on."""
    m, n = matrix.shape
    dtype = _wide(matrix)
    # The block itself, its absolute values and a copy are in memory.
    width = max(1, memory // (4 * max(1, m) * dtype.itemsize))
    for first in range(0, n, width):
        last = min(first + width, n)
        view = matrix[first if triangle else 0 :, first:last]
        yield first, view.read(np.empty(view.shape, dtype, "F"))


def _times(
    matrix: StoredMatrix, x: NDArray[Any], memory: int, sizes: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return M·x, and |M| times the absolute values of x (`sizes`, or one everywhere)."""
    m = matrix.shape[0]
    y, absolute = np.zeros((m, x.shape[1]), np.result_type(_wide(matrix), x)), np.zeros((m, 1))
    sizes = np.ones((len(x), 1)) if sizes is None else sizes
    for first, block in _columns(matrix, memory):
        last = first + block.shape[1]
        y += block @ x[first:last]
        absolute += np.abs(block) @ sizes[first:last]
    return y, absolute


def _triangle_times(
    lu: StoredMatrix, x: NDArray[Any], sizes: NDArray[Any], memory: int, *, lower: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return L·x (unit diagonal) or U·x, and the same of absolute values."""
    m, n = lu.shape
    k = min(m, n)
    rows = m if lower else k
    y, absolute = np.zeros((rows, x.shape[1]), np.result_type(_wide(lu), x)), np.zeros((rows, 1))
    for first, block in _columns(lu, memory):
        last = min(first + block.shape[1], k) if lower else first + block.shape[1]
        part = (
            np.tril(block[:, : last - first], -first - 1) if lower else np.triu(block, -first)[:k]
        )
        if lower:
            part[np.arange(first, last), np.arange(last - first)] = 1
        y += part @ x[first:last]
        absolute += np.abs(part) @ sizes[first:last]
        if lower and last == k:
            break
    return y, absolute


def _add_hermitian(
    block: NDArray[Any], first: int, last: int, x: NDArray[Any], y: NDArray[Any]
) -> None:
    """Add to y the product of some columns of a Hermitian matrix, and of their rows, with x."""
    width = last - first
    diagonal = np.tril(block[:width])
    y[first:last] += (diagonal + np.tril(diagonal, -1).conj().T) @ x[first:last]
    y[last:] += block[width:] @ x[first:last]
    y[first:last] += block[width:].conj().T @ x[last:]


def _compare(
    product: NDArray[Any], expected: NDArray[Any], sizes: NDArray[Any], a: StoredMatrix
) -> FactorCheck:
    bound = 2 * max(1, *a.shape) * np.finfo(a.dtype).eps * sizes
    deviation = np.abs(product - expected)
    sound = bool((deviation <= bound).all())
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(deviation > 0, deviation / bound, 0.0)
    worst = float(np.nan_to_num(parts, nan=np.inf).max(initial=0.0))
    return FactorCheck(sound, worst, float(bound.max(initial=0.0)), product.shape[1])
