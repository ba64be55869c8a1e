"""Block Krylov subspace of a Hermitian operator: its basis, Ritz pairs and residuals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.linalg

from hdgemm.fortran import eigh

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    #: Returns the indices of ascending Ritz values that are wanted, the most wanted first.
    Choice = Callable[[NDArray[Any]], NDArray[Any]]


class RitzPairs(NamedTuple):
    """Approximate eigenpairs of G, the most wanted first.

    Parameters
    ----------
    values
        k real numbers.
    vectors
        n×k, orthonormal.
    residuals
        ``||G·v - value·v||`` of each pair.
    """

    values: NDArray[Any]
    vectors: NDArray[Any]
    residuals: NDArray[Any]


class KrylovBasis:
    """An orthonormal basis of span{Q, G·Q, G²·Q, …} for n×b blocks, with G·basis beside it.

    The caller computes G·`block` and gives it to `extend`, in turn. The whole basis is kept and
    orthogonalised against (C. Musco, C. Musco: Randomized block Krylov methods for stronger and
    faster approximate singular value decomposition, 2015). When it is full, it restarts from the
    best Ritz vectors: the residuals of all of them lie in the next block, so that nothing is lost
    but directions of the others (K. Wu, H. Simon: Thick-restart Lanczos method, 2000).

    Parameters
    ----------
    n
        Order of G.
    width
        Columns b of a block.
    most
        Columns of the basis at most: three blocks, or n.
    dtype
        Of G.
    seed
        Of the first block: normal random numbers. The same seed gives the same bits.
    choice
        Which Ritz values are wanted.
    """

    def __init__(
        self, n: int, width: int, most: int, dtype: np.dtype[Any], seed: int, choice: Choice
    ) -> None:
        self._choice = choice
        self._basis = np.empty((n, most), dtype, "F")
        self._products = np.empty((n, most), dtype, "F")
        self._count = 0
        rng = np.random.default_rng(seed)
        start = rng.standard_normal((n, width)).astype(dtype)
        if dtype.kind == "c":
            start += 1j * rng.standard_normal((n, width))
        self.block: NDArray[Any] = scipy.linalg.qr(start, mode="economic")[0]

    @property
    def exhausted(self) -> bool:
        """Whether the basis spans an invariant subspace: there is no next block."""
        return not self.block.shape[1]

    def extend(self, product: NDArray[Any]) -> None:
        """Take G·`block`; `block` is the next one then."""
        width = self.block.shape[1]
        if self._count + width > self._basis.shape[1]:
            self._restart(width)
        place = slice(self._count, self._count + width)
        self._basis[:, place], self._products[:, place] = self.block, product
        self._count += width
        self.block = self._next(product)

    @property
    def columns(self) -> NDArray[Any]:
        """The basis that is held, as a view."""
        return self._held[0]

    @property
    def complete(self) -> bool:
        """Whether the basis spans the whole space."""
        return self._count == len(self._basis)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of the basis and of its products."""
        return self._basis.nbytes + self._products.nbytes

    def pairs(
        self, values: NDArray[Any], vectors: NDArray[Any], coefficients: NDArray[Any]
    ) -> RitzPairs:
        """Return pairs with their residuals, from the coefficients of the vectors in the basis."""
        _, products = self._held
        residuals = np.linalg.norm(products @ coefficients - vectors * values, axis=0)
        return RitzPairs(values, vectors, residuals)

    def ritz(self, k: int) -> RitzPairs:
        """Return the k most wanted Ritz pairs, or fewer from a small basis."""
        values, coefficients = self._rayleigh()
        chosen = self._choice(values)[:k]
        values, coefficients = values[chosen], coefficients[:, chosen]
        return self.pairs(values, self.columns @ coefficients, coefficients)

    @property
    def _held(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._basis[:, : self._count], self._products[:, : self._count]

    def _rayleigh(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the eigenpairs of basis^H·G·basis, in ascending order."""
        basis, products = self._held
        projected = basis.conj().T @ products
        projected += projected.conj().T.copy()
        projected *= 0.5
        values, coefficients = eigh(np.asfortranarray(projected))
        return values, coefficients

    def _restart(self, width: int) -> None:
        """Keep the best Ritz vectors, so that two more blocks fit."""
        keep = max(1, self._basis.shape[1] - 2 * width)
        values, coefficients = self._rayleigh()
        kept = coefficients[:, self._choice(values)[:keep]]
        for array in (self._basis, self._products):
            array[:, : kept.shape[1]] = array[:, : self._count] @ kept
        self._count = kept.shape[1]

    def _next(self, product: NDArray[Any]) -> NDArray[Any]:
        """Return an orthonormal basis of what a product adds to the space; columns may vanish."""
        scale = float(np.linalg.norm(product, axis=0).max(initial=0.0))
        rest = self._orthogonal(product)
        q, r, _ = scipy.linalg.qr(rest, mode="economic", pivoting=True, check_finite=False)
        size = np.abs(np.diagonal(r))
        new = size > len(product) ** 0.5 * np.finfo(size.dtype).eps * scale
        room = max(0, len(product) - self._count)
        q = q[:, : min(int(np.count_nonzero(new)), room)]
        # A short rest has lost orthogonality: once more.
        found: NDArray[Any] = scipy.linalg.qr(
            self._orthogonal(q), mode="economic", check_finite=False
        )[0]
        return found

    def _orthogonal(self, block: NDArray[Any]) -> NDArray[Any]:
        """Return a block less its projection on the basis."""
        basis, _ = self._held
        for _ in range(2):
            block = block - basis @ (basis.conj().T @ block)
        return block
