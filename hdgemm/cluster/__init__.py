"""Products, Cholesky factors and passes over rows on several machines, from shared storage."""

from hdgemm.cluster._product import multiply, syrk
from hdgemm.cluster.cholesky import cholesky
from hdgemm.cluster.preflight import plan
from hdgemm.cluster.row_passes import row_passes
from hdgemm.mpi.linpack import Settings as LinpackSettings, linpack

__all__ = ["LinpackSettings", "cholesky", "linpack", "multiply", "plan", "row_passes", "syrk"]
