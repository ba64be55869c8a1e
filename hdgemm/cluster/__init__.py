"""One product over several machines: Dask workers compute blocks of C from shared storage."""

from hdgemm.cluster.cholesky import cholesky
from hdgemm.cluster.preflight import plan
from hdgemm.cluster.product import multiply, syrk
from hdgemm.mpi.linpack import Settings as LinpackSettings
from hdgemm.mpi.linpack import linpack

__all__ = ["LinpackSettings", "cholesky", "linpack", "multiply", "plan", "syrk"]
