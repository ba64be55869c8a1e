"""LINPACK: HPL's benchmark over MPI."""

from hdgemm.hpl.benchmark import Result, linpack
from hdgemm.hpl.settings import Settings, read_dat

__all__ = ["Result", "Settings", "linpack", "read_dat"]
