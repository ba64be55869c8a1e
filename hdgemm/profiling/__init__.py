"""Contention profiles of this machine: which shared resource limits products."""

from hdgemm.profiling.compare import compare
from hdgemm.profiling.results import Profile
from hdgemm.profiling.session import profile

__all__ = ["Profile", "compare", "profile"]
