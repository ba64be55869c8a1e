"""One product over several machines: Dask workers compute blocks of C from shared storage."""

from hdgemm.cluster.product import multiply

__all__ = ["multiply"]
