"""Products, Cholesky factors and passes over rows on several machines, from shared storage."""

from typing import TYPE_CHECKING, Never

from hdgemm.cluster._cluster_plan import ClusterPlan
from hdgemm.cluster._product import multiply, syrk
from hdgemm.cluster.cholesky import cholesky
from hdgemm.cluster.connection import ClusterError
from hdgemm.cluster.preflight import plan
from hdgemm.cluster.row_passes import row_passes
from hdgemm.linalg.absent_names import missing as _missing
from hdgemm.mpi.linpack import Result as LinpackResult, Settings as LinpackSettings, linpack

__all__ = [
    "ClusterError",
    "ClusterPlan",
    "LinpackResult",
    "LinpackSettings",
    "cholesky",
    "linpack",
    "multiply",
    "plan",
    "row_passes",
    "syrk",
]

if not TYPE_CHECKING:  # a type checker would take every name for present

    def __getattr__(name: str) -> Never:
        """Say what to use instead of a name that this module does not have."""
        raise _missing(__name__, name)
