"""Singular value decomposition of the triangle that a pass leaves, by LAPACK.

SciPy's wrapper would hold the interpreter's lock: no heartbeat, progress or cancel for minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.errors import InputError
from hdgemm.fortran import gesvd

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Order from which the workspace of LAPACK's gesdd exceeds 32-bit counts.
_MOST_DIVIDED: Final = 20_000


class TriangleSvd(NamedTuple):
    """R = U·diag(s)·Vh, all n×n."""

    u: NDArray[Any]
    s: NDArray[Any]
    vh: NDArray[Any]

    @classmethod
    def of(cls, r: NDArray[Any], driver: str = "gesdd") -> TriangleSvd:
        """Decompose R, which is overwritten; the driver is ``"gesdd"`` or ``"gesvd"``.

        Raises
        ------
        InputError
            When R is not finite.
        """
        check_reduced(r, "R of A")
        return cls(*gesvd(np.asfortranarray(r), _fit(driver, r)))

    @property
    def largest(self) -> float:
        """s[0]; 0 without values."""
        return float(self.s[0]) if len(self.s) else 0.0

    def rank(self, tolerance: float) -> int:
        """Return the number of values above a tolerance."""
        return int(np.count_nonzero(self.s > tolerance))

    def inverse_gram(self, rank: int, c: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return ``(R^H·R)^+·C`` from the largest values, and the scale of the columns of R.

        Parameters
        ----------
        rank
            Values that count.
        c
            n×p.

        Returns
        -------
        w, scale
            The product for R as it is, where the squares of its values neither overflow nor
            underflow: then `scale` is None. Otherwise ``R·(R^H·R)^+·C`` is ``(R / scale)·w``.
        """
        s, v = self.s[:rank], self.vh[:rank].conj().T
        right = v.conj().T @ c
        bound = np.finfo(s.dtype).max ** 0.25
        largest = self.largest if rank else 1.0
        if 1 / bound < largest < bound:
            return v @ (right / s[:, np.newaxis] / s[:, np.newaxis]), None
        w = v @ (right / (s / largest)[:, np.newaxis] / s[:, np.newaxis])
        return w, np.full(len(self.s), largest, s.dtype)

    @property
    def condition(self) -> float:
        """s[0]/s[-1]; 1 without values."""
        if not len(self.s):
            return 1.0
        largest, smallest = float(self.s[0]), float(self.s[-1])
        return largest / smallest if smallest else np.inf


def triangle_values(r: NDArray[Any]) -> NDArray[Any]:
    """Return the singular values of R, which is overwritten, in descending order.

    Raises
    ------
    InputError
        When R is not finite.
    """
    check_reduced(r, "R of A")
    return gesvd(np.asfortranarray(r), _fit("gesdd", r), vectors=False)[0]


def check_reduced(r: NDArray[Any], what: str) -> None:
    """Raise `InputError` where an array to which a pass has reduced A, `what`, is not finite."""
    if all(np.isfinite(column).all() for column in r.T):  # not an array of n×n at once
        return
    raise InputError(
        f"{what} is not finite: elements of A are so large that sums overflow (scale A), or one "
        "is Inf or NaN (check_finite=True names it)"
    )


def _fit(driver: str, r: NDArray[Any]) -> str:
    """Return the driver, or gesvd where the workspace of gesdd is too large for LAPACK."""
    return "gesvd" if len(r) > _MOST_DIVIDED else driver
