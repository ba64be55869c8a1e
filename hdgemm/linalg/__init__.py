"""Factorisations and solves for matrices of any size, with the names of `scipy.linalg`."""

from hdgemm.linalg.cholesky import cho_factor, cholesky
from hdgemm.linalg.lu import lu_factor
from hdgemm.linalg.planning import SlabPlan, plan_slabs
from hdgemm.linalg.storage import SingularMatrixError

__all__ = ["SingularMatrixError", "SlabPlan", "cho_factor", "cholesky", "lu_factor", "plan_slabs"]
