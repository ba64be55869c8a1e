"""One product over several machines: Dask workers compute blocks of C from shared storage."""

from hdgemm.cluster.product import multiply, plan
from hdgemm.hpl import Settings as LinpackSettings
from hdgemm.hpl import linpack

__all__ = ["LinpackSettings", "linpack", "multiply", "plan"]
