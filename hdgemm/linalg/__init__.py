"""Factorisations and solves for matrices of any size, with the names of `scipy.linalg`."""

from typing import TYPE_CHECKING, Never

from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg._qr_multiply import qr_multiply
from hdgemm.linalg._triangular_factors import lu
from hdgemm.linalg.absent_names import missing as _missing
from hdgemm.linalg.cholesky import cho_factor, cholesky
from hdgemm.linalg.covariance import corrcoef, cov
from hdgemm.linalg.determinant import SlogdetResult, det, slogdet
from hdgemm.linalg.factored_solve import cho_solve, lu_solve, solve_triangular
from hdgemm.linalg.inverse import cond, inv
from hdgemm.linalg.krylov import eigsh, svds
from hdgemm.linalg.lstsq import lstsq
from hdgemm.linalg.lu import lu_factor
from hdgemm.linalg.norm import norm
from hdgemm.linalg.pinv import pinv
from hdgemm.linalg.preflight import plan
from hdgemm.linalg.qr import qr
from hdgemm.linalg.ridge import RidgeFit, ridge
from hdgemm.linalg.solve import solve
from hdgemm.linalg.stored_factors import (
    CholeskyFactor,
    LUFactors,
    QRFactors,
    open as open,  # noqa: A004
)
from hdgemm.linalg.svd import svd, svdvals

__all__ = [
    "CholeskyFactor",
    "LUFactors",
    "QRFactors",
    "RidgeFit",
    "SingularMatrixError",
    "SlogdetResult",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "cond",
    "corrcoef",
    "cov",
    "det",
    "eigsh",
    "inv",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_solve",
    "norm",
    "open",
    "pinv",
    "plan",
    "qr",
    "qr_multiply",
    "ridge",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svds",
    "svdvals",
]

if not TYPE_CHECKING:  # a type checker would take every name for present

    def __getattr__(name: str) -> Never:
        """Say what to use instead of a name that this module does not have."""
        raise _missing(__name__, name)
