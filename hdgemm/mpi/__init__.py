"""Linear algebra in a cluster's memory, over MPI: one engine; LINPACK is its benchmark."""

from hdgemm.mpi._block_cyclic import BlockCyclicArray
from hdgemm.mpi.cholesky import cho_solve, cholesky
from hdgemm.mpi.lu import lu_factor, lu_solve, slogdet
from hdgemm.mpi.plan import MpiPlan, plan
from hdgemm.mpi.report import Report
from hdgemm.mpi.solve import solve

__all__ = [
    "BlockCyclicArray",
    "MpiPlan",
    "Report",
    "cho_solve",
    "cholesky",
    "lu_factor",
    "lu_solve",
    "plan",
    "slogdet",
    "solve",
]
