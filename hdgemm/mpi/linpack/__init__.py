"""LINPACK: HPL's benchmark over MPI."""

from hdgemm.mpi.linpack.benchmark import Result, linpack
from hdgemm.mpi.linpack.settings import Settings, read_dat

__all__ = ["Result", "Settings", "linpack", "read_dat"]
