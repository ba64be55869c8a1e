"""Linear algebra in a cluster's memory, over MPI: one engine; LINPACK is its benchmark."""

from typing import TYPE_CHECKING, Never

from hdgemm.linalg.absent_names import missing as _missing
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

if not TYPE_CHECKING:  # a type checker would take every name for present

    def __getattr__(name: str) -> Never:
        """Say what to use instead of a name that this module does not have."""
        raise _missing(__name__, name)
