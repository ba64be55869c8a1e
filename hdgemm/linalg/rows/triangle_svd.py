"""Singular value decomposition of the triangle that a pass leaves, by LAPACK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import scipy.linalg

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
        """Decompose R, which is overwritten; the driver is ``"gesdd"`` or ``"gesvd"``."""
        decompose: Any = scipy.linalg.svd  # typed for literal drivers only
        return cls(
            *decompose(r, overwrite_a=True, check_finite=False, lapack_driver=_fit(driver, r))
        )

    @property
    def condition(self) -> float:
        """s[0]/s[-1]; 1 without values."""
        if not len(self.s):
            return 1.0
        largest, smallest = float(self.s[0]), float(self.s[-1])
        return largest / smallest if smallest else np.inf


def triangle_values(r: NDArray[Any]) -> NDArray[Any]:
    """Return the singular values of R, which is overwritten, in descending order."""
    decompose: Any = scipy.linalg.svd  # typed for literal drivers only
    found: NDArray[Any] = decompose(
        r, compute_uv=False, overwrite_a=True, check_finite=False, lapack_driver=_fit("gesdd", r)
    )
    return found


def _fit(driver: str, r: NDArray[Any]) -> str:
    """Return the driver, or gesvd where the workspace of gesdd is too large for LAPACK."""
    return "gesvd" if len(r) > _MOST_DIVIDED else driver
